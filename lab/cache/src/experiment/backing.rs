//! The disk of the experiments: its content is known, and reads are counted for the thread that makes them.

use justitia_cache::lab::{BLOCK_BYTES, clock, len};
use justitia_cache::{BLOCK_SIZE, Block, BlockDevice, check_range};
use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

thread_local! {
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// Reads of such disks that this thread has made since it asked last.
pub(super) fn take_reads() -> u64 {
    READS.take()
}

/// A disk that has of each block only the number of its last write. The content of a block follows from its place and
/// that number, so a stale or foreign block shows. A read takes no time of the machine's; that it takes some is told to
/// the cache's clock.
pub(super) struct Backing {
    versions: Vec<AtomicU32>,
    delay: Duration,
}

impl Backing {
    /// All blocks at `version`, from which the disk is told. A read takes `delay`.
    pub(super) fn new(blocks: u64, version: u32, delay: Duration) -> Self {
        let versions = (0..blocks).map(|_| AtomicU32::new(version)).collect();
        Self { versions, delay }
    }

    /// What the block holds at this version.
    pub(super) fn stamp(block: u64, version: u32) -> [u8; 8] {
        (block << 32 | u64::from(version)).to_ne_bytes()
    }

    /// Writes the stamp into a block of zeroes.
    pub(super) fn mark(content: &mut [u8], block: u64, version: u32) {
        if let Some(begin) = content.first_chunk_mut() {
            *begin = Self::stamp(block, version);
        }
    }

    fn version(&self, block: u64) -> Option<&AtomicU32> {
        self.versions.get(usize::try_from(block).ok()?)
    }
}

/// The block's content in the guest.
pub(super) fn content(block: u64, version: u32) -> Block {
    let mut content = [0; BLOCK_SIZE];
    Backing::mark(&mut content, block, version);
    content
}

impl BlockDevice for Backing {
    fn size(&self) -> u64 {
        u64::try_from(self.versions.len()).unwrap_or(0) * BLOCK_BYTES
    }

    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        check_range(self.size(), off, len(buf))?;
        READS.set(READS.get() + 1);
        clock::pass(self.delay);
        buf.fill(0);
        for (block, content) in (off / BLOCK_BYTES..).zip(buf.chunks_mut(BLOCK_SIZE)) {
            if let Some(version) = self.version(block) {
                Self::mark(content, block, version.load(Ordering::Acquire));
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], off: u64, _: bool) -> io::Result<()> {
        check_range(self.size(), off, len(buf))?;
        for (block, content) in (off / BLOCK_BYTES..).zip(buf.chunks(BLOCK_SIZE)) {
            if let (Some(version), Some(stamp)) = (self.version(block), content.first_chunk()) {
                let written = u64::from_ne_bytes(*stamp) & u64::from(u32::MAX);
                version.store(u32::try_from(written).unwrap_or(0), Ordering::Release);
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
