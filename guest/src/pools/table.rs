//! The pools of containers on the host.

use std::collections::{BTreeMap, BTreeSet};

use justitia_guest_protocol::puts::{Command, DEFAULT_POOL, MAX_POOLS, PoolRow, Status, Store};
use justitia_kernel::cgroup::CgroupId;

use super::cgroups::View;
use super::plan::{Action, Pool, Pools, name, plan};
use crate::batch::Batches;
use crate::port::{Ended, Session};

/// The most commands at a time: a host takes more at once.
const MAX_COMMANDS: usize = 32;

/// The pools.
#[derive(Debug, Default)]
pub(crate) struct PoolTable {
    pools: Pools,
    /// Cgroups with evicted pages.
    came: BTreeSet<CgroupId>,
    /// The store of the default pool, which the host chooses.
    default_store: Store,
    /// Whether containers' pools use the host's SSD as well as its memory.
    both_stores: bool,
}

impl PoolTable {
    /// Begins with the host's pools. Pools of existing cgroups stay theirs; other pools made over the port are destroyed.
    pub(crate) fn adopt(
        rows: &[PoolRow],
        view: &View,
        both_stores: bool,
        session: &mut Session,
    ) -> Result<Self, Ended> {
        let mut table = Self {
            both_stores,
            ..Self::default()
        };
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
            // A pool that is to use the SSD, too, and does not, gets its weights anew.
            let weight = if both_stores && row.ssd_weight == 0 {
                0
            } else {
                row.weight
            };
            let number = row.number;
            let pool = Pool { number, weight };
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

    /// Takes in the host's pools. A pool that the host destroyed is made again, and the default pool stays in the host's store.
    pub(crate) fn see(&mut self, rows: &[PoolRow]) {
        let numbers: BTreeSet<u32> = rows.iter().map(|row| row.number).collect();
        self.pools
            .of
            .retain(|_, pool| numbers.contains(&pool.number));
        if let Some(row) = rows.iter().find(|row| row.number == DEFAULT_POOL) {
            self.default_store = row.store;
        }
    }

    /// Creates, changes and destroys pools for the cgroups with evicted pages.
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

    /// Returns whether more can be done now.
    fn execute(&mut self, action: Action, session: &mut Session) -> Result<bool, Ended> {
        let command = command(action, self.default_store, self.both_stores);
        let Some(answer) = session.command(&command)? else {
            return Ok(false);
        };
        match (action, answer.status) {
            (_, Status::Busy) => return Ok(false),
            (Action::Create { .. } | Action::SetWeight { .. }, Status::Store | Status::Version)
                if self.both_stores =>
            {
                tracing::warn!(
                    "the host does not let this guest use its SSD: pools use memory alone"
                );
                self.both_stores = false;
                return Ok(false);
            }
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
            // The host may refuse a weight: it is not sent again before it changes.
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

/// The command for an action.
fn command(action: Action, default_store: Store, both_stores: bool) -> Command {
    let ssd_weight = |weight| if both_stores { weight } else { 0 };
    match action {
        Action::Destroy { number } => Command::Destroy { pool: number },
        Action::Create { name, weight, .. } => Command::Create {
            name,
            store: Store::Memory,
            weight,
            ssd_weight: ssd_weight(weight),
        },
        // The default pool stays in the host's store.
        Action::SetWeight {
            number: DEFAULT_POOL,
            weight,
            ..
        } => Command::SetWeight {
            pool: DEFAULT_POOL,
            store: default_store,
            weight,
            ssd_weight: 0,
        },
        Action::SetWeight { number, weight, .. } => Command::SetWeight {
            pool: number,
            store: Store::Memory,
            weight,
            ssd_weight: ssd_weight(weight),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_has_changed_is_followed() {
        let name = justitia_guest_protocol::puts::Name::new("pool").unwrap();
        let row = |number, store| PoolRow {
            store,
            ..PoolRow::new(number, name)
        };
        let mut table = PoolTable::default();
        for (cgroup, number) in [(2, 7), (3, 8)] {
            let pool = Pool { number, weight: 9 };
            table.pools.of.insert(CgroupId(cgroup), pool);
        }
        // Its operator destroyed one of the two, and moved the default pool to the SSD.
        table.see(&[row(DEFAULT_POOL, Store::Ssd), row(8, Store::Memory)]);
        let left: Vec<_> = table.pools.of.keys().copied().collect();
        assert_eq!(left, [CgroupId(3)]);
        assert_eq!(table.default_store, Store::Ssd);
    }

    #[test]
    fn pools_of_containers_are_in_both_stores_where_that_is_wanted() {
        let set = |number| Action::SetWeight {
            cgroup: None,
            number,
            weight: 7,
        };
        let sent = |pool, store, ssd_weight| Command::SetWeight {
            pool,
            store,
            weight: 7,
            ssd_weight,
        };
        for (number, both_stores, expected) in [
            (3, false, sent(3, Store::Memory, 0)),
            (3, true, sent(3, Store::Memory, 7)),
            (DEFAULT_POOL, true, sent(DEFAULT_POOL, Store::Ssd, 0)),
        ] {
            assert_eq!(command(set(number), Store::Ssd, both_stores), expected);
        }
        let name = justitia_guest_protocol::puts::Name::new("web").unwrap();
        let (cgroup, weight) = (CgroupId(1), 9);
        let create = Action::Create {
            cgroup,
            name,
            weight,
        };
        for (both_stores, ssd_weight) in [(false, 0), (true, 9)] {
            let expected = Command::Create {
                name,
                store: Store::Memory,
                weight,
                ssd_weight,
            };
            assert_eq!(command(create, Store::Ssd, both_stores), expected);
        }
    }
}
