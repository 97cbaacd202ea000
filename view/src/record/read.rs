//! Reading a recording.

use justitia_common::checksum::crc32;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use justitia_api::Status;
use justitia_common::regular_file;

use super::{BLOCK, HEAD, MARK, MAX_BYTES, RecordError, SUM, SUMMED, TITLE, WINDOW};

/// Bytes that are looked at at once when the next block has to be searched for.
const CHUNK: usize = 1 << 20;

/// Where a block is.
#[derive(Clone, Copy, Debug)]
struct Block {
    offset: u64,
    length: usize,
    first: f64,
    last: f64,
    statuses: usize,
    /// The position of its first status.
    begins: usize,
}

/// A recording that can be read at any position.
#[derive(Debug)]
pub struct Recording {
    file: File,
    path: String,
    blocks: Vec<Block>,
    lost: u64,
    /// The block that was read last, and its statuses, a line each.
    kept: Option<(usize, Vec<u8>)>,
}

impl Recording {
    /// Opens a recording and finds its blocks; their contents are read when they are wanted.
    ///
    /// # Errors
    /// If the file cannot be read, is something else, or has no intact block.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let named = path.display().to_string();
        let system = |source| RecordError::System {
            path: named.clone(),
            source,
        };
        let file = regular_file::follow(path).map_err(|source| RecordError::Open {
            path: named.clone(),
            source,
        })?;
        let end = file.metadata().map_err(system)?.len();
        let mut title = vec![0; TITLE.len()];
        if file.read_exact_at(&mut title, 0).is_err() || title != TITLE {
            return Err(RecordError::NotOne { path: named });
        }
        let mut blocks: Vec<Block> = Vec::new();
        let mut lost = 0;
        let mut at = as_u64(TITLE.len());
        while at < end {
            let begins = blocks.last().map_or(0, |b| b.begins + b.statuses);
            match head(&file, at, end, begins) {
                Some(block) => {
                    at += as_u64(HEAD + block.length);
                    blocks.push(block);
                }
                None => {
                    let next = next_mark(&file, at + 1, end);
                    lost += next - at;
                    at = next;
                }
            }
        }
        if blocks.is_empty() {
            return Err(RecordError::Empty { path: named });
        }
        Ok(Self {
            file,
            path: named,
            blocks,
            lost,
            kept: None,
        })
    }

    /// How many statuses there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.last().map_or(0, |b| b.begins + b.statuses)
    }

    /// Whether there are none, which [`Recording::open`] refuses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that are cut off or damaged.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// The times of the first and the last status, seconds since 1970.
    #[must_use]
    pub fn span(&self) -> (f64, f64) {
        let first = self.blocks.first().map_or(0.0, |b| b.first);
        let last = self.blocks.last().map_or(0.0, |b| b.last);
        (first, last)
    }

    /// The status at a position, at most the last. Reads one block, if it is not the one read before.
    ///
    /// # Errors
    /// If the block cannot be read.
    pub fn status(&mut self, position: usize) -> Result<Arc<Status>, RecordError> {
        let position = position.min(self.len().saturating_sub(1));
        let index = self
            .blocks
            .partition_point(|b| b.begins + b.statuses <= position);
        let Some(block) = self.blocks.get(index).copied() else {
            return Err(self.not_understood(0, "a block"));
        };
        self.parse(index, block, position - block.begins)
            .map(Arc::new)
    }

    /// A status of a block, which is read if it is not the one read before.
    fn parse(&mut self, index: usize, block: Block, number: usize) -> Result<Status, RecordError> {
        let lines = match self.kept.take() {
            Some((kept, lines)) if kept == index => lines,
            _ => self.read(block)?,
        };
        let line = lines.split(|byte| *byte == b'\n').nth(number);
        let status = line.and_then(|line| serde_json::from_slice(line).ok());
        self.kept = Some((index, lines));
        status.ok_or_else(|| self.not_understood(block.offset, "a status in each line"))
    }

    /// The position of the last status that is not after `time`, seconds since 1970; the first if all are.
    ///
    /// # Errors
    /// If the block cannot be read.
    pub fn position(&mut self, time: f64) -> Result<usize, RecordError> {
        let after = self.blocks.partition_point(|b| b.first <= time);
        let Some(block) = after
            .checked_sub(1)
            .and_then(|i| self.blocks.get(i))
            .copied()
        else {
            return Ok(0);
        };
        let (mut not_after, mut end) = (0, block.statuses);
        while end - not_after > 1 {
            let middle = usize::midpoint(not_after, end);
            if self.parse(after - 1, block, middle)?.time <= time {
                not_after = middle;
            } else {
                end = middle;
            }
        }
        Ok(block.begins + not_after)
    }

    /// The statuses of a block, a line each.
    fn read(&self, block: Block) -> Result<Vec<u8>, RecordError> {
        let rest = body(&self.file, block.offset, block.length)
            .ok_or_else(|| self.not_understood(block.offset, "the checksum of its head"))?;
        let frame = rest.get(HEAD - SUMMED..).unwrap_or_default();
        let mut lines = Vec::new();
        zstd::Decoder::new(frame)
            .and_then(|mut decoder| {
                decoder.window_log_max(WINDOW)?;
                decoder.take(as_u64(MAX_BYTES)).read_to_end(&mut lines)
            })
            .map_err(|_| self.not_understood(block.offset, "a zstd frame"))?;
        Ok(lines)
    }

    fn not_understood(&self, offset: u64, what: &'static str) -> RecordError {
        RecordError::Block {
            path: self.path.clone(),
            offset,
            what,
        }
    }
}

fn as_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// What follows a block's checksum, if that is right.
fn body(file: &File, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut block = vec![0; HEAD + length];
    file.read_exact_at(&mut block, at).ok()?;
    let sum = u32::from_le_bytes(block.get(SUM..SUMMED)?.try_into().ok()?);
    let rest = block.split_off(SUMMED);
    (crc32(&rest) == sum).then_some(rest)
}

/// The block at `at`, if there is an intact one.
fn head(file: &File, at: u64, end: u64, begins: usize) -> Option<Block> {
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, at).ok()?;
    let number = |from: usize| {
        Some(u32::from_le_bytes(
            head.get(from..from + 4)?.try_into().ok()?,
        ))
    };
    let time = |from: usize| {
        Some(f64::from_le_bytes(
            head.get(from..from + 8)?.try_into().ok()?,
        ))
    };
    let length = usize::try_from(number(12)?).ok()?;
    let whole = length <= MAX_BYTES && at + as_u64(HEAD + length) <= end;
    if !head.starts_with(&MARK) || !whole || body(file, at, length).is_none() {
        return None;
    }
    let statuses = usize::try_from(number(32)?).ok()?;
    (1..=BLOCK).contains(&statuses).then_some(Block {
        offset: at,
        length,
        first: time(16)?,
        last: time(24)?,
        statuses,
        begins,
    })
}

/// Where the next mark is, from `at` on; the end if there is none.
fn next_mark(file: &File, mut at: u64, end: u64) -> u64 {
    let mut chunk = vec![0; CHUNK];
    while at < end {
        let Ok(read @ 1..) = file.read_at(&mut chunk, at) else {
            return end;
        };
        let part = chunk.get(..read).unwrap_or(&chunk);
        let found = part.windows(MARK.len()).position(|w| w == MARK);
        if let Some(found) = found {
            return at + as_u64(found);
        }
        // A mark may lie across two chunks.
        at += as_u64(read.saturating_sub(MARK.len() - 1).max(1));
    }
    end
}
