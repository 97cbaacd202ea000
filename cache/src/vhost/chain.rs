//! A chain of descriptors, validated before use.

use super::memory::{GuestMemory, is_lost};
use super::request::{BlkHeader, HEADER, Status};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend};

/// The most descriptors of an indirect table: QEMU's limit.
const MAX_DESCRIPTORS: u16 = 1024;

/// Why a chain is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChainError {
    /// It loops, is too long, or a table or an index lies outside.
    #[error("expected a chain of descriptors with an end, no longer than its table, found none")]
    Broken,
    /// Readable buffers must come before writable ones.
    #[error("expected readable descriptors before writable ones, found one after them")]
    Order,
    /// A buffer lies outside the memory.
    #[error("expected buffers in the guest's memory, found one outside")]
    Outside,
    /// No header.
    #[error("expected {HEADER} readable bytes of a header, found fewer")]
    NoHeader,
    /// No place for the status.
    #[error("expected a writable byte for the status, found none")]
    NoStatus,
}

/// A table of descriptors: the ring's, or an indirect one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorTable {
    /// Its guest-physical address.
    pub address: GuestAddress,
    /// Descriptors in it.
    pub entries: u16,
}

impl DescriptorTable {
    fn indirect(descriptor: Descriptor) -> Result<Self, ChainError> {
        let size = u32::try_from(size_of::<Descriptor>()).map_err(|_| ChainError::Broken)?;
        let entries = u16::try_from(descriptor.len() / size).map_err(|_| ChainError::Broken)?;
        if !descriptor.len().is_multiple_of(size) || !(1..=MAX_DESCRIPTORS).contains(&entries) {
            return Err(ChainError::Broken);
        }
        Ok(Self {
            address: descriptor.addr(),
            entries,
        })
    }

    fn get(self, memory: &GuestMemory, index: u16) -> Result<Descriptor, ChainError> {
        if index >= self.entries {
            return Err(ChainError::Broken);
        }
        let at = u64::from(index) * size_of::<Descriptor>() as u64;
        let address = self.address.checked_add(at).ok_or(ChainError::Broken)?;
        memory.read_obj(address).map_err(|_| ChainError::Broken)
    }
}

/// A request's buffers. It is reused, so that it does not allocate each time.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The index of its first descriptor.
    head: u16,
    readable: Vec<Segment>,
    /// Without the status.
    writable: Vec<Segment>,
    status: GuestAddress,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            head: 0,
            readable: Vec::new(),
            writable: Vec::new(),
            status: GuestAddress(0),
        }
    }
}

impl Chain {
    /// Reads the descriptors of the chain that begins with `head`. Checks that all buffers lie in the memory, and that header
    /// and status are complete. Both may be spread over several descriptors.
    ///
    /// # Errors
    /// When the chain is invalid.
    pub(crate) fn read(
        &mut self,
        memory: &GuestMemory,
        table: DescriptorTable,
        head: u16,
    ) -> Result<(), ChainError> {
        self.head = head;
        self.readable.clear();
        self.writable.clear();
        self.read_descriptors(memory, table)?;
        self.take_status()?;
        if total(&self.readable) < HEADER as u64 {
            return Err(ChainError::NoHeader);
        }
        Ok(())
    }

    fn read_descriptors(
        &mut self,
        memory: &GuestMemory,
        table: DescriptorTable,
    ) -> Result<(), ChainError> {
        let (mut table, mut index, mut indirect) = (table, self.head, false);
        let mut left = table.entries;
        loop {
            // A chain that is longer than its table loops.
            left = left.checked_sub(1).ok_or(ChainError::Broken)?;
            let descriptor = table.get(memory, index)?;
            if descriptor.refers_to_indirect_table() {
                if indirect || descriptor.has_next() {
                    return Err(ChainError::Broken);
                }
                table = DescriptorTable::indirect(descriptor)?;
                (index, indirect, left) = (0, true, table.entries);
                continue;
            }
            self.push(memory, descriptor)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next();
        }
    }

    fn push(&mut self, memory: &GuestMemory, descriptor: Descriptor) -> Result<(), ChainError> {
        let segment = Segment {
            address: descriptor.addr(),
            length: descriptor.len(),
        };
        if !segment.lies_in(memory) {
            return Err(ChainError::Outside);
        }
        if descriptor.is_write_only() {
            self.writable.push(segment);
        } else if self.writable.is_empty() {
            self.readable.push(segment);
        } else {
            return Err(ChainError::Order);
        }
        Ok(())
    }

    /// The last writable byte is the status.
    fn take_status(&mut self) -> Result<(), ChainError> {
        while let Some(last) = self.writable.last_mut() {
            if let Some(rest) = last.length.checked_sub(1) {
                last.length = rest;
                let address = last.address.checked_add(rest.into());
                self.status = address.ok_or(ChainError::Outside)?;
                return Ok(());
            }
            self.writable.pop();
        }
        Err(ChainError::NoStatus)
    }

    /// The index of its first descriptor, as given by the guest.
    #[must_use]
    pub(crate) const fn head(&self) -> u16 {
        self.head
    }

    /// Readable bytes behind the header.
    #[must_use]
    pub(crate) fn readable(&self) -> u64 {
        total(&self.readable) - HEADER as u64
    }

    /// Writable bytes before the status.
    #[must_use]
    pub(crate) fn writable(&self) -> u64 {
        total(&self.writable)
    }

    /// The header.
    ///
    /// # Errors
    /// When the memory no longer has it.
    pub(crate) fn header(&self, memory: &GuestMemory) -> Result<BlkHeader, ChainError> {
        self.bytes(memory, 0).map(BlkHeader::parse)
    }

    /// The segment of a discard or write-zeroes, if there is exactly one.
    ///
    /// # Errors
    /// When the memory no longer has it.
    pub(crate) fn segment(&self, memory: &GuestMemory) -> Result<Option<[u8; HEADER]>, ChainError> {
        if self.readable() != HEADER as u64 {
            return Ok(None);
        }
        self.bytes(memory, HEADER as u64).map(Some)
    }

    fn bytes(&self, memory: &GuestMemory, skip: u64) -> Result<[u8; HEADER], ChainError> {
        let mut bytes = [0; HEADER];
        copy_out(memory, &self.readable, skip, &mut bytes).map_err(|_| ChainError::Outside)?;
        Ok(bytes)
    }

    /// Copies the content to write.
    pub(super) fn payload(
        &self,
        memory: &GuestMemory,
        payload: &mut [u8],
    ) -> Result<(), ChainError> {
        copy_out(memory, &self.readable, HEADER as u64, payload).map_err(|_| ChainError::Outside)
    }

    /// The buffers for the answer.
    pub(super) fn answer(&mut self, with_data: bool) -> AnswerBuffers {
        AnswerBuffers {
            head: self.head,
            data: if with_data {
                std::mem::take(&mut self.writable)
            } else {
                Vec::new()
            },
            status: self.status,
        }
    }

    /// Writes the answer at once.
    pub(super) fn answer_now(
        &self,
        memory: &GuestMemory,
        data: &[u8],
        status: Status,
    ) -> Result<u32, OutsideMemory> {
        write_answer(memory, &self.writable, data, self.status, status)
    }
}

/// The buffers for a later answer.
#[derive(Debug)]
pub(super) struct AnswerBuffers {
    pub(super) head: u16,
    data: Vec<Segment>,
    status: GuestAddress,
}

impl AnswerBuffers {
    /// Writes the answer. Returns the number of bytes written to the guest's memory.
    pub(super) fn write(
        &self,
        memory: &GuestMemory,
        data: &[u8],
        status: Status,
    ) -> Result<u32, OutsideMemory> {
        write_answer(memory, &self.data, data, self.status, status)
    }
}

fn write_answer(
    memory: &GuestMemory,
    segments: &[Segment],
    data: &[u8],
    at: GuestAddress,
    status: Status,
) -> Result<u32, OutsideMemory> {
    let copied = copy_in(memory, segments, data)?;
    memory
        .write_obj(status.code(), at)
        .map_err(|_| OutsideMemory)?;
    Ok(u32::try_from(copied).map_or(u32::MAX, |n| n.saturating_add(1)))
}

// Buffers in the guest's memory. Their content may change at any moment, so it is copied before it is checked.

/// A piece of a buffer, as a descriptor names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Its guest-physical address.
    pub address: GuestAddress,
    /// Bytes.
    pub length: u32,
}

/// The guest's memory no longer has the buffer, or its content was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutsideMemory;

impl Segment {
    /// Does the memory have all of it?
    fn lies_in(self, memory: &GuestMemory) -> bool {
        usize::try_from(self.length).is_ok_and(|length| memory.check_range(self.address, length))
    }
}

/// Bytes of all segments together.
pub(super) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|s| u64::from(s.length)).sum()
}

/// Copies out of the segments, after `skip` bytes, until `buf` is full.
fn copy_out(
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
    // A part that was lost meanwhile was read as zero.
    if rest.is_empty() && !is_lost(memory) {
        Ok(())
    } else {
        Err(OutsideMemory)
    }
}

/// Copies `content` into the segments, as far as it fits. Returns the number of bytes copied.
fn copy_in(
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

/// The places of the bytes after the first `skip`.
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
