//! The pools of containers on the host.

use std::collections::{BTreeMap, BTreeSet};

use justitia_kernel::cgroup::CgroupId;
use justitia_link::{Command, DEFAULT_POOL, MAX_POOLS, PoolRow, Status, Store};

use crate::batch::Batches;
use crate::monitor::cgroups::View;
use crate::plan::pools::{Action, Pool, Pools, name, plan};
use crate::port::{Ended, Session};

/// Commands at a time: fewer than a host takes at once.
const MAX_COMMANDS: usize = 32;

/// The pools.
#[derive(Debug, Default)]
pub(crate) struct PoolTable {
    pools: Pools,
    /// Cgroups of which pages came.
    came: BTreeSet<CgroupId>,
    /// Where the host has the default pool: that stays.
    default_store: Store,
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
                ssd_weight: 0,
            },
            Action::SetWeight { number, weight, .. } => Command::SetWeight {
                pool: number,
                store: if number == DEFAULT_POOL {
                    self.default_store
                } else {
                    store
                },
                weight,
                ssd_weight: 0,
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

    /// The pools of cgroups.
    pub(crate) fn pools(&self) -> &BTreeMap<CgroupId, Pool> {
        &self.pools.of
    }
}
