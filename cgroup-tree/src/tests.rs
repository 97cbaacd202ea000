//! Trees of plain files; what others may write stands for what belongs to others.

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use std::time::Instant;

use justitia_api::WeightSource;
use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::knob::Knob;
use justitia_kernel::watch::TreeWatcher;

use super::*;
use crate::limits::CgroupQuota;

const MIB: u64 = 1 << 20;

const EXCLUDE: Override = Override {
    weight: None,
    min_cache: None,
    exclude: Some(true),
    delegated: None,
};

fn weighs(weight: u64) -> Override {
    Override {
        weight: justitia_share::Weight::try_from(weight).ok(),
        ..Override::default()
    }
}

fn delegates(delegated: bool) -> Override {
    Override {
        delegated: Some(delegated),
        ..Override::default()
    }
}

/// The same, and a minimum.
fn with_minimum(of: Override) -> Override {
    Override {
        min_cache: Some(64 * MIB),
        ..of
    }
}

/// A cgroup with its files; `low` in MiB.
fn cgroup(path: &Path, low: u64, weight: u64) {
    std::fs::create_dir_all(path).unwrap();
    write(path.join("cgroup.controllers"), "io memory\n").unwrap();
    write(path.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    write(path.join("memory.low"), format!("{}\n", low * MIB)).unwrap();
    write(path.join("io.weight"), format!("default {weight}\n")).unwrap();
}

/// Lets others than the administrator write these files.
fn delegate(path: &Path, files: &[&str]) {
    for file in files {
        let path = path.join(file);
        let bits = if path.is_dir() { 0o777 } else { 0o666 };
        set_permissions(path, Permissions::from_mode(bits)).unwrap();
    }
}

fn rule(pattern: &str, says: Override) -> Rule {
    let pattern = Pattern::new(pattern).unwrap();
    Rule::new(pattern.into(), says)
}

struct Fixture(CgroupTree<()>);

impl Fixture {
    fn of(root: &Path, rules: &[Rule]) -> Self {
        let fs = CgroupFs::open_fixture(root).unwrap();
        let mut cgroups = CgroupTree::new(&fs, false, |_| ());
        cgroups.rescan(rules, Instant::now(), &mut Changes::default());
        Self(cgroups)
    }

    fn node(&self, path: &str) -> &Node<()> {
        let mut nodes = self.0.nodes.values();
        nodes.find(|n| n.cgroup.path() == Path::new(path)).unwrap()
    }

    /// In MiB.
    fn minimums(&self, path: &str) -> (u64, u64) {
        let (minimum, requested) = self.node(path).minimums(0, Protection::ROOT, 0);
        (minimum / MIB, requested / MIB)
    }

    fn weight(&self, path: &str) -> (u64, WeightSource) {
        let (weight, from) = self.0.weight(self.node(path));
        (weight.get(), from)
    }
}

const FILES: [&str; 2] = ["memory.low", "io.weight"];

#[test]
fn a_delegatees_settings_count_inside_its_subtree() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("ours"), 10, 200);
    cgroup(&root.join("user"), 20, 300);
    delegate(&root.join("user"), &["."]);
    cgroup(&root.join("user/theirs"), 30, 9000);
    delegate(&root.join("user/theirs"), &[".", "memory.low", "io.weight"]);
    cgroup(&root.join("user/ours"), 40, 700);
    cgroup(&root.join("user/theirs/deeper"), 50, 800);
    delegate(&root.join("user/theirs/deeper"), &FILES);
    // The files that divide the parent's resources should never have been given away.
    cgroup(&root.join("careless"), 60, 900);
    delegate(&root.join("careless"), &[".", "memory.low", "io.weight"]);

    let seen = Fixture::of(root, &[]);
    for (path, minimums, weight) in [
        ("ours", (10, 0), (200, WeightSource::Cgroup)),
        ("user", (20, 0), (300, WeightSource::Cgroup)),
        ("user/theirs", (0, 30), (9000, WeightSource::Cgroup)),
        ("user/ours", (40, 0), (700, WeightSource::Cgroup)),
        ("user/theirs/deeper", (0, 50), (800, WeightSource::Cgroup)),
        ("careless", (0, 0), (100, WeightSource::Default)),
    ] {
        assert_eq!(seen.minimums(path), minimums, "{path}");
        assert_eq!(seen.weight(path), weight, "{path}");
    }
}

/// runc writes BFQ's weight wherever BFQ is loaded.
#[test]
fn the_weight_that_was_set_counts_in_either_file() {
    let dir = tempfile::tempdir().unwrap();
    for (io, bfq, scheduled, expected) in [
        (100, 400, false, Some(400)),
        (300, 400, false, Some(300)),
        (300, 400, true, Some(400)),
        (300, 100, true, Some(300)),
        (100, 100, false, None),
    ] {
        let path = dir.path().join("a");
        cgroup(&path, 0, io);
        write(path.join("io.bfq.weight"), format!("{bfq}\n")).unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        let mut cgroups = CgroupTree::new(&fs, scheduled, |_| ());
        cgroups.rescan(&[], Instant::now(), &mut Changes::default());
        let found = Fixture(cgroups).node("a").weight;
        assert_eq!(
            found.map(|(weight, _)| weight.get()),
            expected,
            "{io} {bfq} {scheduled}"
        );
    }
}

#[test]
fn a_target_of_latency_is_seen_when_it_is_set_and_a_delegatees_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for path in ["ours", "careless", "user", "user/theirs"] {
        cgroup(&root.join(path), 0, 100);
        write(root.join(path).join("io.latency"), "").unwrap();
    }
    for (path, files) in [("user", ["."]), ("careless", ["io.latency"])] {
        delegate(&root.join(path), &files);
    }
    let mut seen = Fixture::of(root, &[]);
    let mut set = |path: &str, line: &str| {
        write(root.join(path).join("io.latency"), line).unwrap();
        let changes = seen.0.process_events(&[], Instant::now());
        assert!(!changes.weights_changed);
        let found = seen.0.latency_targets().into_iter();
        found.map(|device| device.to_string()).collect::<Vec<_>>()
    };
    assert!(set("user/theirs", "8:0 target=1\n").is_empty());
    assert!(set("careless", "8:0 target=1\n").is_empty());
    assert_eq!(set("ours", "8:16 target=9000\n"), ["8:16"]);
    assert_eq!(set("user", "8:0 target=9000\n"), ["8:0", "8:16"]);
    assert_eq!(set("ours", ""), ["8:0"]);
}

/// podman with crun sets it on the container's cgroup inside the scope. A delegatee may not set its own this way.
#[test]
fn an_only_childs_weight_counts_if_its_author_may_set_the_parents() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("scope"), 0, 100);
    cgroup(&root.join("scope/container"), 0, 300);
    cgroup(&root.join("user"), 0, 100);
    delegate(&root.join("user"), &["."]);
    cgroup(&root.join("user/scope"), 0, 100);
    delegate(&root.join("user/scope"), &[".", "memory.low", "io.weight"]);
    cgroup(&root.join("user/scope/container"), 0, 10_000);
    delegate(&root.join("user/scope/container"), &FILES);
    let seen = Fixture::of(root, &[]);
    assert_eq!(seen.weight("scope"), (300, WeightSource::OnlyChild));
    assert_eq!(seen.weight("user/scope"), (10_000, WeightSource::OnlyChild));
    assert_eq!(seen.weight("user"), (100, WeightSource::Default));

    // One level up: the delegatee sets the weight of its only cgroup.
    cgroup(&root.join("user/scope"), 0, 10_000);
    let seen = Fixture::of(root, &[]);
    assert_eq!(seen.weight("user"), (100, WeightSource::Default));
}

#[test]
fn a_configured_minimum_is_a_request_in_a_delegated_subtree() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("user"), 0, 100);
    delegate(&root.join("user"), &["."]);
    cgroup(&root.join("user/web-1"), 0, 100);
    cgroup(&root.join("web-1"), 0, 100);
    let says = with_minimum(Override::default());
    let rules = ["web-*", "user/web-*"].map(|pattern| rule(pattern, says));
    let seen = Fixture::of(root, &rules);
    assert_eq!(seen.minimums("web-1"), (64, 0));
    assert_eq!(seen.minimums("user/web-1"), (0, 64));
}

#[test]
fn a_rescan_finds_changes_without_events() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("a"), 0, 100);
    let mut seen = Fixture::of(root, &[]);
    cgroup(&root.join("a/b"), 0, 100);
    cgroup(&root.join("a/b/c"), 0, 700);
    let mut changes = Changes::default();
    seen.0.rescan(&[], Instant::now(), &mut changes);
    assert_eq!(changes.added.len(), 2);
    assert_eq!(seen.weight("a/b/c").0, 700);
    let a = seen.node("a").cgroup.id();
    assert!(changes.knobs_written.contains(&(a, Knob::MemoryLow)));
    assert!(!changes.weights_changed);
    std::fs::write(root.join("a/io.weight"), "default 300\n").unwrap();
    seen.0.rescan(&[], Instant::now(), &mut changes);
    assert!(changes.weights_changed);
}

#[test]
fn depth_and_number_of_delegated_cgroups_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let mut deep = root.to_owned();
    for _ in 0..40 {
        deep.push("d");
        cgroup(&deep, 0, 100);
    }
    cgroup(&root.join("user"), 0, 100);
    delegate(&root.join("user"), &["."]);
    for n in 0..499 {
        cgroup(&root.join(format!("user/{n}")), 0, 100);
    }
    cgroup(&root.join("other"), 0, 100);
    let mut seen = Fixture::of(root, &[]);
    assert_eq!(seen.0.len(), 32 + 1 + 499 + 1);
    assert!(seen.0.limitations().is_empty());

    // One too many.
    cgroup(&root.join("user/499"), 0, 100);
    cgroup(&root.join("user/0/500"), 0, 100);
    let mut changes = Changes::default();
    seen.0.rescan(&[], Instant::now(), &mut changes);
    assert_eq!(seen.0.len(), 32 + 2, "what was delegated is one tenant");
    assert_eq!(seen.0.watcher().map(TreeWatcher::len), Some(32 + 2 + 1));
    assert!(seen.node("user").children.is_empty());
    let limits = seen.0.limitations();
    assert!(
        limits.len() == 1 && limits[0].contains("user was delegated"),
        "{limits:?}"
    );
    let gone = changes.removed.len();
    assert!(gone >= 500, "{gone}");
    let mut later = Changes::default();
    cgroup(&root.join("user/501"), 0, 100);
    cgroup(&root.join("late"), 0, 100);
    seen.0.rescan(&[], Instant::now(), &mut later);
    assert_eq!((later.added.len(), later.removed.len()), (1, 0));
}

/// The names consist of bytes that are escaped. Their parent stays one tenant until it is made anew.
#[test]
fn cgroups_with_long_paths_are_one_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let long = |n: usize| format!("{n}{}", "\u{1}".repeat(240));
    cgroup(&root.join("user"), 0, 100);
    cgroup(&root.join("user/a"), 0, 100);
    let mut seen = Fixture::of(root, &[]);
    assert_eq!(seen.0.len(), 2);

    let mut changes = Changes::default();
    for n in 0..3 {
        cgroup(&root.join("user").join(long(n)), 0, 100);
        cgroup(&root.join("user").join(long(n)).join(long(n)), 0, 100);
        seen.0.rescan(&[], Instant::now(), &mut changes);
    }
    assert_eq!((seen.0.len(), changes.removed.len()), (1, 1));
    assert!(seen.node("user").children.is_empty());
    assert_eq!(seen.0.watcher().map(TreeWatcher::len), Some(2));
    let limits = seen.0.limitations();
    assert!(
        limits.len() == 1 && limits[0].contains("a cgroup in user has a path longer"),
        "{limits:?}"
    );

    // Right below the root such a cgroup is unmanaged, and no other is affected.
    cgroup(&root.join(long(0)), 0, 100);
    cgroup(&root.join("b"), 0, 100);
    seen.0.rescan(&[], Instant::now(), &mut changes);
    assert_eq!(seen.0.len(), 2);
    assert_eq!(seen.0.limitations().len(), 2);

    // Made anew, it is tracked as any other.
    std::fs::remove_dir_all(root.join("user")).unwrap();
    seen.0.rescan(&[], Instant::now(), &mut changes);
    cgroup(&root.join("user"), 0, 100);
    cgroup(&root.join("user/a"), 0, 100);
    seen.0.rescan(&[], Instant::now(), &mut changes);
    assert_eq!(seen.0.len(), 3);
    assert_eq!(seen.0.limitations().len(), 1);
}

mod identity;
mod rules;

/// Its event is consumed, so no other reason would lead to reading it again.
#[test]
fn a_minimum_that_cannot_be_read_now_is_read_by_a_rescan() {
    use justitia_kernel::error::{Error, Operation};
    use rustix::io::Errno;
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
        let dir = tempfile::tempdir().unwrap();
        cgroup(&dir.path().join("a"), 5, 100);
        let mut seen = Fixture::of(dir.path(), &[]);
        let id = seen.node("a").cgroup.id();
        let unread = Error::Io {
            operation: Operation::Open,
            path: "a/memory.low".into(),
            errno,
        };
        seen.0.record_low(id, Err(unread));
        assert!(seen.0.events_lost(), "{errno}");
        assert_eq!(seen.node("a").external_low, 5 * MIB, "what is known stays");
        let mut changes = Changes::default();
        seen.0.rescan(&[], Instant::now(), &mut changes);
        assert_eq!(changes.knobs_written, [(id, Knob::MemoryLow)]);
        assert!(!seen.0.events_lost());
    }
}

/// `echo -memory >cgroup.subtree_control` of the parent, and back.
#[test]
fn a_cgroup_that_loses_the_memory_controller_is_no_tenant() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["a", "a/b", "a/b/c", "d"] {
        cgroup(&dir.path().join(path), 0, 100);
    }
    write(dir.path().join("a/cgroup.subtree_control"), "memory io\n").unwrap();
    let mut seen = Fixture::of(dir.path(), &[]);
    let ids = [seen.node("a/b/c"), seen.node("a/b")].map(|node| node.cgroup.id());
    let mut enabled = |controllers: &str| {
        for path in ["a/b", "a/b/c"] {
            let file = dir.path().join(path).join("cgroup.controllers");
            write(file, format!("{controllers}\n")).unwrap();
        }
        // The event by which it is known.
        write(dir.path().join("a/cgroup.subtree_control"), controllers).unwrap();
        seen.0.process_events(&[], Instant::now())
    };
    let changes = enabled("memory");
    assert!(changes.removed.is_empty() && changes.added.is_empty());
    assert_eq!(enabled("io").removed, ids);
    assert_eq!(enabled("io memory").added.len(), 2);
    assert_eq!(seen.0.len(), 4);
}

/// `echo -io >cgroup.subtree_control` of the parent: its files are gone, with what stood there.
#[test]
fn a_cgroup_that_loses_the_io_controller_has_no_weight_and_no_target_of_latency() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["a", "a/b"] {
        cgroup(&dir.path().join(path), 0, 300);
    }
    let b = dir.path().join("a/b");
    write(b.join("io.latency"), "8:0 target=9000\n").unwrap();
    let control = dir.path().join("a/cgroup.subtree_control");
    write(&control, "memory io\n").unwrap();
    let mut seen = Fixture::of(dir.path(), &[]);
    assert_eq!(seen.0.latency_targets().len(), 1);
    assert_eq!(seen.weight("a/b"), (300, WeightSource::Cgroup));
    for file in ["io.latency", "io.weight"] {
        std::fs::remove_file(b.join(file)).unwrap();
    }
    write(b.join("cgroup.controllers"), "memory\n").unwrap();
    write(&control, "memory\n").unwrap();
    assert!(seen.0.process_events(&[], Instant::now()).weights_changed);
    assert!(seen.0.latency_targets().is_empty());
    assert_eq!(seen.weight("a/b"), (100, WeightSource::Default));
}

#[test]
fn what_a_removed_cgroup_held_is_remembered_of_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["top", "slice", "slice/service"] {
        cgroup(&dir.path().join(path), 0, 100);
    }
    let mut tree = Fixture::of(dir.path(), &[]);
    let slice = tree.node("slice").cgroup.id();
    for (path, parent) in [("top", None), ("slice/service", Some(slice))] {
        let id = tree.node(path).cgroup.id();
        let node = tree.0.nodes.get_mut(&id).unwrap();
        (node.held, node.used) = (300 * MIB, 200 * MIB);
        tree.0.remove(id, &mut Changes::default());
        let left = tree.0.departed(parent, Instant::now());
        assert_eq!((left.held, left.used), (300 * MIB, 200 * MIB), "{path}");
    }
    let removed = Some(CgroupId(0));
    assert_eq!(tree.0.departed(removed, Instant::now()).held, 0);
}

/// Reclaim from a cgroup passes over what it would take from those that are left out: no longer than there are any.
#[test]
fn a_cgroup_that_was_left_out_is_tracked_or_forgotten_when_one_is_removed() {
    for (parent, total) in [("", 1), ("a", 2)] {
        for tracked in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(parent);
            for child in [&path, &path.join("x"), &path.join("y")] {
                cgroup(child, 0, 100);
            }
            let fs = CgroupFs::open_fixture(dir.path()).unwrap();
            let mut seen = Fixture(CgroupTree::new(&fs, false, |_| ()));
            seen.0.quota = CgroupQuota::with_total(total);
            seen.0.rescan(&[], Instant::now(), &mut Changes::default());
            assert!(seen.0.has_unmanaged_cgroups());
            assert_eq!(seen.0.limitations().len(), 1);

            let is_tracked = |name: &&str| {
                let path = Path::new(parent).join(name);
                seen.0.nodes.values().any(|n| n.cgroup.path() == path) == tracked
            };
            let removed = ["x", "y"].into_iter().find(is_tracked).unwrap();
            seen.0.scans = 0;
            std::fs::remove_dir_all(path.join(removed)).unwrap();
            let changes = seen.0.process_events(&[], Instant::now());
            assert_eq!(changes.added.len(), usize::from(tracked));
            assert_eq!(seen.0.scans, changes.added.len(), "of what was added");
            assert!(!seen.0.has_unmanaged_cgroups(), "{parent:?} {tracked}");
            assert!(seen.0.limitations().is_empty());
        }
    }
}

/// Neither for those that are tracked nor for those that are left out.
#[test]
fn a_directory_is_not_listed_for_each_cgroup_that_is_removed() {
    const TOTAL: usize = 50;
    let dir = tempfile::tempdir().unwrap();
    let path = |n: usize| dir.path().join(format!("{n}"));
    for n in 0..3 * TOTAL {
        cgroup(&path(n), 0, 100);
    }
    let fs = CgroupFs::open_fixture(dir.path()).unwrap();
    let mut seen = Fixture(CgroupTree::new(&fs, false, |_| ()));
    seen.0.quota = CgroupQuota::with_total(TOTAL);
    seen.0.rescan(&[], Instant::now(), &mut Changes::default());
    assert_eq!(seen.0.len(), TOTAL);
    seen.0.scans = 0;
    let mut changes = Changes::default();
    for n in 0..2 * TOTAL {
        std::fs::remove_dir_all(path(n)).unwrap();
        let change = seen.0.process_events(&[], Instant::now());
        changes.added.extend(change.added);
        changes.removed.extend(change.removed);
        assert_eq!(seen.0.len(), TOTAL);
    }
    assert_eq!(changes.added.len(), changes.removed.len());
    // Of one that is added the children are looked for.
    assert_eq!(seen.0.scans, changes.added.len());
    assert!(!seen.0.has_unmanaged_cgroups());
}
