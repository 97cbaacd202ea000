//! The pools of containers on the host, and how much of each one's pages is offered.

use std::collections::{BTreeMap, BTreeSet};

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::EvictionProbe;
use justitia_link::{Command, DEFAULT_POOL, MAX_POOLS, PoolRow, Status, Store};

use crate::batch::Batches;
use crate::monitor::cgroups::View;
use crate::plan::pools::{Action, Pool, Pools, name, plan};
use crate::plan::reuse::{Figures, Worth, decide};
use crate::port::{Ended, Session};

/// Commands at a time: fewer than a host takes at once.
const MAX_COMMANDS: usize = 32;

/// Cgroups that the kernel's map tells apart, less than it has room for. More cgroups of containers are offered as those
/// of no container are.
const MAX_CGROUPS: usize = 1000;

/// The pools.
#[derive(Debug, Default)]
pub(crate) struct PoolTable {
    pools: Pools,
    /// Cgroups of which pages came.
    came: BTreeSet<CgroupId>,
    worth: BTreeMap<u32, Worth>,
    /// Where the host has the default pool: that stays.
    default_store: Store,
    /// What the kernel has been told: the shifts of cgroups that are not 0.
    applied: BTreeMap<CgroupId, u32>,
}

impl PoolTable {
    /// Begins with what the host has: pools of cgroups that there still are stay theirs, other pools that were made over
    /// the port are destroyed.
    pub(crate) fn adopt(
        rows: &[PoolRow],
        view: &View,
        session: &mut Session,
    ) -> Result<Self, Ended> {
        let mut table = Self::default();
        let named = view.members.iter().filter(|(_, member)| member.leaf);
        let names = named
            .filter_map(|(id, member)| Some((name(&member.path, *id)?.as_str().to_owned(), *id)));
        let names: BTreeMap<String, CgroupId> = names.collect();
        let mut own = 0;
        for row in rows {
            if row.number == DEFAULT_POOL {
                table.pools.default = row.weight;
                table.default_store = row.store;
            }
            if !row.created_over_port {
                own += 1;
                continue;
            }
            let pool = Pool {
                number: row.number,
                weight: row.weight,
            };
            match names.get(row.name.as_str()) {
                Some(id) => {
                    table.pools.of.insert(*id, pool);
                    table.came.insert(*id);
                }
                None => {
                    session.command(&Command::Destroy { pool: row.number })?;
                }
            }
        }
        table.pools.limit = MAX_POOLS.saturating_sub(own);
        Ok(table)
    }

    /// Makes the pools those of the cgroups whose pages came.
    pub(crate) fn follow(
        &mut self,
        view: &View,
        unmanaged: u32,
        session: &mut Session,
        batches: &mut Batches,
    ) -> Result<(), Ended> {
        let came = std::mem::take(&mut batches.strangers).into_keys();
        self.came
            .extend(came.filter_map(|id| view.owners.get(&id).copied()));
        self.came.retain(|id| view.members.contains_key(id));
        let actions = plan(&view.members, &self.came, unmanaged, &self.pools);
        for action in actions.into_iter().take(MAX_COMMANDS) {
            if !self.execute(action, session)? {
                break;
            }
        }
        let pool_of =
            |(id, owner): (&CgroupId, &CgroupId)| Some((*id, self.pools.of.get(owner)?.number));
        batches.pools = view.owners.iter().filter_map(pool_of).collect();
        Ok(())
    }

    /// Whether more can be done now.
    fn execute(&mut self, action: Action, session: &mut Session) -> Result<bool, Ended> {
        let store = Store::Memory;
        let command = match action {
            Action::Destroy { number } => Command::Destroy { pool: number },
            Action::Create { name, weight, .. } => Command::Create {
                name,
                store,
                weight,
            },
            Action::SetWeight { number, weight, .. } => Command::SetWeight {
                pool: number,
                store: if number == DEFAULT_POOL {
                    self.default_store
                } else {
                    store
                },
                weight,
            },
        };
        let Some(answer) = session.command(&command)? else {
            return Ok(false);
        };
        match (action, answer.status) {
            (_, Status::Busy) => return Ok(false),
            (Action::Destroy { number }, _) => {
                self.pools.of.retain(|_, pool| pool.number != number)
            }
            (Action::Create { cgroup, weight, .. }, Status::Done) => {
                let number = answer.pool;
                self.pools.of.insert(cgroup, Pool { number, weight });
            }
            (Action::Create { .. }, Status::TooManyPools) => {
                self.pools.limit = self.pools.of.len();
                return Ok(false);
            }
            (Action::Create { cgroup, .. }, status) => {
                tracing::debug!(
                    cgroup = cgroup.0,
                    ?status,
                    "the host makes no pool for a cgroup"
                );
                self.came.remove(&cgroup);
            }
            // The host may refuse a weight: it is not asked for again before it changes.
            (
                Action::SetWeight {
                    cgroup,
                    number,
                    weight,
                },
                _,
            ) => match cgroup {
                Some(cgroup) => {
                    self.pools.of.insert(cgroup, Pool { number, weight });
                }
                None => self.pools.default = weight,
            },
        }
        Ok(true)
    }

    /// Decides how much of each pool's pages is offered, by its figures, and tells the kernel. `memory` is the guest's, in
    /// blocks.
    pub(crate) fn decide(
        &mut self,
        rows: &[PoolRow],
        memory: u64,
        pools: &BTreeMap<CgroupId, u32>,
        probe: &EvictionProbe,
    ) {
        let mut worth = BTreeMap::new();
        for row in rows {
            let figures = Figures::from(row);
            let before = self.worth.get(&row.number).copied();
            let before = before.unwrap_or_else(|| Worth::from(figures));
            let after = decide(before, figures, memory);
            worth.insert(row.number, after);
            if after.shift != before.shift {
                let (pool, one_in) = (row.number, 1 << after.shift);
                tracing::info!(pool, one_in, "what is offered of a pool's pages");
            }
        }
        self.worth = worth;
        self.apply(pools, probe);
    }

    /// Tells the kernel what is offered of each cgroup's pages, where that has changed.
    fn apply(&mut self, pools: &BTreeMap<CgroupId, u32>, probe: &EvictionProbe) {
        let shift = |number: u32| self.worth.get(&number).map_or(0, |worth| worth.shift);
        let of = pools.iter().map(|(id, number)| (*id, shift(*number)));
        let others = (EvictionProbe::OTHER_CGROUPS, shift(DEFAULT_POOL));
        let wanted: BTreeMap<CgroupId, u32> = std::iter::once(others)
            .chain(of)
            .take(MAX_CGROUPS)
            .collect();
        let ended = self.applied.keys().filter(|id| !wanted.contains_key(id));
        let changed = wanted
            .iter()
            .filter(|(id, shift)| self.applied.get(id) != Some(shift));
        let changed = changed.map(|(id, shift)| (*id, Some(*shift)));
        for (cgroup, shift) in ended.map(|id| (*id, None)).chain(changed) {
            if let Err(error) = probe.offer_of_cgroup(cgroup, shift) {
                tracing::warn!(%error, "what is offered stays as it was");
            }
        }
        self.applied = wanted;
    }

    /// Offers all of everything.
    pub(crate) fn reset(&mut self, probe: &EvictionProbe) {
        self.worth.clear();
        self.apply(&BTreeMap::new(), probe);
    }

    /// The pools of cgroups.
    pub(crate) fn pools(&self) -> &BTreeMap<CgroupId, Pool> {
        &self.pools.of
    }

    /// Of how many less than all is offered.
    pub(crate) fn limited(&self) -> usize {
        self.worth.values().filter(|worth| worth.shift > 0).count()
    }
}
