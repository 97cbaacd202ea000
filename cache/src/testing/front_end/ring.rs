//! A driver's side of a queue: request slots with indirect descriptors, as Linux makes them.

use crate::frontend::Budget;
use crate::vhost::{GuestMemory, GuestRegion, map, sealed};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};
use vhost::VhostUserMemoryRegionInfo;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// Kinds of requests.
pub mod kind {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Flush.
    pub const FLUSH: u32 = 4;
    /// The name of the disk.
    pub const GET_ID: u32 = 8;
    /// Discard.
    pub const DISCARD: u32 = 11;
    /// Write zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// The data of a discard or write-zeroes of one range.
#[must_use]
pub fn range(sector: u64, sectors: u32, flags: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    bytes
}

/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Where the parts of a slot are.
const STATUS: u64 = 16;
const TABLE: u64 = 32;
const DATA: u64 = 4096;
/// The status before the device has written one.
const NO_STATUS: u8 = 0xff;
/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;

/// A request. Data that is written lies in its slot already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlkRequest {
    /// Its operation: one of [`kind`].
    pub kind: u32,
    /// The I/O priority.
    pub priority: u32,
    /// The first sector.
    pub sector: u64,
    /// Bytes of data.
    pub bytes: u32,
}

impl BlkRequest {
    /// One of this kind, without a priority.
    #[must_use]
    pub const fn new(kind: u32, sector: u64, bytes: u32) -> Self {
        Self {
            kind,
            priority: 0,
            sector,
            bytes,
        }
    }

    /// As of a container with this tag, with a hint of a best-effort priority.
    #[must_use]
    pub const fn tagged(self, tag: u32) -> Self {
        let priority = 2 << 13 | tag << 3;
        Self { priority, ..self }
    }
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Its slot.
    pub slot: u16,
    /// 0 when all went well.
    pub status: u8,
    /// Bytes that the device says it has written.
    pub written: u32,
}

/// A queue, as its driver has it.
pub struct DriverQueue {
    /// The guest tells that there are requests.
    pub kick: EventFd,
    /// The device tells that there are answers.
    pub call: EventFd,
    /// The device tells that the ring is broken.
    pub error: EventFd,
    memory: Arc<GuestMemory>,
    base: u64,
    size: u16,
    slot: u64,
    next_available: u16,
    last_used: u16,
    free: Vec<u16>,
}

fn other(e: vm_memory::GuestMemoryError) -> io::Error {
    io::Error::other(e)
}

impl DriverQueue {
    /// Forgets everything, as a driver does that resets its device.
    ///
    /// # Errors
    /// None, as the memory has it.
    pub fn reset(&mut self) -> io::Result<()> {
        let zeroes = vec![0; usize::try_from(QUEUE_BYTES).map_err(io::Error::other)?];
        self.write(self.base, &zeroes)?;
        (self.next_available, self.last_used) = (0, 0);
        self.free = (0..self.size).rev().collect();
        let _ = (self.call.read(), self.error.read());
        Ok(())
    }

    /// A queue whose rings and slots begin at `at`.
    pub(super) fn new(guest: &Guest, at: u64, options: FrontEndOptions) -> io::Result<Self> {
        Ok(Self {
            kick: EventFd::new(EFD_NONBLOCK)?,
            call: EventFd::new(EFD_NONBLOCK)?,
            error: EventFd::new(EFD_NONBLOCK)?,
            memory: Arc::clone(&guest.memory),
            base: at,
            size: options.queue_size,
            slot: slot_size(options.data),
            next_available: 0,
            last_used: 0,
            free: (0..options.queue_size).rev().collect(),
        })
    }

    /// Entries.
    #[must_use]
    pub const fn size(&self) -> u16 {
        self.size
    }

    /// Where the guest has the descriptors, the available and the used ring.
    #[must_use]
    pub fn addresses(&self) -> (u64, u64, u64) {
        let available = self.base + DESCRIPTOR * u64::from(self.size);
        let used = (available + 6 + 2 * u64::from(self.size)).next_multiple_of(4096);
        (self.base, available, used)
    }

    /// Where the guest has the data of a slot.
    #[must_use]
    pub fn data(&self, slot: u16) -> u64 {
        self.slot_address(slot) + DATA
    }

    fn slot_address(&self, slot: u16) -> u64 {
        self.base + QUEUE_BYTES + self.slot * u64::from(slot)
    }

    /// Slots that are free.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// Takes a slot, for data to be put into.
    pub fn take_slot(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// The index of the used ring.
    ///
    /// # Errors
    /// None, as the memory has it.
    pub fn used_index(&self) -> io::Result<u16> {
        let at = GuestAddress(self.addresses().2 + 2);
        self.memory.load(at, Ordering::Acquire).map_err(other)
    }

    /// Makes a request available. [`kick`](Self::kick_if_wanted) must follow.
    ///
    /// # Errors
    /// None, as the memory has it.
    pub fn submit(&mut self, slot: u16, request: BlkRequest) -> io::Result<()> {
        let at = self.slot_address(slot);
        let mut header = [0; 16];
        header[..4].copy_from_slice(&request.kind.to_le_bytes());
        header[4..8].copy_from_slice(&request.priority.to_le_bytes());
        header[8..].copy_from_slice(&request.sector.to_le_bytes());
        self.write(at, &header)?;
        self.write(at + STATUS, &[NO_STATUS])?;
        let reads = [kind::IN, kind::GET_ID].contains(&request.kind);
        let flags = if reads { WRITE | NEXT } else { NEXT };
        let mut table = vec![Descriptor::new(at, 16, NEXT, 1)];
        if request.bytes > 0 {
            table.push(Descriptor::new(at + DATA, request.bytes, flags, 2));
        }
        table.push(Descriptor::new(at + STATUS, 1, WRITE, 0));
        let mut place = at + TABLE;
        for descriptor in &table {
            self.write_descriptor(place, *descriptor)?;
            place += DESCRIPTOR;
        }
        let bytes = u32::try_from(place - at - TABLE).map_err(io::Error::other)?;
        let head = Descriptor::new(at + TABLE, bytes, INDIRECT, 0);
        self.write_descriptor(self.base + DESCRIPTOR * u64::from(slot), head)?;
        self.make_available(slot)
    }

    /// Writes a descriptor of the ring's own table, valid or not.
    ///
    /// # Errors
    /// When it lies outside the memory.
    pub fn set_descriptor(&self, index: u16, descriptor: Descriptor) -> io::Result<()> {
        self.write_descriptor(self.base + DESCRIPTOR * u64::from(index), descriptor)
    }

    fn write_descriptor(&self, at: u64, descriptor: Descriptor) -> io::Result<()> {
        self.memory
            .write_obj(descriptor, GuestAddress(at))
            .map_err(other)
    }

    /// Puts a head into the available ring.
    ///
    /// # Errors
    /// None, as the memory has it.
    pub fn make_available(&mut self, head: u16) -> io::Result<()> {
        let available = self.addresses().1;
        let at = available + 4 + 2 * u64::from(self.next_available % self.size);
        self.memory
            .write_obj(head, GuestAddress(at))
            .map_err(other)?;
        self.set_available(self.next_available.wrapping_add(1))
    }

    /// Sets the index of the available ring, valid or not.
    ///
    /// # Errors
    /// None, as the memory has it.
    pub fn set_available(&mut self, index: u16) -> io::Result<()> {
        self.next_available = index;
        let at = GuestAddress(self.addresses().1 + 2);
        self.memory
            .store(index, at, Ordering::Release)
            .map_err(other)
    }

    /// Tells the device of requests, if it wants to know, by its event index.
    ///
    /// # Errors
    /// When the eventfd cannot be written.
    pub fn kick_if_wanted(&self, before: u16) -> io::Result<()> {
        fence(Ordering::SeqCst);
        let used = self.addresses().2;
        let at = used + 4 + 8 * u64::from(self.size);
        let event: u16 = self
            .memory
            .load(GuestAddress(at), Ordering::Relaxed)
            .map_err(other)?;
        let now = self.next_available;
        if now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before) {
            self.kick.write(1)?;
        }
        Ok(())
    }

    /// The index of the available ring.
    #[must_use]
    pub const fn available_index(&self) -> u16 {
        self.next_available
    }

    /// Takes the answers that there are. Their slots are free then; what lies in them stays until they are used again.
    ///
    /// # Errors
    /// When the device names a slot that there is not.
    pub fn completed(&mut self, found: &mut Vec<Completed>) -> io::Result<()> {
        let used = self.addresses().2;
        let index = self.used_index()?;
        while self.last_used != index {
            let at = used + 4 + 8 * u64::from(self.last_used % self.size);
            let [id, written] = self
                .memory
                .read_obj::<[u32; 2]>(GuestAddress(at))
                .map_err(other)?;
            let slot = u16::try_from(id)
                .ok()
                .filter(|slot| *slot < self.size)
                .ok_or(io::ErrorKind::InvalidData)?;
            let status = GuestAddress(self.slot_address(slot) + STATUS);
            found.push(Completed {
                slot,
                status: self.memory.read_obj(status).map_err(other)?,
                written,
            });
            self.free.push(slot);
            self.last_used = self.last_used.wrapping_add(1);
        }
        Ok(())
    }

    /// Waits until the device tells that there are answers, at most `timeout`. `false` when that has passed.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        // Asks for a signal with the next answer.
        let at = GuestAddress(self.addresses().1 + 4 + 2 * u64::from(self.size));
        self.memory
            .store(self.last_used, at, Ordering::Relaxed)
            .map_err(other)?;
        fence(Ordering::SeqCst);
        let deadline = Instant::now() + timeout;
        while self.used_index()? == self.last_used {
            // A signal may tell of nothing new.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.is_signalled(left)? {
                return Ok(self.used_index()? != self.last_used);
            }
        }
        Ok(true)
    }

    /// Waits for a signal of the device, at most `timeout`, and takes it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn is_signalled(&self, timeout: Duration) -> io::Result<bool> {
        let signalled = wait_for(&self.call, timeout)?;
        let _ = self.call.read();
        Ok(signalled)
    }

    /// Waits until the device tells that the ring is broken, at most `timeout`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn is_broken(&self, timeout: Duration) -> io::Result<bool> {
        wait_for(&self.error, timeout)
    }

    /// Puts data into a slot.
    ///
    /// # Errors
    /// When it lies outside the memory.
    pub fn write_data(&self, slot: u16, data: &[u8]) -> io::Result<()> {
        self.write(self.data(slot), data)
    }

    /// Reads the data of a slot.
    ///
    /// # Errors
    /// When it lies outside the memory.
    pub fn read_data(&self, slot: u16, data: &mut [u8]) -> io::Result<()> {
        self.memory
            .read_slice(data, GuestAddress(self.data(slot)))
            .map_err(other)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory
            .write_slice(bytes, GuestAddress(at))
            .map_err(other)
    }

    /// One request, from its submission to its answer: its slot and status.
    ///
    /// # Errors
    /// When there is no answer within 20 s, or no free slot.
    pub fn execute(&mut self, request: BlkRequest, data: &[u8]) -> io::Result<Completed> {
        let slot = self.take_slot().ok_or(io::ErrorKind::WouldBlock)?;
        self.write_data(slot, data)?;
        let before = self.available_index();
        self.submit(slot, request)?;
        self.kick_if_wanted(before)?;
        let mut found = Vec::new();
        while found.is_empty() {
            if !self.wait(Duration::from_secs(20))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.completed(&mut found)?;
        }
        found
            .into_iter()
            .find(|completed| completed.slot == slot)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn wait_for(event: &EventFd, timeout: Duration) -> io::Result<bool> {
    // SAFETY: the eventfd owns the descriptor and is borrowed.
    let event = unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) };
    let mut waiting = [PollFd::from_borrowed_fd(event, PollFlags::IN)];
    let timeout = timeout.try_into().map_err(io::Error::other)?;
    Ok(poll(&mut waiting, Some(&timeout))? > 0)
}

// The guest's memory: one file, with the rings at its beginning.

/// Bytes of a queue's rings: descriptors, available and used, for at most 1024 entries.
pub const QUEUE_BYTES: u64 = 64 << 10;
/// Where the front end says that it has the guest's memory.
const USER_BASE: u64 = 1 << 40;

/// The memory of a guest.
#[derive(Clone)]
pub struct Guest {
    /// The memory, as the driver uses it.
    pub(crate) memory: Arc<GuestMemory>,
    file: Arc<File>,
    /// Where the guest has it.
    base: u64,
    size: u64,
}

/// Bytes of a request's slot, for this many bytes of data: a page for header, status and descriptors, and the data.
#[must_use]
pub fn slot_size(data: u64) -> u64 {
    4096 + data.next_multiple_of(4096)
}

impl Guest {
    /// Memory of this size, which the guest has at `base`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(base: u64, size: u64) -> io::Result<Self> {
        Self::of_file(sealed("guest", size)?, base, size)
    }

    /// Memory of this file, which the guest has at `base`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn of_file(file: File, base: u64, size: u64) -> io::Result<Self> {
        let budget = Budget::of_vm().for_front_end();
        let mapped = map(&file, 0, size, &budget).map_err(io::Error::other)?;
        let region = GuestRegion::new(mapped, base).ok_or(io::ErrorKind::InvalidInput)?;
        let memory = GuestMemory::from_regions(vec![region]).map_err(io::Error::other)?;
        Ok(Self {
            memory: Arc::new(memory),
            file: Arc::new(file),
            base,
            size,
        })
    }

    /// Memory whose file can be truncated.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new_unsealed(base: u64, size: u64) -> io::Result<Self> {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, size)?;
        Self::of_file(file.into(), base, size)
    }

    /// Truncates the file, if it can be.
    ///
    /// # Errors
    /// When it is sealed.
    pub fn truncate(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    /// The region, as a front end tells of it.
    #[must_use]
    pub fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: self.base,
            memory_size: self.size,
            userspace_addr: self.user(self.base),
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// The front end's address of what the guest has at `address`.
    #[must_use]
    pub const fn user(&self, address: u64) -> u64 {
        USER_BASE + address
    }

    /// Where the guest has it.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }
}

/// The properties of a front end and its driver.
#[derive(Clone, Copy, Debug)]
pub struct FrontEndOptions {
    /// Queues.
    pub queues: u16,
    /// Entries of a ring, and requests in flight.
    pub queue_size: u16,
    /// Bytes of data that a request has at most.
    pub data: u64,
    /// Keep track of requests in flight, so that a new back end can go on, where the back end offers it.
    pub tracking: bool,
    /// Features that the driver does not accept.
    pub without: u64,
    /// The file of the guest's memory can be truncated, as that of libblkio and cloud-hypervisor.
    pub can_shrink: bool,
}

impl Default for FrontEndOptions {
    fn default() -> Self {
        Self {
            queues: 1,
            queue_size: 32,
            data: 64 << 10,
            tracking: true,
            without: 0,
            can_shrink: false,
        }
    }
}
