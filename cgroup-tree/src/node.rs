//! One cgroup of the tree, and which settings count for it: the administrator's, or a delegatee's, too.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::{Cgroup, CgroupId, Ownership};
use justitia_kernel::io::{DevId, IoWeight};
use justitia_kernel::knob::Knob;
use justitia_runtimes::Identity;
use justitia_share::Weight;

use crate::inquiry::Inquiry;
use crate::rules::Override;

/// `memory.low` and `memory.min`, bytes. The kernel gives a cgroup of each no more than its parent has (`effective_protection` in
/// mm/page_counter.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// `memory.low`.
    pub low: u64,
    /// `memory.min`.
    pub min: u64,
}

impl Protection {
    /// What the root leaves to the cgroups right below it.
    pub const ROOT: Self = Self {
        low: u64::MAX,
        min: u64::MAX,
    };

    /// Each, but at most that of `cap`.
    #[must_use]
    pub fn at_most(self, cap: Self) -> Self {
        Self {
            low: self.low.min(cap.low),
            min: self.min.min(cap.min),
        }
    }

    fn most(self) -> u64 {
        self.low.max(self.min)
    }
}

/// A managed cgroup. `M` is the state that the user of the tree keeps of its memory.
#[derive(Debug)]
pub struct Node<M> {
    /// The cgroup.
    pub cgroup: Cgroup,
    /// Its parent; `None` right below the root.
    pub parent: Option<CgroupId>,
    /// Its managed children.
    pub children: Vec<CgroupId>,
    /// Its excluded children. Their pages are unmanaged, although the kernel charges them to this cgroup as well.
    pub excluded: Vec<Cgroup>,
    /// File pages and reclaimable slab of the excluded children, bytes.
    pub excluded_cache: u64,
    /// The names of children that were left out: for lack of file descriptors, or because as many cgroups as there may be
    /// (10,000) are tracked.
    pub(crate) untracked: BTreeSet<OsString>,
    /// The administrator's rules about it.
    pub(crate) overrides: Override,
    /// Whether it lies in a delegated subtree: its parent is delegated, so others than the administrator may have made
    /// it. Their settings divide what the parent gets; they do not raise it.
    pub in_delegation: bool,
    /// Whether the owner of a file tells who wrote it. False below a cgroup that is delegated to a process of root: that
    /// process and the administrator have the same uid.
    pub(crate) owner_is_author: bool,
    /// Whether it has the extended attribute by which systemd marks a delegated cgroup.
    pub(crate) delegate_xattr: bool,
    /// Whether it is the root of a container's cgroup namespace.
    pub(crate) namespace_root: bool,
    /// When the two above are read again.
    pub(crate) next_check: DelegationCheck,
    /// Its own weight, and whether the administrator or a delegatee set it; `None` without one.
    pub(crate) weight: Option<(Weight, Ownership)>,
    /// What stands in its files of weights and in `io.latency`.
    pub(crate) standing: Standing,
    /// What it is, as far as that is known.
    pub(crate) identity: Identity,
    /// When that is asked for again.
    pub(crate) inquiry: Inquiry,
    /// Whether it has the I/O controller: its I/O is accounted, and can be limited.
    pub io: bool,
    /// Whether any process lives in it or below.
    pub populated: bool,
    /// Its `memory.low` as an operator or a delegatee has set it, bytes; 0 without one.
    pub external_low: u64,
    /// Whether the administrator or a delegatee set that.
    pub(crate) low_author: Ownership,
    /// What children left that were removed lately.
    pub departed: Departed,
    /// Its file pages and reclaimable slab when it was last sampled, bytes.
    pub held: u64,
    /// Its working set when it was last sampled, bytes, by its accesses; 0 if that is not known.
    pub used: u64,
    /// The state that the user of the tree keeps of its memory.
    pub memory: M,
}

/// What children left that were removed lately: at most [`Departed::MAX`] of them, each for [`Departed::KEPT`]. A service
/// that systemd restarts gets another cgroup, and its pages are its parent's.
#[derive(Debug, Default)]
pub struct Departed(VecDeque<(Instant, Left)>);

/// The pages that a removed cgroup left, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Left {
    /// The pages that it held.
    pub held: u64,
    /// The part of it that was its working set, as far as that was known.
    pub used: u64,
}

impl Departed {
    /// Most services are back within seconds; after this time reuse shows what is used.
    const KEPT: Duration = Duration::from_secs(30);
    const MAX: usize = 64;

    /// A child was removed.
    pub(crate) fn add(&mut self, left: Left, now: Instant) {
        if self.0.len() >= Self::MAX {
            self.0.pop_front();
        }
        self.0.push_back((now, left));
    }

    /// What those left that were removed lately.
    #[must_use]
    pub fn lately(&self, now: Instant) -> Left {
        let lately = self
            .0
            .iter()
            .filter(|(at, _)| now.saturating_duration_since(*at) < Self::KEPT);
        lately.fold(Left::default(), |sum, (_, left)| Left {
            held: sum.held.saturating_add(left.held),
            used: sum.used.saturating_add(left.used),
        })
    }
}

/// What stands in a cgroup's files by which disks are divided; `None` where there is no such file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// `io.weight`.
    pub io: Option<IoWeight>,
    /// `io.bfq.weight`.
    pub bfq: Option<IoWeight>,
    /// The devices on which `io.latency` has a target.
    pub latency: Vec<DevId>,
}

impl Standing {
    /// The default of `io.weight`, and that of `io.bfq.weight`.
    pub(crate) fn defaults(&self) -> (Option<Weight>, Option<Weight>) {
        let default = |found: &Option<IoWeight>| found.as_ref().map(|found| found.default);
        (default(&self.io), default(&self.bfq))
    }
}

/// When a cgroup is checked for a delegation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DelegationCheck {
    pub(crate) due: Instant,
    /// How long after that the next check is due; it doubles each time.
    pub(crate) interval: Duration,
}

impl DelegationCheck {
    /// A new cgroup, or one that processes enter, is checked again after this time.
    const FIRST: Duration = Duration::from_millis(250);
    /// Checks end with the first interval above this.
    const LAST: Duration = Duration::from_secs(64);

    /// The first of a series, due now.
    pub(crate) const fn start(now: Instant) -> Self {
        Self {
            due: now,
            interval: Self::FIRST,
        }
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.due && self.interval <= Self::LAST
    }

    pub(crate) fn next(self, now: Instant) -> Self {
        Self {
            due: now + self.interval,
            interval: self.interval * 2,
        }
    }
}

impl<M> Node<M> {
    /// What it is, as far as that is known: its name is its owner's choice, and escaped where it is shown.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What stands in its `io.weight` and `io.bfq.weight` for all devices that these do not list; `None` where there is no
    /// such file.
    #[must_use]
    pub fn default_weights(&self) -> (Option<Weight>, Option<Weight>) {
        self.standing.defaults()
    }

    /// Whether it has children that are no tenants. Reclaim from this cgroup would take from those, too.
    #[must_use]
    pub fn has_unmanaged_children(&self) -> bool {
        !self.untracked.is_empty() || !self.excluded.is_empty()
    }

    /// Reads what its excluded children hold.
    pub fn read_excluded(&mut self) {
        let mut cache = 0;
        self.excluded.retain(|child| match child.memory_stat() {
            Ok(stat) => {
                cache += stat.file_lru() + stat.slab_reclaimable;
                true
            }
            Err(error) => !error.is_gone(),
        });
        self.excluded_cache = cache;
    }

    /// Whether it lies in a subtree whose owner divides the disks there.
    pub(crate) const fn is_delegatees(&self) -> bool {
        self.in_delegation && self.parent.is_some()
    }

    /// Whether a setting in one of its files counts, by its author. A delegatee's counts in a delegated subtree.
    /// Elsewhere the administrator has given away a file that divides the host's resources, and it is ignored.
    pub(crate) fn honors(&self, author: Ownership) -> bool {
        author == Ownership::Admin || self.in_delegation
    }

    /// The cache that it keeps before anything is divided by weight, and what a delegatee requests for it among its
    /// siblings, bytes. `min` is its `memory.min`, `cap` what its ancestors leave it; `other` its memory that is no cache, which
    /// `memory.low` and `memory.min` cover as well.
    #[must_use]
    pub fn minimums(&self, min: u64, cap: Protection, other: u64) -> (u64, u64) {
        let configured = self.overrides.min_cache.unwrap_or(0);
        let of_operator = self.operators_minimum(min, cap).saturating_sub(other);
        if !self.in_delegation {
            return (configured.max(of_operator), 0);
        }
        // In a delegated subtree the delegatee chooses the names, and so how many cgroups a rule of the configuration
        // matches: there the rule is a request, too.
        let requested = self.set_by(Ownership::Delegatee, min).most();
        (of_operator, configured.max(requested.saturating_sub(other)))
    }

    /// What its operator has it keep of all its memory, bytes; `min` is its `memory.min`, `cap` what its ancestors leave it.
    #[must_use]
    pub fn operators_minimum(&self, min: u64, cap: Protection) -> u64 {
        self.set_by(Ownership::Admin, min).at_most(cap).most()
    }

    /// What this author has set; `min` is its `memory.min`.
    #[must_use]
    pub fn set_by(&self, author: Ownership, min: u64) -> Protection {
        let by = |of, set| if of == author { set } else { 0 };
        Protection {
            low: by(self.low_author, self.external_low),
            min: by(self.author_of_min(min), min),
        }
    }

    /// The author of `memory.min`, if it is above 0.
    fn author_of_min(&self, min: u64) -> Ownership {
        if min == 0 {
            return Ownership::Delegatee;
        }
        self.author_of(Knob::MemoryMin.file())
    }

    /// What its operator has set as `memory.low`, if it caps what its children have: bytes.
    #[must_use]
    pub fn caps_children(&self) -> Option<u64> {
        let operators = self.low_author == Ownership::Admin && !self.in_delegation;
        let caps = operators && self.external_low > 0 && !self.children.is_empty();
        caps.then_some(self.external_low)
    }

    /// Takes over what an operator or a delegatee wrote to `memory.low`.
    pub fn set_external_low(&mut self, low: u64) {
        self.external_low = low;
        self.low_author = self.author_of(Knob::MemoryLow.file());
    }

    /// The author of one of its files. Where that cannot be known, the delegatee: it has less power.
    pub(crate) fn author_of(&self, file: &str) -> Ownership {
        if !self.owner_is_author {
            return Ownership::Delegatee;
        }
        self.cgroup
            .file_ownership(file)
            .unwrap_or(Ownership::Delegatee)
    }

    /// Whether its children are made by a process of root that is not the administrator, such as a container's init.
    fn is_delegated_to_root_process(&self) -> bool {
        let seen = self.delegate_xattr || self.namespace_root;
        self.overrides.delegated.unwrap_or(seen)
    }

    /// Whether others than the administrator may make cgroups below it.
    #[must_use]
    pub fn is_delegated(&self) -> bool {
        self.in_delegation
            || self.is_delegated_to_root_process()
            || !matches!(self.cgroup.ownership(), Ok(Ownership::Admin))
    }

    /// [`Node::owner_is_author`] for a child. `namespace_root`: whether the child is the root of a cgroup namespace.
    ///
    /// Where this cgroup is delegated to a container runtime and the container lives in the child, the kernel
    /// (`nsdelegate`) lets only processes outside the namespace write the child's files. So the runtime wrote them, on
    /// behalf of the administrator.
    pub(crate) fn child_owner_is_author(&self, namespace_root: bool) -> bool {
        let runtime =
            namespace_root && !self.namespace_root && self.overrides.delegated != Some(true);
        self.owner_is_author && (!self.is_delegated_to_root_process() || runtime)
    }
}
