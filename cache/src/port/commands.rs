//! Commands of a guest, about the pools of its own VM (the paper, section 4.1).

use super::device::Port;
use crate::config::{PoolSpec, StoreKind};
use crate::error::CacheError;
use crate::frontend::VmPools;
use crate::ids::PoolId;
use justitia_guest_protocol::puts::{
    Answer, Command, MAX_POOLS, Name, Serial, Status, Store, Verdict,
};
use justitia_share::Weight;

/// The most blocks migrated under one hold of the lock for changes of the cache.
const MIGRATE_STEP: u64 = 64;

impl Port {
    /// Executes a command; notes its result in `answer`.
    pub(super) fn execute(&self, command: &Command, answer: &mut Answer) -> Result<(), Status> {
        let mut pools = self.vm.pools.lock();
        match *command {
            Command::Create {
                ref name,
                store,
                weight,
                ssd_weight,
            } => {
                let spec = self.specified(PoolSpec::default(), store, weight, ssd_weight)?;
                answer.pool = self.create(&mut pools, name, spec)?;
                Ok(())
            }
            Command::SetWeight {
                pool,
                store,
                weight,
                ssd_weight,
            } => {
                let pool = &pools.by_number(pool).ok_or(Status::NoPool)?.pool;
                let spec = self.specified(pool.spec(), store, weight, ssd_weight)?;
                self.cache.set_pool(pool.id, spec).map_err(failed)
            }
            Command::Destroy { pool } => {
                let id = Self::take(&mut pools, pool)?;
                drop(pools);
                self.cache.destroy_pool(id).map_err(failed)
            }
            Command::Migrate {
                pool,
                serial,
                first,
                blocks,
            } => {
                let to = pools.by_number(pool).ok_or(Status::NoPool)?.pool.id;
                drop(pools);
                let moved = self.migrate(to, serial, first, blocks)?;
                answer.verdicts.add(Verdict::Accepted, moved);
                Ok(())
            }
            // The table is updated after each command.
            Command::GetStats => Ok(()),
        }
    }

    fn create(&self, pools: &mut VmPools, name: &Name, spec: PoolSpec) -> Result<u32, Status> {
        if pools.get(name.as_str()).is_some() {
            return Err(Status::PoolExists);
        }
        if pools.len() >= MAX_POOLS {
            return Err(Status::TooManyPools);
        }
        let id = self.cache.create_pool(self.vm.id, name.as_str(), spec);
        let pool = id.and_then(|id| self.cache.pool(id)).map_err(failed)?;
        Ok(pools.insert_of_guest(pool))
    }

    /// The weights that a guest asks for, for a pool that has `old`. If the host lets the pool use both stores, it keeps the
    /// other one, unless the guest gives both weights.
    fn specified(
        &self,
        old: PoolSpec,
        store: Store,
        weight: u32,
        ssd_weight: u32,
    ) -> Result<PoolSpec, Status> {
        let weight = weight_of(weight)?;
        let store = self.store(store, old)?;
        if ssd_weight == 0 {
            return Ok(if old.is_hybrid() {
                old.with(store, weight)
            } else {
                PoolSpec::of(store, weight)
            });
        }
        let ssd = self.store(Store::Ssd, old)?;
        Ok(PoolSpec::of(store, weight).with(ssd, weight_of(ssd_weight)?))
    }

    /// Removes a pool of the guest from the VM's list. The caller empties it without the list's lock.
    fn take(pools: &mut VmPools, number: u32) -> Result<PoolId, Status> {
        let of = pools.by_number(number).ok_or(Status::NoPool)?;
        if !of.created_over_port {
            return Err(Status::NotYours);
        }
        let id = of.pool.id;
        pools.remove(id);
        Ok(id)
    }

    fn migrate(&self, to: PoolId, serial: Serial, first: u64, blocks: u64) -> Result<u64, Status> {
        let disk = self.target(serial).and_then(|disk| disk.id());
        let disk = disk.ok_or(Status::NoDisk)?;
        let end = first.saturating_add(blocks);
        let mut moved = 0;
        let mut at = first;
        while at < end {
            let next = at.saturating_add(MIGRATE_STEP).min(end);
            moved += self.cache.migrate(disk, at..next, to).map_err(failed)?;
            at = next;
        }
        Ok(moved)
    }

    /// The store that a guest asks for, if it is allowed: a store that the pool already uses, or the SSD if permitted.
    fn store(&self, wanted: Store, has: PoolSpec) -> Result<StoreKind, Status> {
        let wanted = match wanted {
            Store::Memory => StoreKind::Memory,
            Store::Ssd => StoreKind::Ssd,
        };
        let allowed =
            wanted == StoreKind::Memory || has.weight(StoreKind::Ssd).is_some() || self.may_use_ssd;
        allowed.then_some(wanted).ok_or(Status::Store)
    }
}

fn weight_of(weight: u32) -> Result<Weight, Status> {
    Weight::try_from(u64::from(weight)).map_err(|_| Status::Weight)
}

fn failed(error: CacheError) -> Status {
    match error {
        CacheError::NoPool(_) => Status::NoPool,
        CacheError::NoDisk(_) => Status::NoDisk,
        CacheError::DefaultPool(..) => Status::NotYours,
        _ => Status::Failed,
    }
}
