//! The system calls that change an image, made by a thread. Those that a ring makes are in [`DiskFile`].
//!
//! [`DiskFile`]: crate::block_dev::DiskFile

#[cfg(test)]
use crate::block_dev::{Call, began};
use rustix::fs::FallocateFlags;
use rustix::io::{ReadWriteFlags, Result, pwritev2};
use std::fs::File;
use std::io::IoSlice;

/// Writes some of `buf`; how much.
pub(super) fn write(file: &File, buf: &[u8], off: u64, flags: ReadWriteFlags) -> Result<usize> {
    #[cfg(test)]
    let recorded = began(file, || Call::Write {
        at: off,
        content: buf.to_vec(),
        durable: flags.contains(ReadWriteFlags::DSYNC),
    });
    let done = pwritev2(file, &[IoSlice::new(buf)], off, flags);
    #[cfg(test)]
    recorded
        .into_iter()
        .for_each(crate::block_dev::Recorded::ended);
    done
}

/// Makes durable what was written before.
pub(super) fn sync(file: &File) -> Result<()> {
    #[cfg(test)]
    let recorded = began(file, || Call::Sync);
    let done = rustix::fs::fdatasync(file);
    #[cfg(test)]
    recorded
        .into_iter()
        .for_each(crate::block_dev::Recorded::ended);
    done
}

/// Makes a range zero without writing it, as `how` says.
pub(super) fn zero(file: &File, how: FallocateFlags, off: u64, count: u64) -> Result<()> {
    #[cfg(test)]
    let recorded = began(file, || Call::Write {
        at: off,
        content: vec![0; usize::try_from(count).unwrap_or(0)],
        durable: false,
    });
    let done = rustix::fs::fallocate(file, how, off, count);
    #[cfg(test)]
    recorded
        .into_iter()
        .for_each(crate::block_dev::Recorded::ended);
    done
}
