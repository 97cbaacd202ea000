//! One step: a change of the configuration, or a fault.

use super::cache_model::{CacheModel, VM_OF, policy, start, start_ssd};
use super::op::Op;
use super::port::Ports;
use crate::block::BLOCK_SIZE;
use crate::config::{PoolSpec, StoreKind};
use crate::ssd_admission::SsdAdmission;
use justitia_share::Weight;
use std::sync::atomic::Ordering;

fn weight(of: u16) -> Weight {
    Weight::try_from(u64::from(of)).unwrap()
}

/// Mostly all.
const fn ssd_admission(of: u8) -> SsdAdmission {
    match of {
        0 => SsdAdmission::Sample,
        1 => SsdAdmission::Bypass,
        _ => SsdAdmission::All,
    }
}

const fn store(ssd: bool) -> StoreKind {
    if ssd {
        StoreKind::Ssd
    } else {
        StoreKind::Memory
    }
}

impl CacheModel {
    /// A change of a VM, a pool or a disk.
    pub(super) fn reconfigure(&mut self, op: &Op) {
        let cache = &self.cache;
        match *op {
            Op::VmWeight(v, w) => cache.set_vm_weight(self.vms[v], weight(w)).unwrap(),
            Op::Pool(p, memory, ssd) => {
                let some = |w: u16| (w > 0).then(|| weight(w));
                let spec = PoolSpec::new(some(memory), some(ssd)).unwrap();
                cache.set_pool(self.pools[p], spec).unwrap();
            }
            Op::Policy(v, p) => cache.set_vm_policy(self.vms[v], policy(p)).unwrap(),
            Op::SsdAdmission(p, w) => cache
                .set_ssd_admission(self.pools[p], ssd_admission(w))
                .unwrap(),
            Op::Drop(p, ssd) => {
                cache.drop_blocks(self.pools[p], store(ssd)).unwrap();
            }
            Op::Recreate(p) => self.recreate(p),
            Op::Reattach(d) => {
                cache.remove_disk(self.ids[d]).unwrap();
                let mut buf = [0; BLOCK_SIZE];
                assert!(!self.disks[d].read_cached(&mut buf, 0));
                self.reattach(d);
            }
            _ => self.change_stores(op),
        }
    }

    fn recreate(&mut self, p: usize) {
        let cache = &self.cache;
        if cache.destroy_pool(self.pools[p]).is_ok() {
            let gone = self.pools[p];
            let ssd = p.is_multiple_of(2).then(Weight::default);
            let spec = PoolSpec::new(Some(Weight::default()), ssd).unwrap();
            self.pools[p] = cache.create_pool(self.vms[p / 3], "again", spec).unwrap();
            assert!(cache.set_pool(gone, spec).is_err());
            self.ports.recreated(p, gone, self.pools[p]);
        } else {
            assert_eq!(p % 3, 0, "only a VM's first pool stays");
        }
    }

    /// A change of the memory or the SSD store.
    fn change_stores(&mut self, op: &Op) {
        let cache = &self.cache;
        match *op {
            Op::Memory(slots) => {
                let bytes = u64::from(slots) * 4096;
                cache.resize(StoreKind::Memory, bytes).unwrap();
            }
            Op::Ssd(extents) => {
                // Refused without a store that works.
                let _ = cache.resize(StoreKind::Ssd, u64::from(extents) * (256 << 10));
            }
            Op::NewSsd(extents) => {
                cache.set_ssd(None).unwrap();
                start_ssd(cache, &self.ssd, extents);
            }
            Op::NoSsd => cache.set_ssd(None).unwrap(),
            Op::SsdWrites(n) => {
                for _ in 0..n {
                    cache.write_ssd();
                }
            }
            _ => self.fail(op),
        }
    }

    /// A fault, or a new start.
    fn fail(&mut self, op: &Op) {
        match *op {
            Op::DiskFault(d, writes, n) => {
                let faults = &self.backing[d].faults;
                let which = if writes {
                    &faults.writes
                } else {
                    &faults.reads
                };
                which.store(n.into(), Ordering::Relaxed);
            }
            Op::SsdFault(kind, n) => {
                let f = &self.ssd.faults;
                [&f.reads, &f.writes, &f.lies, &f.full][usize::from(kind)]
                    .store(n.into(), Ordering::Relaxed);
            }
            Op::SsdHangs(hangs) => self.ssd.hang(hangs),
            Op::Restart => {
                self.count_moves();
                let new = start(&self.backing, &self.ssd);
                (self.cache, self.vms, self.pools, self.ids, self.disks) = new;
                self.ports = Ports::new(&self.cache, &self.vms, &self.pools, &self.disks, &VM_OF);
            }
            _ => unreachable!("{op:?} is not a change of the configuration"),
        }
    }
}
