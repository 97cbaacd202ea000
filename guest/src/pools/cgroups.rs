//! The managed cgroups with their weights, as the agent sees them.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use justitia_api::TenantStatus;
use justitia_cgroup_tree::{CgroupTree, Changes, Node, Rule};
use justitia_guest_protocol::memory::{Tenant, TenantName};
use justitia_kernel::block::bfq_disks;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};

use super::plan::Member;

/// The interval between scans of the tree, if events do not report every change.
const RESCAN: Duration = Duration::from_secs(10);

/// The administrator's cgroups. A delegatee's cgroups belong to the one above them: more cgroups do not get it more pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) members: BTreeMap<CgroupId, Member>,
    /// For every cgroup, the member to which it belongs.
    pub(crate) owners: BTreeMap<CgroupId, CgroupId>,
}

/// The cgroups.
#[derive(Debug)]
pub(crate) struct Cgroups {
    tree: CgroupTree<()>,
    rescanned: Instant,
}

impl Cgroups {
    /// Reads the tree.
    pub(crate) fn new(fs: &CgroupFs, rules: &[Rule]) -> Self {
        let bfq = bfq_disks(Path::new("/sys/block")).is_ok_and(|disks| !disks.is_empty());
        let mut tree = CgroupTree::new(fs, bfq, |_| ());
        let rescanned = Instant::now();
        tree.rescan(rules, rescanned, &mut Changes::default());
        Self { tree, rescanned }
    }

    /// Follows changes of the tree.
    pub(crate) fn follow(&mut self, rules: &[Rule], now: Instant) {
        self.tree.process_events(rules, now);
        let due = now.saturating_duration_since(self.rescanned) >= RESCAN;
        if due && (self.tree.events_lost() || self.tree.events_incomplete().is_some()) {
            self.tree.rescan(rules, now, &mut Changes::default());
            self.rescanned = now;
        }
    }

    /// The containers, and the container of each cgroup.
    pub(crate) fn view(&self) -> View {
        let mut view = View::default();
        // Parents come first.
        for id in self.tree.breadth_first() {
            let Some(node) = self.tree.get(id) else {
                continue;
            };
            let owner = match node.parent.filter(|_| node.in_delegation) {
                Some(parent) => view.owners.get(&parent).copied().unwrap_or(parent),
                None => {
                    let parent = node.parent.and_then(|parent| view.members.get_mut(&parent));
                    parent.into_iter().for_each(|parent| parent.leaf = false);
                    view.members.insert(id, self.member(node));
                    id
                }
            };
            view.owners.insert(id, owner);
        }
        view
    }

    /// The containers and units that share the page cache, named as in `justitia status`, with their file pages. A delegatee's
    /// cgroups, and the parts of a container, count as the whole.
    pub(crate) fn tenants(&self) -> Vec<Tenant> {
        let (mut own, mut inner) = (HashSet::new(), HashSet::new());
        // Parents come first.
        for id in self.tree.breadth_first() {
            let Some(node) = self.tree.get(id) else {
                continue;
            };
            if let Some(parent) = node.parent {
                if node.in_delegation || node.identity().part.is_some() || !own.contains(&parent) {
                    continue;
                }
                inner.insert(parent);
            }
            own.insert(id);
        }
        let leaves = own.difference(&inner).filter_map(|id| self.tree.get(*id));
        leaves.filter_map(|node| self.tenant(node)).collect()
    }

    fn tenant(&self, node: &Node<()>) -> Option<Tenant> {
        let file = node.cgroup.memory_stat().ok()?.file_lru();
        let shown = TenantStatus {
            path: self.tree.tenant_path(Some(node.cgroup.id())),
            name: node.identity().name.clone(),
            no_processes: !node.populated,
            usage: file,
            ..TenantStatus::default()
        };
        (!shown.is_minor()).then(|| Tenant {
            // The channel is ASCII.
            name: TenantName::new(&shown.display_name().replace('…', "..")),
            weight: self.tree.weight(node).0.get(),
            file,
        })
    }

    fn member(&self, node: &Node<()>) -> Member {
        let (weight, _) = self.tree.weight(node);
        Member {
            parent: node.parent,
            weight: u32::try_from(weight.get()).unwrap_or(u32::MAX),
            path: node.cgroup.path().to_string_lossy().into_owned(),
            leaf: true,
        }
    }

    /// The cgroup with this id.
    pub(crate) fn cgroup(&self, id: CgroupId) -> Option<&Cgroup> {
        self.tree.get(id).map(|node| &node.cgroup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_guest_protocol::memory::{MAX_TENANTS, Tenants};
    use std::fs;

    const MIB: u64 = 1 << 20;

    /// A cgroup that holds `file` bytes of file pages; without a process if it holds none.
    fn cgroup(root: &Path, path: &str, weight: u64, file: u64) {
        let path = root.join(path);
        fs::create_dir_all(&path).unwrap();
        let populated = u8::from(file > 0);
        for (file, text) in [
            ("cgroup.controllers", "memory io".to_owned()),
            ("cgroup.events", format!("populated {populated}\nfrozen 0")),
            ("io.weight", format!("default {weight}")),
            ("memory.low", "0".to_owned()),
            (
                "memory.stat",
                format!("anon 0\nfile {file}\ninactive_file {file}\nactive_file 0"),
            ),
        ] {
            fs::write(path.join(file), text + "\n").unwrap();
        }
    }

    fn told(root: &Path) -> Vec<(String, u64, u64)> {
        let fs = CgroupFs::open_fixture(root).unwrap();
        let tenants = Tenants::new(Cgroups::new(&fs, &[]).tenants());
        let told = tenants.list().iter();
        told.map(|of| (of.name.to_string(), of.weight, of.file / MIB))
            .collect()
    }

    #[test]
    fn tenants_are_the_leaves_with_their_names_weights_and_pages() {
        let dir = tempfile::tempdir().unwrap();
        let id = "ab".repeat(32);
        for (path, weight, mib) in [
            ("system.slice", 100, 90),
            ("system.slice/nginx.service", 300, 50),
            ("system.slice/nothing.mount", 100, 0),
            (&format!("system.slice/libpod-{id}.scope"), 200, 40),
            (
                &format!("system.slice/libpod-{id}.scope/container"),
                100,
                39,
            ),
            ("a b\u{1b}[2J", 10_000, 1),
        ] {
            cgroup(dir.path(), path, weight, mib * MIB);
        }
        let expected = [
            ("nginx.service", 300, 50),
            // No file says how it is called.
            ("abababababab", 200, 40),
            ("a?b?x1b[2J", 10_000, 1),
        ];
        let expected = expected.map(|(name, weight, mib)| (name.to_owned(), weight, mib));
        assert_eq!(told(dir.path()), expected);
    }

    #[test]
    fn of_many_cgroups_those_that_hold_most_are_told() {
        let dir = tempfile::tempdir().unwrap();
        for n in 1..=300 {
            cgroup(dir.path(), &format!("{n}.slice"), 100, n * MIB);
        }
        let told = told(dir.path());
        assert_eq!(told.len(), MAX_TENANTS);
        assert_eq!(told[0], ("300.slice".to_owned(), 100, 300));
    }
}
