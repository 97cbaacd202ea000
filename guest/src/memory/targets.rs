//! Selects the cgroups for a reclaim step.
//!
//! If `justitia run` runs, it tells the memory that each tenant does not use: steps go to the tenants one by one. Otherwise the
//! root's `memory.reclaim` takes memory in the kernel's own order. That also takes memory within `memory.low`: the classic LRU if
//! it finds nothing else, the multi-gen LRU on a second visit (`shrink_one` in mm/vmscan.c). So with protected cgroups at the top
//! level, steps go to the top-level cgroups one by one, down to their protection. Below them the kernel spares protected memory.

use std::path::Path;

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::memory::Limit;

use super::worth::Spare;

/// The most top-level cgroups that are read.
const MAX_CGROUPS: usize = 256;

/// Where memory may be taken, and how much.
#[derive(Debug)]
pub(super) enum Targets {
    /// From the whole machine, in the kernel's order.
    Machine,
    /// From each of these, at most these bytes.
    Cgroups(Vec<(Cgroup, u64)>),
}

impl Targets {
    /// `root` is the root cgroup, `spare` the agent's answer.
    pub(super) fn find(root: &Cgroup, spare: Option<&[Spare]>) -> Self {
        if let Some(spare) = spare {
            let cgroups = spare
                .iter()
                .filter(|spare| spare.bytes > 0)
                .filter_map(|spare| Some((open(root, spare)?, spare.bytes)));
            return Self::Cgroups(cgroups.collect());
        }
        let names = root.children().unwrap_or_default();
        let children = names
            .iter()
            .take(MAX_CGROUPS)
            .filter_map(|name| root.child(name).ok());
        let seen: Vec<(Cgroup, Seen)> = children
            .filter_map(|cgroup| Seen::of(&cgroup).map(|seen| (cgroup, seen)))
            .collect();
        if seen.iter().all(|(_, seen)| seen.low == 0) {
            return Self::Machine;
        }
        Self::Cgroups(
            seen.into_iter()
                .map(|(cgroup, seen)| (cgroup, seen.excess()))
                .collect(),
        )
    }

    /// The cgroup furthest above its protection, and the bytes to take there, at most `bytes`. `None` if there is nothing to
    /// take.
    pub(super) fn next<'a>(
        &'a mut self,
        root: &'a Cgroup,
        bytes: u64,
    ) -> Option<(&'a Cgroup, u64)> {
        match self {
            Self::Machine => Some((root, bytes)),
            Self::Cgroups(cgroups) => {
                let (cgroup, excess) = cgroups.iter_mut().max_by_key(|(_, excess)| *excess)?;
                let taken = bytes.min(*excess);
                *excess -= taken;
                (taken > 0).then_some((&*cgroup, taken))
            }
        }
    }
}

/// The cgroup of a tenant, if it still exists.
fn open(root: &Cgroup, of: &Spare) -> Option<Cgroup> {
    let path = justitia_api::escape::decode(&of.path)?;
    let mut names = Path::new(&path).iter().filter(|name| *name != "/");
    let found = names.try_fold(root.clone(), |cgroup, name| cgroup.child(name).ok())?;
    (!found.is_root() && found.id().0 == of.id).then_some(found)
}

/// Readings of a cgroup, bytes.
#[derive(Clone, Copy, Debug)]
struct Seen {
    current: u64,
    low: u64,
    /// Clean pages of files.
    clean: u64,
}

impl Seen {
    fn of(cgroup: &Cgroup) -> Option<Self> {
        let stat = cgroup.memory_stat().ok()?;
        let dirty = stat.file_dirty.saturating_add(stat.file_writeback);
        Some(Self {
            current: cgroup.memory_current().ok()?,
            low: match cgroup.memory_low().ok()? {
                Limit::Bytes(bytes) => bytes,
                Limit::Max => u64::MAX,
            },
            clean: stat.file_lru().saturating_sub(dirty),
        })
    }

    /// Memory above the protection that can be taken.
    fn excess(&self) -> u64 {
        self.clean.min(self.current.saturating_sub(self.low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;
    use std::ffi::OsStr;
    use std::fs;

    /// A machine with cgroups of these bytes: current, low, file, dirty.
    fn machine(cgroups: &[(&str, u64, &str, u64, u64)]) -> (tempfile::TempDir, CgroupFs) {
        let dir = tempfile::tempdir().unwrap();
        for (name, current, low, file, dirty) in cgroups {
            let path = dir.path().join(name);
            fs::create_dir_all(&path).unwrap();
            let stat = format!(
                "anon 0\nfile {file}\nfile_dirty {dirty}\ninactive_file {file}\nactive_file 0\n"
            );
            for (file, text) in [
                ("memory.current", current.to_string()),
                ("memory.low", (*low).to_owned()),
                ("memory.stat", stat),
            ] {
                fs::write(path.join(file), format!("{text}\n")).unwrap();
            }
        }
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        (dir, fs)
    }

    /// The steps of 100 bytes that follow.
    fn steps(fs: &CgroupFs, spare: Option<&[Spare]>) -> Vec<(String, u64)> {
        let mut targets = Targets::find(fs.root(), spare);
        let mut steps = Vec::new();
        while let Some((cgroup, bytes)) = targets.next(fs.root(), 100)
            && steps.len() < 5
        {
            steps.push((cgroup.path().display().to_string(), bytes));
        }
        steps
    }

    fn named(steps: &[(String, u64)]) -> Vec<(&str, u64)> {
        steps.iter().map(|(name, n)| (&**name, *n)).collect()
    }

    #[test]
    fn without_protection_the_kernel_chooses() {
        let open = [("a", 500, "0", 500, 0), ("b", 500, "0", 500, 0)];
        for cgroups in [&open[..], &[]] {
            let (_dir, fs) = machine(cgroups);
            assert!(matches!(Targets::find(fs.root(), None), Targets::Machine));
            assert_eq!(steps(&fs, None).len(), 5);
        }
    }

    #[test]
    fn what_is_above_the_protection_is_taken_where_most_of_it_is() {
        let (_dir, fs) = machine(&[
            ("a", 500, "380", 500, 0),
            ("b", 1000, "0", 250, 50),
            ("all", 900, "max", 900, 0),
            ("within", 100, "300", 100, 0),
        ]);
        let found = steps(&fs, None);
        // 200 bytes of b are clean; then a has 120.
        let expected = [("b", 100), ("a", 100), ("b", 100), ("a", 20)];
        assert_eq!(named(&found), expected);
    }

    #[test]
    fn what_the_agents_tenants_do_not_use_is_taken() {
        let (_dir, fs) = machine(&[("a/b", 500, "500", 500, 0), (r"c\x2dd", 500, "500", 500, 0)]);
        let id = |names: &[&str]| {
            let mut cgroup = fs.root().clone();
            for name in names {
                cgroup = cgroup.child(OsStr::new(name)).unwrap();
            }
            cgroup.id().0
        };
        let spare = |path: &str, id, bytes| Spare {
            path: path.to_owned(),
            id,
            bytes,
        };
        let of = [
            spare("a/b", id(&["a", "b"]), 120),
            // As systemd names it, and as the agent says it.
            spare(r"c\x5cx2dd", id(&[r"c\x2dd"]), 50),
            // Another one has its name by now; it has gone; it is another's; it uses all.
            spare("a", 1, 500),
            spare("none", 2, 500),
            spare("", id(&[]), 500),
            spare("../x", 3, 500),
            spare(r"c\x5cx2dd", id(&[r"c\x2dd"]), 0),
        ];
        let found = steps(&fs, Some(&of));
        assert_eq!(named(&found), [("a/b", 100), (r"c\x2dd", 50), ("a/b", 20)]);
        assert_eq!(steps(&fs, Some(&[])), []);
    }
}
