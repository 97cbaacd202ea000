//! Files, buffers, and a count of what calls returned.

use std::fs::File;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

pub(super) const MIB: usize = 1 << 20;
/// What the path cases move.
pub(super) const SIZE: usize = 4 * MIB;
/// In pieces of this size.
pub(super) const PIECE: usize = 64 << 10;

/// An aligned piece of memory, for direct I/O.
pub(super) struct Buffer(Vec<u8>, usize);

impl Buffer {
    pub(super) fn new(size: usize) -> Self {
        let space = vec![0x5a; size + 4096];
        let start = space.as_ptr().align_offset(4096);
        let mut buffer = Self(space, start);
        buffer.get(size).fill(0xa5);
        buffer
    }

    pub(super) fn get(&mut self, size: usize) -> &mut [u8] {
        &mut self.0[self.1..self.1 + size]
    }
}

pub(super) fn open(path: &Path, flags: OFlags) -> File {
    let mode = Mode::from_raw_mode(0o644);
    File::from(rustix::fs::open(path, flags | OFlags::CREATE, mode).unwrap())
}

/// Makes a file of `size` bytes and leaves it on the disk.
pub(super) fn make(path: &Path, size: usize) {
    use std::io::Write;
    let mut file = open(path, OFlags::WRONLY | OFlags::TRUNC);
    let mut buffer = Buffer::new(MIB);
    for _ in 0..size / MIB {
        file.write_all(buffer.get(MIB)).unwrap();
    }
    file.sync_all().unwrap();
}

/// What calls returned.
#[derive(Default)]
pub(super) struct Tally {
    pub bytes: usize,
    pub operations: usize,
}

impl Tally {
    pub(super) fn add(&mut self, moved: usize) {
        assert!(moved > 0);
        self.bytes += moved;
        self.operations += 1;
    }
}
