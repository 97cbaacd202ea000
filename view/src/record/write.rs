//! Writing a recording.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use justitia_api::Status;

use super::encode::BlockBuilder;
use super::{MARK, RecordError, TITLE};

/// How hard blocks are compressed: beyond this it takes much longer for little.
const LEVEL: i32 = 12;

/// Records statuses. What is not yet a whole block is written by [`Recorder::finish`], or when dropped.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    path: String,
    block: BlockBuilder,
    times: Option<(f64, f64)>,
    recorded_until: f64,
    latest: f64,
    statuses: u64,
    bytes: u64,
}

/// What a recording holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many statuses.
    pub statuses: u64,
    /// How long the file is.
    pub bytes: u64,
}

impl Recorder {
    /// Begins a file, which must not exist.
    ///
    /// # Errors
    /// If it exists, or cannot be made.
    pub fn create(path: &Path) -> Result<Self, RecordError> {
        use std::os::unix::fs::OpenOptionsExt;
        let named = path.display().to_string();
        let system = |source| RecordError::System {
            path: named.clone(),
            source,
        };
        // Names of tenants are their owners' business.
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(system)?;
        file.write_all(TITLE).map_err(system)?;
        Ok(Self {
            file,
            path: named,
            block: BlockBuilder::default(),
            times: None,
            recorded_until: f64::NEG_INFINITY,
            latest: f64::NEG_INFINITY,
            statuses: 0,
            bytes: to_u64(TITLE.len()),
        })
    }

    /// Adds a status.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn record(&mut self, status: &Status) -> Result<(), RecordError> {
        if let Some((_, last)) = self.times
            && status.time <= last
        {
            return Ok(()); // the clock was set back, or nothing is new
        }
        if status.uptime < self.latest {
            // Another agent: its seconds count from its own start.
            self.flush()?;
            self.recorded_until = f64::NEG_INFINITY;
        }
        self.latest = status.uptime;
        let first = self.times.map_or(status.time, |(first, _)| first);
        self.times = Some((first, status.time));
        self.block.push(status, self.recorded_until);
        self.statuses += 1;
        if self.block.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes what is not yet written, and says what that makes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self) -> Result<Summary, RecordError> {
        self.flush()?;
        Ok(Summary {
            statuses: self.statuses,
            bytes: self.bytes,
        })
    }

    fn flush(&mut self) -> Result<(), RecordError> {
        let Some((first, last)) = self.times.take() else {
            return Ok(());
        };
        let builder = std::mem::take(&mut self.block);
        let system = |source| RecordError::System {
            path: self.path.clone(),
            source,
        };
        let payload = zstd::encode_all(builder.bytes().as_slice(), LEVEL).map_err(system)?;
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        let mut rest = Vec::with_capacity(payload.len() + 20);
        rest.extend(first.to_le_bytes());
        rest.extend(last.to_le_bytes());
        rest.extend(number(builder.len()));
        rest.extend(&payload);
        let mut block = Vec::with_capacity(rest.len() + 12);
        block.extend(MARK);
        block.extend(number(payload.len()));
        block.extend(crc32fast::hash(&rest).to_le_bytes());
        block.extend(&rest);
        self.recorded_until = self.latest;
        // One write: a reader never sees half a block but at the very end.
        self.file.write_all(&block).map_err(system)?;
        self.bytes += to_u64(block.len());
        Ok(())
    }
}

fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}
