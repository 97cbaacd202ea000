//! From which cgroups a step is taken.
//!
//! The root's `memory.reclaim` takes in the kernel's own order. With the classic LRU that spares cgroups within their
//! `memory.low`. With the multi-gen LRU it does not for long: they are only visited later (`shrink_one` in mm/vmscan.c).
//! There, where `justitia run` or somebody else protects cgroups, what lies above the protection is taken from each cgroup at
//! the top level by itself, and below these the kernel spares what is protected.

use std::path::Path;

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::lru_gen;
use justitia_kernel::memory::Limit;

/// Cgroups at the top level that are looked at.
const MAX_CGROUPS: usize = 256;

/// What may be taken, and where.
#[derive(Debug)]
pub(super) enum Targets {
    /// From the whole machine, in the kernel's order.
    Machine,
    /// From each of these so many bytes.
    Cgroups(Vec<(Cgroup, u64)>),
}

impl Targets {
    /// `root` is the root cgroup.
    pub(super) fn find(root: &Cgroup, sys: &Path) -> Self {
        let multi_gen = matches!(lru_gen::enabled(sys), Ok(Some(bits)) if bits & 1 == 1);
        if !multi_gen {
            return Self::Machine;
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

    /// Where at most so many bytes are taken next, and how many: from the cgroup with most above its protection. `None`
    /// where there is nothing.
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

/// What is seen of a cgroup, bytes.
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

    /// What lies above the protection, and can be taken.
    fn excess(&self) -> u64 {
        self.clean.min(self.current.saturating_sub(self.low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;
    use std::fs;

    /// A machine with cgroups of these bytes: current, low, file, dirty.
    fn machine(
        multi_gen: &str,
        cgroups: &[(&str, u64, &str, u64, u64)],
    ) -> (tempfile::TempDir, Targets) {
        let dir = tempfile::tempdir().unwrap();
        let (root, sys) = (dir.path().join("cgroup"), dir.path().join("sys"));
        fs::create_dir_all(sys.join("kernel/mm/lru_gen")).unwrap();
        fs::write(sys.join("kernel/mm/lru_gen/enabled"), multi_gen).unwrap();
        fs::create_dir(&root).unwrap();
        for (name, current, low, file, dirty) in cgroups {
            let path = root.join(name);
            fs::create_dir(&path).unwrap();
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
        let fs = CgroupFs::open_fixture(&root, true).unwrap();
        let targets = Targets::find(fs.root(), &sys);
        (dir, targets)
    }

    /// The steps of 100 bytes that follow.
    fn steps(dir: &tempfile::TempDir, targets: &mut Targets) -> Vec<(String, u64)> {
        let fs = CgroupFs::open_fixture(&dir.path().join("cgroup"), true).unwrap();
        let mut steps = Vec::new();
        while let Some((cgroup, bytes)) = targets.next(fs.root(), 100)
            && steps.len() < 5
        {
            steps.push((cgroup.path().display().to_string(), bytes));
        }
        steps
    }

    #[test]
    fn without_protection_and_with_the_classic_lru_the_kernel_chooses() {
        let protected = [("a", 500, "300", 500, 0)];
        let open = [("a", 500, "0", 500, 0), ("b", 500, "0", 500, 0)];
        for (multi_gen, cgroups) in [
            ("0x0000", &protected[..]),
            ("0x0007", &open),
            ("0x0007", &[]),
        ] {
            let (dir, mut targets) = machine(multi_gen, cgroups);
            assert!(matches!(targets, Targets::Machine));
            assert_eq!(steps(&dir, &mut targets).len(), 5);
        }
    }

    #[test]
    fn what_is_above_the_protection_is_taken_where_most_of_it_is() {
        let (dir, mut targets) = machine(
            "0x0007\n",
            &[
                ("a", 500, "380", 500, 0),
                ("b", 1000, "0", 250, 50),
                ("all", 900, "max", 900, 0),
                ("within", 100, "300", 100, 0),
            ],
        );
        let found = steps(&dir, &mut targets);
        let found: Vec<(&str, u64)> = found.iter().map(|(name, n)| (&**name, *n)).collect();
        // 200 bytes of b are clean; then a has 120.
        assert_eq!(found, [("b", 100), ("a", 100), ("b", 100), ("a", 20)]);
    }
}
