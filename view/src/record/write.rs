//! Writing a recording.

use justitia_common::checksum::crc32;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use justitia_api::Status;

use super::{BLOCK, FULL_BYTES, HEAD, MARK, MAX_BYTES, RecordError, SUM, SUMMED, TITLE};

/// How hard blocks are compressed. What a higher level needs is not built (`.cargo/config.toml`).
const LEVEL: i32 = 3;

/// Records statuses. What is not yet a whole block is written by [`Recorder::finish`], or when dropped.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    path: String,
    /// The statuses of the block, a line each, and how many.
    lines: Vec<u8>,
    count: usize,
    /// The first and the last time in the block.
    times: Option<(f64, f64)>,
    /// The time of the last status.
    last: Option<f64>,
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
        let create = |source| RecordError::Create {
            path: named.clone(),
            source,
        };
        // Names of tenants are their owners' business.
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(create)?;
        file.write_all(TITLE).map_err(system)?;
        Ok(Self {
            file,
            path: named,
            lines: Vec::new(),
            count: 0,
            times: None,
            last: None,
            statuses: 0,
            bytes: to_u64(TITLE.len()),
        })
    }

    /// Adds a status. One that is longer than any answer of an agent is left out.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn record(&mut self, status: &Status) -> Result<(), RecordError> {
        if self.last == Some(status.time) {
            return Ok(());
        }
        // The clock was set back: the times of a block only grow.
        if self.times.is_some_and(|(_, last)| status.time < last) {
            self.flush()?;
        }
        let line = serde_json::to_vec(status).map_err(|error| self.system(error.into()))?;
        if line.len() > MAX_BYTES - FULL_BYTES - 1 {
            return Ok(());
        }
        self.lines.extend(line);
        self.lines.push(b'\n');
        self.count += 1;
        self.statuses += 1;
        let first = self.times.map_or(status.time, |(first, _)| first);
        self.times = Some((first, status.time));
        self.last = Some(status.time);
        if self.count == BLOCK || self.lines.len() >= FULL_BYTES {
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
        let frame = zstd::encode_all(self.lines.as_slice(), LEVEL);
        let frame = frame.map_err(|error| self.system(error))?;
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        let mut block = Vec::with_capacity(HEAD + frame.len());
        block.extend(MARK);
        block.extend([0; SUMMED - SUM]);
        block.extend(number(frame.len()));
        block.extend(first.to_le_bytes());
        block.extend(last.to_le_bytes());
        block.extend(number(std::mem::take(&mut self.count)));
        block.extend(frame);
        let sum = block.get(SUMMED..).map(crc32).unwrap_or_default();
        if let Some(place) = block.get_mut(SUM..SUMMED) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        self.lines.clear();
        // One write: a reader never sees half a block but at the very end.
        let written = self.file.write_all(&block);
        written.map_err(|error| self.system(error))?;
        self.bytes += to_u64(block.len());
        Ok(())
    }

    fn system(&self, source: std::io::Error) -> RecordError {
        RecordError::System {
            path: self.path.clone(),
            source,
        }
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
