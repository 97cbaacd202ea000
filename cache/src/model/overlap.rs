//! Concurrent operations: reads and writes of a disk during which it is read, written, put or taken away. Also reads of the SSD
//! store whose block is written, evicted and put again meanwhile.
//!
//! These mutants were made by hand, one at a time. Each is caught within the first sequence of 2,500 steps:
//! nothing is removed when a change begins; of what it touches only whole blocks are removed; the last of the write
//! epochs that it touches is not advanced; the check of the fill token is left out, or looks only at the beginnings of
//! writes, or only at those in flight; the epoch does not advance; a change ends before the backing store is
//! written; a discard or a write of zeroes is no change; a fill takes its token after the read instead
//! of before; a disk that is removed is not closed. A check made before the shard is locked instead of under it is
//! caught by the threads of [`super::stress`]; a change that ends when it is submitted to a ring, or never, by
//! `nbd::test::image`. The order in which a change begins and removes cannot be swapped: what removes wants the
//! change ([`crate::disk::WriteGuard`]). Removing once more when a change ends would change nothing: from its
//! beginning to its end nothing is filled.

use super::cache_model::CacheModel;
use super::fault::{FaultDisk, Moment};
use super::op::{Other, Overlap};
use crate::block::{self, BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::block_dev::BlockDevice;
use crate::cache::Cache;
use crate::config::{PoolSpec, StoreKind};
use crate::disk::CachedDisk;
use crate::ids::{DiskId, PoolId};
use justitia_guest_protocol::puts::Verdict;
use justitia_share::Weight;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// The result of the other operation.
enum Found {
    Bytes(Vec<u8>),
    /// A put, and whether it was taken.
    Put(u64, bool),
    Nothing,
}

impl CacheModel {
    /// Reads see each byte as it was before or as it is afterwards; what is read after all of it is what was
    /// written.
    pub(super) fn during(&mut self, d: usize, p: usize, overlap: &Overlap) {
        let Overlap { moment, other, .. } = *overlap;
        let first = self.range(d, overlap.first.0, overlap.first.1);
        let second = self.range(d, overlap.second.0, overlap.second.1);
        let around = first.start.min(second.start)..first.end.max(second.end);
        let was = |range: &Range<usize>| self.truth[d][range.clone()].to_vec();
        let (first_was, second_was) = (was(&first), was(&second));
        let new = self.fresh(first.len());
        if matches!(other, Other::Put) {
            self.hold(d, offset(&second) / BLOCK_BYTES);
        }
        let meanwhile = Beside {
            cache: self.cache.clone(),
            disk: self.disks[d].clone(),
            id: self.ids[d],
            pool: self.pool(d, p),
            backing: self.backing[d].clone(),
            range: second.clone(),
            new: self.fresh(second.len()),
        };
        let found = Arc::new(Mutex::new(None));
        let there = found.clone();
        let then = move || *there.lock() = Some(meanwhile.happens(other));
        *self.backing[d].during.lock() = Some((moment, Box::new(then)));

        let off = offset(&first);
        let read = if moment == Moment::Read {
            let mut buf = vec![0xAB; first.len()];
            let ok = self.disks[d]
                .read_for(self.pool(d, p), &mut buf, off)
                .is_ok();
            ok.then_some(buf)
        } else {
            let ok = self.disks[d].write_at(&new, off, false).is_ok();
            self.change(d, first.clone(), &new, ok);
            None
        };
        *self.backing[d].during.lock() = None;
        let found = found.lock().take();
        if found.is_some() && matches!(other, Other::Write | Other::Discard) {
            // The backing store tells which of two writes was last.
            self.look_up(d, around);
        }
        if let Some(read) = read {
            self.either(d, &first_was, first.clone(), &read);
        }
        match found {
            Some(Found::Bytes(bytes)) => self.either(d, &second_was, second.clone(), &bytes),
            Some(Found::Put(block, taken)) if moment != Moment::Read => {
                let touched = block::touching(off, len(&first));
                assert!(!(taken && touched.contains(&block)), "a put into a write");
            }
            Some(Found::Nothing) if matches!(other, Other::Reattach) => self.reattach(d),
            _ => {}
        }
        for range in [first, second] {
            let mut buf = vec![0xAB; range.len()];
            if self.disks[d].read_at(&mut buf, offset(&range)).is_ok() {
                self.check(d, range, &buf);
            }
        }
    }

    /// Reads a block, so that it is known what the guest holds; one that cannot be read is not.
    fn hold(&self, d: usize, block: u64) {
        let mut held = [0; BLOCK_SIZE];
        let _ = self.disks[d].read_at(&mut held, block * BLOCK_BYTES);
    }

    /// Is every byte what it was before, or what it is now?
    fn either(&self, d: usize, before: &[u8], range: Range<usize>, found: &[u8]) {
        for ((i, was), byte) in range.zip(before).zip(found) {
            let now = self.truth[d][i];
            assert!(
                *byte == *was || *byte == now,
                "disk {d}, byte {i}: expected {was:#x} or {now:#x}, found {byte:#x}"
            );
        }
    }

    /// Reads a block; should that go to the SSD, the block is written meanwhile. The read must not return what
    /// was there before: when it ended, the write had.
    pub(super) fn slow(&mut self, d: usize, p: usize, b: usize, kind: u8) {
        let range = b * BLOCK_SIZE..(b + 1) * BLOCK_SIZE;
        if range.end > self.truth[d].len() {
            return;
        }
        let new = self.fresh(BLOCK_SIZE);
        let written = Arc::new(Mutex::new(None));
        let meanwhile = Meanwhile {
            cache: self.cache.clone(),
            disk: self.disks[d].clone(),
            id: self.ids[d],
            pools: (0..3).map(|p| self.pool(d, p)).collect(),
            backing: self.backing[d].clone(),
            block: u64::try_from(b).unwrap(),
            new: new.clone().try_into().unwrap(),
            written: written.clone(),
            kind,
        };
        *self.ssd.meanwhile.lock() = Some(Box::new(move |off| meanwhile.happens(off)));
        let off = u64::try_from(range.start).unwrap();
        let mut buf = vec![0xAB; BLOCK_SIZE];
        let read = self.disks[d].read_for(self.pool(d, p), &mut buf, off);
        *self.ssd.meanwhile.lock() = None;
        if let Some(ok) = written.lock().take() {
            self.change(d, range.clone(), &new, ok);
        }
        if read.is_ok() {
            self.check(d, range, &buf);
        }
    }
}

fn offset(range: &Range<usize>) -> u64 {
    u64::try_from(range.start).unwrap()
}

fn len(range: &Range<usize>) -> u64 {
    u64::try_from(range.len()).unwrap()
}

/// A concurrent operation on a disk during a read or write.
struct Beside {
    cache: Arc<Cache>,
    disk: Arc<CachedDisk>,
    id: DiskId,
    pool: PoolId,
    backing: Arc<FaultDisk>,
    range: Range<usize>,
    new: Vec<u8>,
}

impl Beside {
    fn happens(self, other: Other) -> Found {
        let (off, len) = (offset(&self.range), len(&self.range));
        // A failed operation has its effect on the backing store, whose content is used then.
        match other {
            Other::Read => {
                let mut buf = vec![0xAB; self.range.len()];
                let read = self.disk.read_for(self.pool, &mut buf, off);
                return read.map_or(Found::Nothing, |()| Found::Bytes(buf));
            }
            Other::Write => drop(self.disk.write_at(&self.new, off, false)),
            Other::Discard => drop(self.disk.discard(off, len)),
            Other::Put => {
                let block = off / BLOCK_BYTES;
                let mut content = [0; BLOCK_SIZE];
                let ram = &self.backing.ram;
                if ram.read_at(&mut content, block * BLOCK_BYTES).is_ok() {
                    let verdict = self.disk.offer(self.pool, block, &content);
                    return Found::Put(block, verdict == Verdict::Accepted);
                }
            }
            Other::Reattach => self.cache.remove_disk(self.id).unwrap(),
        }
        Found::Nothing
    }
}

/// A concurrent operation on a block during its read.
struct Meanwhile {
    cache: Arc<Cache>,
    disk: Arc<CachedDisk>,
    id: DiskId,
    /// The VM's.
    pools: Vec<PoolId>,
    backing: Arc<FaultDisk>,
    block: u64,
    new: Block,
    /// Whether the write succeeded, once it has happened.
    written: Arc<Mutex<Option<bool>>>,
    kind: u8,
}

impl Meanwhile {
    fn happens(self, off: u64) {
        let at = self.block * BLOCK_BYTES;
        let ok = self.disk.write_at(&self.new, at, false).is_ok();
        *self.written.lock() = Some(ok);
        if !ok || self.kind == 0 {
            return;
        }
        // Its extent is given away.
        for pool in &self.pools {
            self.cache.drop_blocks(*pool, StoreKind::Ssd).unwrap();
        }
        if self.kind == 1 {
            return;
        }
        // And filled anew, until the block is where it was before, with other bytes.
        let pool = self.pools[0];
        let spec = PoolSpec::new(None, Some(Weight::default())).unwrap();
        self.cache.set_pool(pool, spec).unwrap();
        let slot = off / BLOCK_BYTES;
        for n in 0..64 * 8 {
            let here = n % 64 == slot % 64;
            let block = if here {
                self.block
            } else {
                (self.block + 1 + n % 64) % 80
            };
            let mut content = [0; BLOCK_SIZE];
            let ram = &self.backing.ram;
            ram.read_at(&mut content, block * BLOCK_BYTES).unwrap();
            self.disk.fill(pool, block, &content);
            self.cache.write_ssd();
            if here && self.cache.is_on_ssd(self.id, self.block, slot) {
                return;
            }
        }
    }
}
