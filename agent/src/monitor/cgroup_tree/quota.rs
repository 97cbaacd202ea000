//! How many cgroups take part: somebody to whom a subtree was delegated can make as many as he likes, as deep as he
//! likes, and each costs the agent descriptors, memory and time.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use justitia_kernel::cgroup::CgroupId;
use rustix::process::{Resource, getrlimit};

use justitia_api::escape;

/// Cgroups below a delegated one are told apart up to this many; beyond it the delegated one is one tenant.
const OF_A_DELEGATE: usize = 500;
/// Deeper than this below the root nothing is told apart: pages count for the ancestor at this depth.
pub const DEEPEST: usize = 32;
/// The longest path that is told apart, bytes in the escaped form in which the ledger, the status and the metrics have it;
/// pages of cgroups beyond it count for the nearest ancestor within it.
const LONGEST: usize = 512;
/// Cgroups that the limits name each; of more they say how many.
const NAMED: usize = 8;
/// Cgroups altogether; fewer where descriptors do not suffice.
const MOST: usize = 10_000;
/// What a cgroup costs: its directory, its events, and now and then a file of it.
const DESCRIPTORS: u64 = 3;
/// Descriptors for everything else.
const OTHERS: u64 = 512;

/// Who has how many.
#[derive(Debug)]
pub struct CgroupQuota {
    most: usize,
    delegates: HashMap<CgroupId, usize>,
    all_delegates: usize,
    collapsed: HashSet<CgroupId>,
    /// Cgroups with a child whose path is too long.
    long: HashSet<CgroupId>,
    /// Whether the root has one.
    long_at_the_root: bool,
    full: bool,
}

/// Whether one more takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It does.
    Granted,
    /// It does not.
    Denied,
    /// It does not, and neither do the others below what was delegated, from now on.
    Collapse(CgroupId),
}

impl CgroupQuota {
    /// As many as this process has descriptors for.
    pub fn new() -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = descriptors.saturating_sub(OTHERS) / DESCRIPTORS;
        Self::of(usize::try_from(most).unwrap_or(MOST).min(MOST))
    }

    fn of(most: usize) -> Self {
        Self {
            most,
            delegates: HashMap::new(),
            all_delegates: 0,
            collapsed: HashSet::new(),
            long: HashSet::new(),
            long_at_the_root: false,
            full: false,
        }
    }

    /// One more comes, where `there` are; `top` is the delegated cgroup that it is below.
    pub fn admit(&mut self, top: Option<CgroupId>, there: usize) -> Admission {
        if top.is_some_and(|top| self.is_collapsed(top)) {
            return Admission::Denied;
        }
        if let Some(top) = top {
            let count = self.delegates.entry(top).or_default();
            // All delegates together leave room for who is none.
            if *count >= OF_A_DELEGATE || self.all_delegates >= self.most / 2 {
                self.collapsed.insert(top);
                return Admission::Collapse(top);
            }
            *count += 1;
            self.all_delegates += 1;
        } else if there >= self.most {
            self.full = true;
            return Admission::Denied;
        }
        Admission::Granted
    }

    /// One that was below `top` is gone.
    pub fn release(&mut self, top: Option<CgroupId>) {
        if let Some(count) = top.and_then(|top| self.delegates.get_mut(&top)) {
            *count = count.saturating_sub(1);
            self.all_delegates = self.all_delegates.saturating_sub(1);
        }
    }

    /// A delegated cgroup is gone itself.
    pub fn forget(&mut self, top: CgroupId) {
        self.delegates.remove(&top);
        self.collapsed.remove(&top);
        self.long.remove(&top);
    }

    /// Whether the path of a child of `parent` is too long. Then the children of `parent` are told apart no more.
    pub fn is_too_long(&mut self, parent: Option<CgroupId>, child: &Path) -> bool {
        let too_long = escape::encoded_len(child.as_os_str()) > LONGEST;
        match parent {
            _ if !too_long => {}
            Some(parent) => drop(self.long.insert(parent)),
            None => self.long_at_the_root = true,
        }
        too_long
    }

    /// Whether the children of `id` are told apart no more, because of a path that is too long.
    pub fn has_long(&self, id: CgroupId) -> bool {
        self.long.contains(&id)
    }

    /// Whether what is below `top` is told apart no more.
    pub fn is_collapsed(&self, top: CgroupId) -> bool {
        self.collapsed.contains(&top)
    }

    /// What is not told apart, and why; the paths of shut cgroups come from `path`.
    pub fn limitations(&self, path: impl Fn(CgroupId) -> String) -> Vec<String> {
        let named = |ids: &HashSet<CgroupId>| {
            let mut named: Vec<String> = ids.iter().map(|id| path(*id)).collect();
            named.sort();
            let more = named.len().saturating_sub(NAMED);
            named.truncate(NAMED);
            (named, more)
        };
        let (shut, more) = named(&self.collapsed);
        let mut limits: Vec<String> = shut
            .into_iter()
            .map(|path| {
                format!(
                    "Tenants: {path} was delegated, and has more than {OF_A_DELEGATE} cgroups (or all delegated ones \
                     have more than {}): it is one tenant, until it is made anew or the agent starts again",
                    self.most / 2
                )
            })
            .collect();
        if more > 0 {
            limits.push(format!("Tenants: so are {more} other delegated cgroups"));
        }
        let (long, more) = named(&self.long);
        limits.extend(long.into_iter().map(|path| {
            format!(
                "Tenants: a cgroup in {path} has a path longer than {LONGEST} bytes (those outside printable ASCII \
                 count four): {path} is one tenant, until it is made anew or the agent starts again"
            )
        }));
        if more > 0 {
            limits.push(format!(
                "Tenants: so are {more} other cgroups, because of longer paths in them"
            ));
        }
        if self.long_at_the_root {
            limits.push(format!(
                "Tenants: a cgroup right below the root has a name longer than {LONGEST} bytes (those outside \
                 printable ASCII count four): it counts as outside"
            ));
        }
        if self.full {
            limits.push(format!(
                "Tenants: there are more than {} cgroups, and no descriptors for more: later ones count as outside",
                self.most
            ));
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delegate_shuts_himself_out_and_nobody_else() {
        let mut quota = CgroupQuota::of(10_000);
        let (his, others) = (CgroupId(1), CgroupId(2));
        for there in 0..OF_A_DELEGATE {
            assert_eq!(quota.admit(Some(his), there), Admission::Granted);
        }
        quota.release(Some(his));
        assert_eq!(quota.admit(Some(his), 1), Admission::Granted);
        assert_eq!(quota.admit(Some(his), 1), Admission::Collapse(his));
        assert_eq!(quota.admit(Some(his), 1), Admission::Denied);
        assert_eq!(quota.admit(Some(others), 1), Admission::Granted);
        assert_eq!(quota.admit(None, 1), Admission::Granted);
        let limits = quota.limitations(|id| format!("#{id}"));
        assert!(
            limits.len() == 1 && limits[0].contains("#1 was delegated"),
            "{limits:?}"
        );
        quota.forget(his);
        assert_eq!(quota.admit(Some(his), 1), Admission::Granted);
    }

    #[test]
    fn all_delegates_together_leave_room_and_nobody_gets_more_than_there_is() {
        let mut quota = CgroupQuota::of(20);
        for n in 0..10 {
            assert_eq!(quota.admit(Some(CgroupId(n)), 0), Admission::Granted);
        }
        assert_eq!(
            quota.admit(Some(CgroupId(77)), 0),
            Admission::Collapse(CgroupId(77))
        );
        assert_eq!(quota.admit(None, 19), Admission::Granted);
        assert_eq!(quota.admit(None, 20), Admission::Denied);
        assert_eq!(quota.limitations(|_| String::new()).len(), 2);
    }

    #[test]
    fn the_limits_name_a_few_and_count_the_others() {
        let mut quota = CgroupQuota::of(10_000);
        let (short, long) = ("a".repeat(LONGEST), r"\".repeat(LONGEST / 4 + 1));
        for n in 0..100 {
            assert!(!quota.is_too_long(Some(CgroupId(n)), Path::new(&short)));
            assert!(!quota.has_long(CgroupId(n)));
            assert!(quota.is_too_long(Some(CgroupId(n)), Path::new(&long)));
            assert!(quota.has_long(CgroupId(n)));
        }
        assert!(quota.is_too_long(None, Path::new(&long)));
        let limits = quota.limitations(|id| format!("#{id}"));
        assert_eq!(limits.len(), NAMED + 2, "{limits:?}");
        assert!(limits[0].contains("in #0 has a path longer than 512 bytes"));
        assert!(limits[NAMED].contains("92 other"), "{limits:?}");
        assert!(limits[NAMED + 1].contains("right below the root"));
        for n in 0..100 {
            quota.forget(CgroupId(n));
        }
        assert_eq!(quota.limitations(|_| String::new()).len(), 1);
    }
}
