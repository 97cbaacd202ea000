//! One step: a read or a change of a disk, checked.

use super::op::Op;
use super::world::{SIZES, VM_OF, World};
use crate::block::BLOCK_SIZE;
use crate::block_dev::Disk;
use std::ops::Range;

impl World {
    pub(super) fn step(&mut self, op: &Op) {
        match *op {
            Op::Read(d, o, l) | Op::ReadFor(d, _, o, l) | Op::Try(d, o, l) => {
                self.read(op, d, self.range(d, o, l));
            }
            Op::Slow(d, p, b, kind) => self.slow(d, p, b.into(), kind),
            Op::During(d, p, ref overlap) => self.during(d, p, overlap),
            Op::Get(d, p, b) => {
                let mut buf = [0xAB; BLOCK_SIZE];
                if self.disks[d].get(self.pool(d, p), b.into(), &mut buf) {
                    let at = usize::from(b) * BLOCK_SIZE;
                    self.check(d, at..at + BLOCK_SIZE, &buf);
                }
            }
            Op::Put(d, p, b) => self.put(d, p, b.into()),
            Op::PutRun(d, p, b, n) => {
                (0..usize::from(n)).for_each(|i| self.put(d, p, usize::from(b) + i));
            }
            Op::Write(d, o, l) => {
                let range = self.range(d, o, l);
                let new = self.fresh(range.len());
                let off = u64::try_from(range.start).unwrap();
                let ok = self.disks[d].write_at(&new, off, l % 3 == 0).is_ok();
                self.change(d, range, &new, ok);
            }
            Op::Discard(d, o, l) | Op::Zero(d, o, l) => {
                self.clear(op, d, self.range(d, o, l), l % 2 == 0);
            }
            Op::Prefetch(d, o, l) => {
                let range = self.range(d, o, l);
                let len = u64::try_from(range.len()).unwrap();
                // A backing store that fails now fails the hint; the read after it counts.
                let _ = self.disks[d].prefetch(u64::try_from(range.start).unwrap(), len);
            }
            Op::Outside(d, o, l) => {
                let range = self.range(d, o, l);
                let new = self.fresh(range.len());
                let off = u64::try_from(range.start).unwrap();
                self.backing[d].ram.write_at(&new, off, false).unwrap();
                drop(self.disks[d].begin_write(off, u64::try_from(new.len()).unwrap()));
                self.change(d, range, &new, true);
            }
            Op::Migrate(d, a, b, p) => {
                let blocks = u64::from(a.min(b))..u64::from(a.max(b));
                let to = self.pool(d, p);
                self.cache.migrate(self.ids[d], blocks, to).unwrap();
            }
            _ => self.reconfigure(op),
        }
    }

    fn read(&mut self, op: &Op, d: usize, range: Range<usize>) {
        let off = u64::try_from(range.start).unwrap();
        let mut buf = vec![0xAB; range.len()];
        let ok = match op {
            Op::Try(..) => self.disks[d].read_cached(&mut buf, off),
            Op::ReadFor(_, p, ..) => self.disks[d]
                .read_for(self.pool(d, *p), &mut buf, off)
                .is_ok(),
            _ => self.disks[d].read_at(&mut buf, off).is_ok(),
        };
        if ok {
            self.check(d, range, &buf);
        }
    }

    fn clear(&mut self, op: &Op, d: usize, range: Range<usize>, may_unmap: bool) {
        let off = u64::try_from(range.start).unwrap();
        let len = u64::try_from(range.len()).unwrap();
        let disk = &self.disks[d];
        let ok = match op {
            Op::Discard(..) => disk.discard(off, len),
            _ => disk.write_zeroes(off, len, false, may_unmap),
        };
        let zeroes = vec![0; range.len()];
        self.change(d, range, &zeroes, ok.is_ok());
    }

    fn put(&self, d: usize, p: usize, b: usize) {
        let block = u64::try_from(b).unwrap();
        let at = b * BLOCK_SIZE;
        let content = self.truth[d].get(at..at + BLOCK_SIZE);
        let content = content.map_or([0; BLOCK_SIZE], |c| c.try_into().unwrap());
        let done = self.disks[d].put(self.pool(d, p), block, &content);
        assert!(!done || at + BLOCK_SIZE <= SIZES[d], "put beyond the end");
        // A pool of another VM is refused.
        let other = self.pools[(1 - VM_OF[d]) * 3 + p];
        assert!(!self.disks[d].put(other, block, &[0xBA; BLOCK_SIZE]));
    }
}
