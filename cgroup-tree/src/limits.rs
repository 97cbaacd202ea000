//! Limits on what delegatees can cost: how many cgroups are tracked on their own, and how fast changes in delegated subtrees
//! are followed. A delegatee can make any number of cgroups at any depth, and each costs file descriptors, memory and time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::time::Instant;

use justitia_api::escape;
use justitia_kernel::cgroup::CgroupId;
use rustix::process::{Resource, getrlimit};

/// The most cgroups that are tracked below one delegated cgroup. With more, the delegated cgroup is one tenant.
const MAX_PER_DELEGATION: usize = 500;
/// Cgroups deeper than this below the root are not tracked; their pages count for the ancestor at this depth.
pub const MAX_DEPTH: usize = 32;
/// The longest path that is tracked, bytes in the escaped form that the state file, the status and the metrics have. The
/// pages of cgroups with a longer one count for the nearest ancestor.
const MAX_PATH: usize = 512;
/// The most cgroups that [`CgroupQuota::limitations`] names; it counts the others.
const MAX_NAMED: usize = 8;
/// The most cgroups in total; fewer where file descriptors do not suffice.
const MAX_TOTAL: usize = 10_000;
/// File descriptors for a cgroup: its directory, its events, and at times one of its files.
const DESCRIPTORS: u64 = 3;
/// File descriptors for everything else.
const OTHER_DESCRIPTORS: u64 = 512;

/// Counts the tracked cgroups, and remembers where some are not tracked.
#[derive(Debug)]
pub(crate) struct CgroupQuota {
    max_total: usize,
    /// Tracked cgroups below each delegated cgroup.
    delegated: HashMap<CgroupId, usize>,
    /// Their sum.
    all_delegated: usize,
    /// Delegated cgroups that are one tenant.
    collapsed: HashSet<CgroupId>,
    /// Cgroups that are one tenant because the path of a child is too long.
    long_paths: HashSet<CgroupId>,
    /// Whether the name of a cgroup right below the root is too long.
    long_path_at_root: bool,
}

/// Whether one more cgroup is tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is.
    Granted,
    /// It is not.
    Denied,
    /// It is not, and from now on neither are the others below this delegated cgroup.
    Collapse(CgroupId),
}

impl CgroupQuota {
    /// As many cgroups as this process has file descriptors for.
    pub(crate) fn new() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let max = descriptors.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS;
        Self::with_total(usize::try_from(max).unwrap_or(MAX_TOTAL).min(MAX_TOTAL))
    }

    pub(crate) fn with_total(max_total: usize) -> Self {
        Self {
            max_total,
            delegated: HashMap::new(),
            all_delegated: 0,
            collapsed: HashSet::new(),
            long_paths: HashSet::new(),
            long_path_at_root: false,
        }
    }

    /// Asks to track one more cgroup, while `tracked` are. `root` is the delegated cgroup that it is below, if any.
    pub(crate) fn admit(&mut self, root: Option<CgroupId>, tracked: usize) -> Admission {
        if root.is_some_and(|root| self.is_collapsed(root)) {
            return Admission::Denied;
        }
        if let Some(root) = root {
            let count = self.delegated.entry(root).or_default();
            // Half of the total is kept for cgroups that the administrator made.
            if *count >= MAX_PER_DELEGATION || self.all_delegated >= self.max_total / 2 {
                self.collapsed.insert(root);
                return Admission::Collapse(root);
            }
            *count += 1;
            self.all_delegated += 1;
        } else if tracked >= self.max_total {
            return Admission::Denied;
        }
        Admission::Granted
    }

    /// A cgroup below the delegated cgroup `root` was removed.
    pub(crate) fn release(&mut self, root: Option<CgroupId>) {
        if let Some(count) = root.and_then(|root| self.delegated.get_mut(&root)) {
            *count = count.saturating_sub(1);
            self.all_delegated = self.all_delegated.saturating_sub(1);
        }
    }

    /// Forgets a cgroup that was removed.
    pub(crate) fn forget(&mut self, id: CgroupId) {
        self.delegated.remove(&id);
        self.collapsed.remove(&id);
        self.long_paths.remove(&id);
    }

    /// Whether the path of a child of `parent` is too long. If so, no child of `parent` is tracked from now on.
    pub(crate) fn is_path_too_long(&mut self, parent: Option<CgroupId>, child: &Path) -> bool {
        let too_long = escape::encoded_len(child.as_os_str()) > MAX_PATH;
        match parent {
            _ if !too_long => {}
            Some(parent) => drop(self.long_paths.insert(parent)),
            None => self.long_path_at_root = true,
        }
        too_long
    }

    /// Whether no child of `id` is tracked because the path of one was too long.
    pub(crate) fn has_long_path(&self, id: CgroupId) -> bool {
        self.long_paths.contains(&id)
    }

    /// Whether nothing below the delegated cgroup `root` is tracked.
    pub(crate) fn is_collapsed(&self, root: CgroupId) -> bool {
        self.collapsed.contains(&root)
    }

    /// The cgroups that are not tracked on their own, and why. `full`: some, for lack of a place in total. `path` names
    /// a cgroup.
    pub(crate) fn limitations(&self, full: bool, path: impl Fn(CgroupId) -> String) -> Vec<String> {
        let (collapsed, more) = named(&self.collapsed, &path);
        let mut limitations: Vec<String> = collapsed
            .into_iter()
            .map(|path| {
                format!(
                    "Tenants: {path} was delegated, and has more than {MAX_PER_DELEGATION} cgroups (or all delegated \
                     ones have more than {}): it is one tenant, until it is made anew or the agent is restarted",
                    self.max_total / 2
                )
            })
            .collect();
        if more > 0 {
            limitations.push(format!("Tenants: so are {more} other delegated cgroups"));
        }
        let (long, more) = named(&self.long_paths, &path);
        limitations.extend(long.into_iter().map(|path| {
            format!(
                "Tenants: a cgroup in {path} has a path longer than {MAX_PATH} bytes (those outside printable ASCII \
                 count four): {path} is one tenant, until it is made anew or the agent is restarted"
            )
        }));
        if more > 0 {
            limitations.push(format!(
                "Tenants: so are {more} other cgroups, because of longer paths in them"
            ));
        }
        if self.long_path_at_root {
            limitations.push(format!(
                "Tenants: a cgroup right below the root has a name longer than {MAX_PATH} bytes (those outside \
                 printable ASCII count four): it counts as unmanaged"
            ));
        }
        if full {
            limitations.push(format!(
                "Tenants: there are more than {} cgroups, and no file descriptors for more: later ones count as \
                 unmanaged",
                self.max_total
            ));
        }
        limitations
    }
}

/// The names of a few, sorted, and how many more there are.
fn named(ids: &HashSet<CgroupId>, path: impl Fn(CgroupId) -> String) -> (Vec<String>, usize) {
    let mut named: Vec<String> = ids.iter().map(|id| path(*id)).collect();
    named.sort_unstable();
    let more = named.len().saturating_sub(MAX_NAMED);
    named.truncate(MAX_NAMED);
    (named, more)
}

// A delegatee can make, remove, populate and write cgroups in a loop, and following a change costs about as much as making
// it: so changes are followed at a limited rate.

/// Refreshes per second: some 0.2 % of a CPU.
const RATE: f64 = 200.0;
/// Refreshes that may come at once, as when a session starts or a pod is deployed.
const BURST: f64 = 1200.0;
/// The cost of adding a cgroup, in refreshes.
const ADDITION: f64 = 4.0;

/// What of a cgroup is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RefreshKind {
    /// The list of its children.
    Children,
    /// Whether any process lives in it.
    Populated,
    /// Its weight, and its `io.latency`.
    Weight,
    /// Its `memory.low`.
    Low,
}

/// A queue of refreshes, drained as a token bucket allows. A refresh is queued once, however often it is asked for.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    queue: VecDeque<(CgroupId, RefreshKind)>,
    queued: HashSet<(CgroupId, RefreshKind)>,
    /// Refreshes that may be done now; below zero after a burst of additions.
    tokens: f64,
    refilled_at: Option<Instant>,
}

impl RateLimiter {
    /// An empty queue and a full bucket.
    pub(crate) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            queued: HashSet::new(),
            tokens: BURST,
            refilled_at: None,
        }
    }

    /// Asks for a refresh.
    pub(crate) fn enqueue(&mut self, id: CgroupId, kind: RefreshKind) {
        if self.queued.insert((id, kind)) {
            self.queue.push_back((id, kind));
        }
    }

    /// The next refresh, if the rate allows one now.
    pub(crate) fn next(&mut self, now: Instant) -> Option<(CgroupId, RefreshKind)> {
        if let Some(at) = self.refilled_at {
            let passed = now.saturating_duration_since(at).as_secs_f64();
            self.tokens = (self.tokens + passed * RATE).min(BURST);
        }
        self.refilled_at = Some(now);
        if self.tokens <= 0.0 {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.queued.remove(&next);
        self.tokens -= 1.0;
        Some(next)
    }

    /// Charges for the cgroups that a refresh has added.
    pub(crate) fn charge(&mut self, cgroups: usize) {
        let cgroups = u64::try_from(cgroups).unwrap_or(u64::MAX);
        self.tokens -= justitia_share::num::to_f64(cgroups) * ADDITION;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn too_many_cgroups_collapse_one_delegation_and_no_other() {
        let mut quota = CgroupQuota::with_total(10_000);
        let (one, other) = (CgroupId(1), CgroupId(2));
        for tracked in 0..MAX_PER_DELEGATION {
            assert_eq!(quota.admit(Some(one), tracked), Admission::Granted);
        }
        quota.release(Some(one));
        assert_eq!(quota.admit(Some(one), 1), Admission::Granted);
        assert_eq!(quota.admit(Some(one), 1), Admission::Collapse(one));
        assert_eq!(quota.admit(Some(one), 1), Admission::Denied);
        assert_eq!(quota.admit(Some(other), 1), Admission::Granted);
        assert_eq!(quota.admit(None, 1), Admission::Granted);
        let limitations = quota.limitations(false, |id| format!("#{id}"));
        assert!(
            limitations.len() == 1 && limitations[0].contains("#1 was delegated"),
            "{limitations:?}"
        );
        quota.forget(one);
        assert_eq!(quota.admit(Some(one), 1), Admission::Granted);
    }

    #[test]
    fn delegations_together_get_half_of_the_total() {
        let mut quota = CgroupQuota::with_total(20);
        for n in 0..10 {
            assert_eq!(quota.admit(Some(CgroupId(n)), 0), Admission::Granted);
        }
        assert_eq!(
            quota.admit(Some(CgroupId(77)), 0),
            Admission::Collapse(CgroupId(77))
        );
        assert_eq!(quota.admit(None, 19), Admission::Granted);
        assert_eq!(quota.admit(None, 20), Admission::Denied);
        assert_eq!(quota.limitations(true, |_| String::new()).len(), 2);
    }

    #[test]
    fn limitations_name_a_few_cgroups_and_count_the_others() {
        let mut quota = CgroupQuota::with_total(10_000);
        let (short, long) = ("a".repeat(MAX_PATH), r"\".repeat(MAX_PATH / 4 + 1));
        for n in 0..100 {
            assert!(!quota.is_path_too_long(Some(CgroupId(n)), Path::new(&short)));
            assert!(!quota.has_long_path(CgroupId(n)));
            assert!(quota.is_path_too_long(Some(CgroupId(n)), Path::new(&long)));
            assert!(quota.has_long_path(CgroupId(n)));
        }
        assert!(quota.is_path_too_long(None, Path::new(&long)));
        let limitations = quota.limitations(false, |id| format!("#{id}"));
        assert_eq!(limitations.len(), MAX_NAMED + 2, "{limitations:?}");
        assert!(limitations[0].contains("in #0 has a path longer than 512 bytes"));
        assert!(
            limitations[MAX_NAMED].contains("92 other"),
            "{limitations:?}"
        );
        assert!(limitations[MAX_NAMED + 1].contains("right below the root"));
        for n in 0..100 {
            quota.forget(CgroupId(n));
        }
        assert_eq!(quota.limitations(false, |_| String::new()).len(), 1);
    }

    #[test]
    fn a_refresh_is_queued_once_and_done_in_time() {
        let t0 = Instant::now();
        let mut limiter = RateLimiter::new();
        for _ in 0..1000 {
            limiter.enqueue(CgroupId(1), RefreshKind::Low);
            limiter.enqueue(CgroupId(1), RefreshKind::Weight);
        }
        assert_eq!(limiter.next(t0), Some((CgroupId(1), RefreshKind::Low)));
        assert_eq!(limiter.next(t0), Some((CgroupId(1), RefreshKind::Weight)));
        assert_eq!(limiter.next(t0), None);
        for n in 0..5000 {
            limiter.enqueue(CgroupId(n), RefreshKind::Populated);
        }
        limiter.charge(200);
        let took = |limiter: &mut RateLimiter, at: Instant| {
            std::iter::from_fn(|| limiter.next(at)).count()
        };
        assert_eq!(took(&mut limiter, t0), 398);
        assert_eq!(took(&mut limiter, t0), 0);
        assert_eq!(took(&mut limiter, t0 + Duration::from_secs(1)), 200);
        // However late, it comes.
        let mut at = t0;
        let all: usize = (0..60)
            .map(|_| {
                at += Duration::from_secs(1);
                took(&mut limiter, at)
            })
            .sum();
        assert_eq!(all, 5000 - 598);
    }
}
