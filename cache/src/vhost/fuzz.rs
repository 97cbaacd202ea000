//! What a hostile guest can put into its memory, from a fuzzer's bytes.

use super::chain::{Chain, DescriptorTable};
use super::memory::GuestMemory;
use super::request::{Command, DeviceView};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

/// Bytes of the guest's memory, in two regions with a hole between them.
const MEMORY: usize = 128 << 10;
const HOLE: u64 = 1 << 20;
/// Bytes of the disk: more than the largest request.
const SIZE: u64 = (64 << 20) + 100;

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

    fn descriptor(&mut self) -> Descriptor {
        let (address, length) = (self.address(), self.length());
        let flags = u16::from(self.next() % 8);
        Descriptor::new(address, length, flags, u16::from(self.next() % 20))
    }
}

/// Fills a guest's memory from `data`, reads the chain there and checks what comes of it. Panics when something is
/// taken that should not be.
///
/// # Panics
/// When a request that is taken lies outside the memory or the disk.
pub fn read_a_chain(data: &[u8]) {
    let half = MEMORY / 2;
    let regions = [(GuestAddress(0), half), (GuestAddress(HOLE), half)];
    let Ok(memory) = GuestMemory::from_ranges(&regions) else {
        return;
    };
    let mut bits = Bits(data);
    let table = DescriptorTable {
        address: GuestAddress(bits.address()),
        entries: 1 << (bits.next() % 11),
    };
    let head = u16::from(bits.next() % 20);
    // Headers everywhere, descriptors where the table is, and where indirect ones may be.
    for at in 0..8 {
        let header = [
            bits.next() % 16,
            0,
            0,
            0,
            bits.next(),
            bits.next() & 0x5f,
            0,
            0,
        ];
        let sector = u64::from(bits.next()) << (bits.next() % 64);
        let _ = memory.write_slice(&header, GuestAddress(at * 128));
        let _ = memory.write_obj(sector, GuestAddress(at * 128 + 8));
    }
    let indirect = GuestAddress(u64::from(bits.next()) << 7);
    for place in [table.address, indirect] {
        for n in 0..16 {
            let at = place.0.checked_add(n * 16);
            at.map(|at| memory.write_obj(bits.descriptor(), GuestAddress(at)));
        }
    }
    let mut chain = Chain::default();
    if chain.read(&memory, table, head).is_err() {
        return;
    }
    let device = DeviceView {
        size: SIZE,
        read_only: bits.next() % 8 == 0,
    };
    check(&memory, &mut chain, device);
}

fn check(memory: &GuestMemory, chain: &mut Chain, device: DeviceView) {
    let header = chain.header(memory);
    assert!(header.is_ok(), "a header outside the memory was read");
    let Ok(header) = header else { return };
    let segment = chain.segment(memory).unwrap_or_default();
    let (readable, writable) = (chain.readable(), chain.writable());
    let command = header.command(device, readable, writable, segment);
    match command {
        Command::Read { offset, length }
        | Command::Write { offset, length }
        | Command::Discard { offset, length }
        | Command::WriteZeroes { offset, length, .. } => {
            assert!(offset.checked_add(length).is_some_and(|end| end <= SIZE));
            let read = matches!(command, Command::Read { .. });
            assert!(read || !device.read_only, "a change of a read-only disk");
        }
        _ => {}
    }
    if let Command::Write { length, .. } = command {
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
}
