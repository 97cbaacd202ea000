//! The mark of an SSD store: its first MiB. What does not carry it is not ours to delete, discard or write over.
//!
//! Each page says which one it is. So a file system, a partition table or a volume that is made on the device later
//! destroys the mark, wherever in the first MiB it writes. Behind the mark of the last page lies the preamble of what a daemon
//! has left for the next one; writing the mark voids it.

use crate::warm::{PAGE_BYTES, Preamble};
use justitia_link::{AlignedBuf, PAGE};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of the mark; blocks lie behind it.
pub(super) const MARK_BYTES: u64 = 1 << 20;

const TEXT: &[u8] = b"SSD store of `justitia cache`: nothing here is of use to anyone else\n";

/// Where in the mark the preamble lies: in a sector behind that with the number of the last page.
const PREAMBLE: usize = (1 << 20) - PAGE + 512;

/// Places of a device that are looked at, besides its beginning and end, before it is taken for an empty one.
const SAMPLES: u64 = 1024;

/// What lies in a file or on a device that is to be an SSD store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing: a file of no bytes, or a device that is zero wherever it was looked at.
    Nothing,
    /// The blocks of an SSD store.
    Marked,
    /// Something that no SSD store has written.
    Foreign,
}

/// What lies in `file`?
pub(super) fn content(file: &File, regular: bool) -> io::Result<Content> {
    let size = rustix::fs::seek(file, SeekFrom::End(0))?;
    if size == 0 {
        return Ok(Content::Nothing);
    }
    // A file may be the beginning of one: its server was killed while it wrote the mark.
    let count = size.min(MARK_BYTES);
    let mut found = AlignedBuf::new(index(MARK_BYTES));
    let end = read(file, &mut found, 0)?;
    let whole = u64::try_from(end).is_ok_and(|end| end >= count);
    let mut expected = mark();
    let preamble = PREAMBLE..index(MARK_BYTES);
    if whole && count == MARK_BYTES {
        expected[preamble.clone()].copy_from_slice(&found[preamble]);
    }
    if whole && found[..end] == expected[..end] && (count == MARK_BYTES || regular) {
        return Ok(Content::Marked);
    }
    let empty = !regular && found.iter().all(|byte| *byte == 0) && is_zero(file, size)?;
    Ok(if empty {
        Content::Nothing
    } else {
        Content::Foreign
    })
}

/// Makes `file` ours: durably, before anything else is written to it.
pub(super) fn write(file: &File) -> io::Result<()> {
    file.write_all_at(&mark(), 0)?;
    file.sync_data()
}

/// What a daemon has left on a store, which must carry the mark; `None` when that is nothing, or cannot be used.
pub(super) fn left(file: &File) -> io::Result<Option<Preamble>> {
    let mut page = AlignedBuf::new(PAGE);
    let at = MARK_BYTES - PAGE_BYTES;
    if read(file, &mut page, at)? < PAGE {
        return Ok(None);
    }
    let found = &page[PREAMBLE % PAGE..];
    let preamble = Preamble::decode(found);
    if preamble.is_none() && found.iter().any(|byte| *byte != 0) {
        tracing::warn!(
            "the blocks on the SSD store are not used again: another version has left them, or what says which they are is damaged"
        );
    }
    Ok(preamble)
}

/// Says, durably, what is left on the store.
pub(super) fn leave(file: &File, preamble: &Preamble) -> io::Result<()> {
    let mark = mark();
    let mut page = AlignedBuf::new(PAGE);
    page.copy_from_slice(&mark[mark.len() - PAGE..]);
    let bytes = preamble.encode();
    let at = PREAMBLE % PAGE;
    page[at..at + bytes.len()].copy_from_slice(&bytes);
    file.write_all_at(&page, MARK_BYTES - PAGE_BYTES)?;
    file.sync_data()
}

fn mark() -> AlignedBuf {
    let mut mark = AlignedBuf::new(index(MARK_BYTES));
    for (page, number) in mark.chunks_exact_mut(PAGE).zip(0u64..) {
        let text = TEXT.iter().copied().chain(number.to_le_bytes());
        page.iter_mut().zip(text).for_each(|(to, byte)| *to = byte);
    }
    mark
}

/// Is the device zero at its end and at places all over it?
fn is_zero(file: &File, size: u64) -> io::Result<bool> {
    let page = u64::try_from(PAGE).map_err(io::Error::other)?;
    let pages = size / page;
    let mut buf = AlignedBuf::new(PAGE);
    let last = pages.saturating_sub(MARK_BYTES / page)..pages;
    let step = (pages / SAMPLES).max(1);
    for at in (0..pages).step_by(index(step)).chain(last) {
        read(file, &mut buf, at * page)?;
        if buf.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads until `buf` is full or the file ends; how many bytes that were.
fn read(file: &File, buf: &mut [u8], off: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        let at = off + u64::try_from(done).map_err(io::Error::other)?;
        match file.read_at(&mut buf[done..], at) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

fn index(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
