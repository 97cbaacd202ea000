//! One step: a read or a change of a disk, checked.

use super::cache_model::{CacheModel, SIZES, VM_OF};
use super::op::{Offer, Op};
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::block_dev::BlockDevice;
use justitia_guest_protocol::puts::Verdict;
use std::ops::Range;

impl CacheModel {
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
            Op::Put(d, p, b, offer) => self.put(d, p, b.into(), offer),
            Op::PutRun(d, p, b, n) => self.put_run(d, p, b.into(), n.into()),
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

    /// A guest offers a block. What is accepted is what the disk holds, and was read or written since it was accepted last.
    fn put(&mut self, d: usize, p: usize, b: usize, offer: Offer) {
        let block = u64::try_from(b).unwrap();
        let pool = self.pool(d, p);
        if matches!(offer, Offer::Read | Offer::Forged) {
            let mut buf = [0xAB; BLOCK_SIZE];
            // Beyond the end and from a disk that fails nothing is read: the offer is made all the same.
            let _ = self.disks[d].read_for(pool, &mut buf, block * BLOCK_BYTES);
        }
        let truth = block_of(&self.truth[d], b);
        let content = match offer {
            Offer::Read | Offer::Unread => truth,
            Offer::Stale => block_of(&self.older[d], b),
            Offer::OfAnotherDisk => block_of(&self.truth[(d + 1) % 3], b),
            Offer::OfAnotherBlock => block_of(&self.truth[d], b + 1),
            Offer::Forged => truth.map(|mut bytes| {
                bytes[b % BLOCK_SIZE] ^= 1;
                bytes
            }),
        };
        let content = content.unwrap_or([0; BLOCK_SIZE]);
        if self.offer(d, p, b, &content) {
            let again = self.disks[d].offer(pool, block, &content);
            assert_ne!(again, Verdict::Accepted, "disk {d}, block {b}: twice");
        }
        // A pool of another VM is refused.
        let other = self.pools[(1 - VM_OF[d]) * 3 + p];
        let refused = self.disks[d].offer(other, block, &content);
        assert_ne!(refused, Verdict::Accepted);
    }

    /// Blocks that were read together are put in messages.
    fn put_run(&mut self, d: usize, p: usize, b: usize, count: usize) {
        let whole = SIZES[d] / BLOCK_SIZE;
        let blocks = b.min(whole)..(b + count).min(whole);
        let mut buf = vec![0; blocks.len() * BLOCK_SIZE];
        let off = u64::try_from(blocks.start * BLOCK_SIZE).unwrap();
        let _ = self.disks[d].read_for(self.pool(d, p), &mut buf, off);
        // Some of them are another block's content, as one cannot be its neighbour's.
        let wrong = |b: usize| if b % 16 == 5 { b / 2 } else { b };
        let offered = blocks.map(|b| (b, block_of(&self.truth[d], wrong(b)).unwrap()));
        let offered: Vec<_> = offered.collect();
        self.offer_over_port(d, u32::try_from(p).unwrap(), &offered);
    }

    /// Is it accepted?
    fn offer(&mut self, d: usize, p: usize, b: usize, content: &Block) -> bool {
        let truth = block_of(&self.truth[d], b);
        let block = u64::try_from(b).unwrap();
        let verdict = self.disks[d].offer(self.pool(d, p), block, content);
        let beyond = verdict == Verdict::OutOfRange;
        assert_eq!(beyond, truth.is_none(), "disk {d}, block {b}: {verdict:?}");
        let accepted = verdict == Verdict::Accepted;
        assert!(
            !accepted || truth == Some(*content),
            "disk {d}, block {b} is wrong"
        );
        self.accepted += u64::from(accepted);
        accepted
    }
}

/// A whole block; `None` beyond the end.
fn block_of(bytes: &[u8], block: usize) -> Option<Block> {
    let at = block * BLOCK_SIZE;
    bytes.get(at..at + BLOCK_SIZE)?.try_into().ok()
}
