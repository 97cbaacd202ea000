//! Buffers in the guest's memory. What lies there may change at any moment: it is copied before it is looked at.

use super::memory::{GuestMemory, is_lost};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend};

/// A piece of a buffer, as a descriptor names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Where in the guest's memory.
    pub address: GuestAddress,
    /// Bytes.
    pub length: u32,
}

/// The guest's memory does not have the buffer any more, or its content was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutsideMemory;

impl Segment {
    /// Does the memory have all of it?
    pub(super) fn lies_in(self, memory: &GuestMemory) -> bool {
        usize::try_from(self.length).is_ok_and(|length| memory.check_range(self.address, length))
    }
}

/// Bytes of all segments together.
pub(super) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|s| u64::from(s.length)).sum()
}

/// Copies out of the segments, after `skip` bytes, until `buf` is full.
pub(super) fn copy_out(
    memory: &GuestMemory,
    segments: &[Segment],
    skip: u64,
    buf: &mut [u8],
) -> Result<(), OutsideMemory> {
    let mut rest = buf;
    for (address, length) in pieces(segments, skip) {
        let (piece, tail) = rest.split_at_mut(length.min(rest.len()));
        memory
            .read_slice(piece, address)
            .map_err(|_| OutsideMemory)?;
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    // What was taken away meanwhile was read as zero.
    if rest.is_empty() && !is_lost(memory) {
        Ok(())
    } else {
        Err(OutsideMemory)
    }
}

/// Copies `content` into the segments, as much as they take; how much.
pub(super) fn copy_in(
    memory: &GuestMemory,
    segments: &[Segment],
    content: &[u8],
) -> Result<usize, OutsideMemory> {
    if is_lost(memory) {
        return Err(OutsideMemory);
    }
    let mut rest = content;
    for (address, length) in pieces(segments, 0) {
        let (piece, tail) = rest.split_at(length.min(rest.len()));
        memory
            .write_slice(piece, address)
            .map_err(|_| OutsideMemory)?;
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    Ok(content.len() - rest.len())
}

/// Where the bytes after the first `skip` are.
fn pieces(segments: &[Segment], skip: u64) -> impl Iterator<Item = (GuestAddress, usize)> + '_ {
    let mut skip = skip;
    segments.iter().filter_map(move |s| {
        let here = skip.min(u64::from(s.length));
        skip -= here;
        let length = usize::try_from(u64::from(s.length) - here).ok()?;
        let address = s.address.checked_add(here)?;
        (length > 0).then_some((address, length))
    })
}
