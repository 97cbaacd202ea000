//! Memory of a hostile guest, from a fuzzer's bytes.

use super::chain::{Chain, DescriptorTable};
use super::memory::{GuestMemory, GuestRegion};
use super::memory::{map, sealed};
use super::request::{Command, DeviceView};
use crate::frontend::{Budget, Operation};
use std::io;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

/// Bytes of the guest's memory, in two regions with a hole between them.
const MEMORY: usize = 128 << 10;
const HOLE: u64 = 1 << 20;
/// Bytes of the disk: more than the largest request.
const SIZE: u64 = (64 << 20) + 100;

/// Where a driver that means well has its headers, its segments of discards, its table and its indirect one.
const HEADERS: u64 = 0;
const SEGMENTS: u64 = 0x1000;
const TABLE: u64 = 0x8000;
const INDIRECT: u64 = 0x9000;
/// Descriptors in each table.
const ENTRIES: u16 = 16;
/// From one header to the next, bytes; there are so many of both kinds.
const STEP: u64 = 128;
const PLACES: u64 = 8;

/// Flags of descriptors (virtio 1.2, 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT_FLAG: u16 = 4;

/// A source of small numbers.
struct Bits<'a>(&'a [u8]);

impl Bits<'_> {
    fn next(&mut self) -> u8 {
        match self.0 {
            [first, rest @ ..] => {
                self.0 = rest;
                *first
            }
            [] => 0,
        }
    }

    /// Where a driver that means well would do right, one in so many does not.
    fn is_hostile(&mut self) -> bool {
        self.next() % 16 == 15
    }

    /// One of these.
    fn one_of<T: Copy>(&mut self, of: [T; 8]) -> T {
        let [a, b, c, d, e, f, g, h] = of;
        match self.next() % 8 {
            0 => a,
            1 => b,
            2 => c,
            3 => d,
            4 => e,
            5 => f,
            6 => g,
            _ => h,
        }
    }

    /// An address: mostly in the memory, near an edge, or anywhere.
    fn address(&mut self) -> u64 {
        let near = u64::from(self.next()) << 4;
        match self.next() % 8 {
            0 => HOLE - near,
            1 => HOLE + near,
            2 => (MEMORY as u64 / 2).wrapping_sub(near),
            3 => u64::MAX - near,
            4 => near << 40,
            _ => near << 3,
        }
    }

    fn length(&mut self) -> u32 {
        let small = u32::from(self.next());
        match self.next() % 8 {
            0 => small,
            1 => u32::MAX - small,
            2 => 16,
            3 => 0,
            4 => 1,
            _ => small << 4,
        }
    }

    /// One that is anything.
    fn any_descriptor(&mut self) -> Descriptor {
        let (address, length) = (self.address(), self.length());
        let flags = u16::from(self.next() % 8);
        Descriptor::new(address, length, flags, u16::from(self.next() % 20))
    }

    /// One at `index` of a table: a header or a segment at first, then buffers, then the status.
    fn descriptor(&mut self, index: u16) -> Descriptor {
        if self.is_hostile() {
            return self.any_descriptor();
        }
        if index == 0 && self.next() % 4 == 3 {
            let length = 16 * u32::from(ENTRIES);
            return Descriptor::new(INDIRECT, length, INDIRECT_FLAG, 0);
        }
        let from = self.one_of([
            HEADERS, SEGMENTS, SEGMENTS, SEGMENTS, 0x2000, 0x2000, HOLE, HOLE,
        ]);
        let address = match index {
            0 => HEADERS,
            _ => from,
        } + u64::from(self.next()) % PLACES * STEP;
        let flags = match index {
            0 => NEXT,
            _ => self.one_of([
                NEXT,
                NEXT,
                WRITE,
                WRITE,
                WRITE,
                WRITE | NEXT,
                WRITE | NEXT,
                0,
            ]),
        };
        let length = match (index, flags) {
            (0, _) => 16,
            (_, WRITE) => self.one_of([1, 1, 1, 1, 1, 513, 512, 0]),
            _ => self.one_of([512, 512, 512, 1024, 4096, 16, 16, 511]),
        };
        Descriptor::new(address, length, flags, index + 1)
    }
}

/// Fills a guest's memory from `data`, reads the chain there and checks what comes of it. Returns whether it is a request of
/// a range of the disk.
///
/// # Panics
/// When a request that is taken lies outside the memory or the disk.
#[must_use]
pub fn read_a_chain(data: &[u8]) -> bool {
    let half = MEMORY / 2;
    let Ok(memory) = memory_of(half) else {
        return false;
    };
    let mut bits = Bits(data);
    fill_requests(&memory, &mut bits);
    let mut table = DescriptorTable {
        address: GuestAddress(TABLE),
        entries: ENTRIES,
    };
    let mut head = 0;
    if bits.is_hostile() {
        table.address = GuestAddress(bits.address());
        table.entries = 1 << (bits.next() % 11);
        head = u16::from(bits.next() % 20);
    }
    for place in [table.address.0, INDIRECT] {
        for n in 0..ENTRIES {
            let at = place.checked_add(u64::from(n) * 16);
            at.map(|at| memory.write_obj(bits.descriptor(n), GuestAddress(at)));
        }
    }
    let mut chain = Chain::default();
    if chain.read(&memory, table, head).is_err() {
        return false;
    }
    let device = DeviceView {
        size: SIZE,
        read_only: bits.next() % 8 == 7,
        write_through: false,
    };
    check(&memory, &mut chain, device)
}

/// Two regions of this size.
fn memory_of(half: usize) -> io::Result<GuestMemory> {
    let size = u64::try_from(half).map_err(io::Error::other)?;
    let budget = Budget::of_vm().for_front_end();
    let region = |start| {
        let file = sealed("fuzz", size)?;
        let mapped = map(&file, 0, size, &budget).map_err(io::Error::other)?;
        GuestRegion::new(mapped, start).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    };
    let regions = [region(0), region(HOLE)].into_iter();
    let regions = regions.collect::<io::Result<_>>()?;
    GuestMemory::from_regions(regions).map_err(io::Error::other)
}

/// Headers of requests, and segments of discards.
fn fill_requests(memory: &GuestMemory, bits: &mut Bits<'_>) {
    for n in 0..PLACES {
        let any = bits.next() % 16;
        let header = [
            bits.one_of([0, 0, 1, 1, 11, 11, 13, any]),
            0,
            0,
            0,
            bits.next(),
            bits.next() & 0x5f,
            0,
            0,
        ];
        let sector = u64::from(bits.next()) << bits.one_of([0, 1, 4, 8, 9, 10, 32, 60]);
        let at = HEADERS + n * STEP;
        let _ = memory.write_slice(&header, GuestAddress(at));
        let _ = memory.write_obj(sector, GuestAddress(at + 8));
        let sector = u64::from(bits.next()) << bits.one_of([0, 1, 4, 8, 9, 10, 32, 60]);
        let sectors = u32::from(bits.next()) << bits.one_of([0, 0, 1, 8, 12, 20, 24, 30]);
        let at = SEGMENTS + n * STEP;
        let _ = memory.write_obj(sector, GuestAddress(at));
        let _ = memory.write_obj(sectors, GuestAddress(at + 8));
        let _ = memory.write_obj(u32::from(bits.next() % 4), GuestAddress(at + 12));
    }
}

fn check(memory: &GuestMemory, chain: &mut Chain, device: DeviceView) -> bool {
    let header = chain.header(memory);
    assert!(header.is_ok(), "a header outside the memory was read");
    let Ok(header) = header else { return false };
    let segment = chain.segment(memory).unwrap_or_default();
    let (readable, writable) = (chain.readable(), chain.writable());
    let command = header.command(device, readable, writable, segment);
    let of_a_range = match command {
        Command::Do(operation, offset, length) if operation != Operation::Flush => {
            assert!(offset.checked_add(length).is_some_and(|end| end <= SIZE));
            let read = operation == Operation::Read;
            assert!(read || !device.read_only, "a change of a read-only disk");
            true
        }
        _ => false,
    };
    if let Command::Do(Operation::Write { .. }, _, length) = command {
        let mut payload = vec![0; usize::try_from(length).unwrap_or(0)];
        assert!(
            chain.payload(memory, &mut payload).is_ok(),
            "a payload outside"
        );
    }
    let answer = chain.answer(true);
    let data = vec![7; usize::try_from(writable.min(1 << 16)).unwrap_or(0)];
    let written = answer.write(memory, &data, super::request::Status::Ok);
    assert!(
        written.is_ok_and(|n| u64::from(n) <= writable + 1),
        "an answer outside the memory"
    );
    of_a_range
}
