//! What is outside any managed cgroup: one more tenant.

use std::path::Path;
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::lru_gen::{self, Generations};
use justitia_share::Weight;

use super::room::Room;
use crate::act::worker::Means;
use crate::plan::{Key, Spared, Tenant};

/// What this kernel can do, as far as the page cache is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// `memory.reclaim` exists.
    pub reclaim: bool,
    /// It takes `swappiness=`.
    pub swappiness: bool,
    /// The multi-gen LRU runs.
    pub multi_gen: bool,
    /// Its debugfs interface can be used.
    pub lru_gen: bool,
    /// BFQ schedules a disk.
    pub bfq: bool,
}

impl Abilities {
    /// Why nothing may be taken from a tenant with this much anonymous memory, on this kernel.
    #[must_use]
    pub const fn spares(&self, anon: u64, swap_on: bool) -> Option<Spared> {
        match (self.reclaim, self.swappiness) {
            (false, _) => Some(Spared::NoMeans),
            (true, true) => None,
            (true, false) if anon > 0 && swap_on => Some(Spared::Anonymous),
            (true, false) => None,
        }
    }

    /// The `swappiness=` that keeps reclaim away from anonymous memory.
    #[must_use]
    pub const fn files_only(&self) -> Option<u8> {
        if self.swappiness { Some(0) } else { None }
    }
}

/// The root cgroup's own pages, and those of excluded cgroups.
#[derive(Debug)]
pub struct Outside {
    means: Option<Means>,
    file: u64,
    grew_at: Option<Instant>,
}

/// It is said to grow for this long after it last did.
const GROWING: Duration = Duration::from_secs(3);
/// What is left over by readings that are not of the same moment is no growth, bytes.
const NOISE: u64 = 1 << 20;

impl Outside {
    /// Finds out how it could be reclaimed from.
    #[must_use]
    pub fn new(root: Cgroup, abilities: &Abilities) -> Self {
        let means = if abilities.multi_gen {
            abilities.lru_gen.then_some(Means::RootList)
        } else {
            let safe = abilities.reclaim && abilities.swappiness;
            safe.then(|| Means::Root(root, abilities.files_only()))
        };
        Self {
            means,
            file: 0,
            grew_at: None,
        }
    }

    /// How to reclaim from it alone, if this kernel has a way.
    #[must_use]
    pub const fn means(&self) -> Option<&Means> {
        self.means.as_ref()
    }

    /// As a tenant: what the machine has and no cgroup in `tenants` does. What cannot be reclaimed from it is
    /// its floor: the others divide the rest.
    pub fn tenant(
        &mut self,
        room: &Room,
        tenants: &[Tenant],
        weight: Weight,
        now: Instant,
        spared: Option<Spared>,
    ) -> Tenant {
        let leaves = || tenants.iter().filter(|t| t.leaf);
        let file = room.file().saturating_sub(leaves().map(|t| t.file).sum());
        let stuck = room.stuck().saturating_sub(leaves().map(|t| t.stuck).sum());
        if file > self.file + NOISE {
            self.grew_at = Some(now);
        }
        self.file = file;
        let spared = if self.means.is_some() {
            spared
        } else {
            Some(Spared::NoMeans)
        };
        Tenant {
            key: Key::Outside,
            parent: None,
            weight,
            floor: if spared == Some(Spared::NoMeans) {
                file
            } else {
                0
            },
            wish: 0,
            file,
            other: 0,
            stuck: stuck.min(file),
            leaf: true,
            populated: true,
            wants_more: self.grew_at.is_some_and(|at| now - at < GROWING),
            idle_for: Duration::ZERO,
            spared,
        }
    }
}

/// Whether the multi-gen LRU's debugfs interface can be used here.
#[must_use]
pub fn lru_gen_usable() -> bool {
    Generations::of_root(Path::new(lru_gen::PATH)).is_ok_and(|lists| !lists.is_empty())
}
