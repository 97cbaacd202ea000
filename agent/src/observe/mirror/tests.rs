//! Trees of plain files; what others may write stands for what belongs to others.

use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;

const MIB: u64 = 1 << 20;

/// A cgroup with its files; `low` in MiB.
fn cgroup(path: &Path, low: u64, weight: u64) {
    std::fs::create_dir_all(path).unwrap();
    write(path.join("cgroup.controllers"), "io memory\n").unwrap();
    write(path.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
    write(path.join("memory.low"), format!("{}\n", low * MIB)).unwrap();
    write(path.join("io.weight"), format!("default {weight}\n")).unwrap();
}

/// What others than the administrator may write.
fn give(path: &Path, files: &[&str]) {
    for file in files {
        let path = path.join(file);
        let bits = if path.is_dir() { 0o777 } else { 0o666 };
        set_permissions(path, Permissions::from_mode(bits)).unwrap();
    }
}

struct Seen(Mirror);

impl Seen {
    fn of(root: &Path, config: &Config) -> Self {
        let fs = CgroupFs::open_fixture(root, true).unwrap();
        let mut mirror = Mirror::new(&fs, false);
        mirror.rescan(config, Instant::now(), &mut Changes::default());
        Self(mirror)
    }

    fn node(&self, path: &str) -> &Node {
        let mut nodes = self.0.nodes.values();
        nodes.find(|n| n.cgroup.path() == Path::new(path)).unwrap()
    }

    /// In MiB.
    fn floors(&self, path: &str) -> (u64, u64) {
        let (floor, wish) = self.node(path).floors(0);
        (floor / MIB, wish / MIB)
    }

    fn weight(&self, path: &str) -> (u64, WeightFrom) {
        let (weight, from) = self.0.weight(self.node(path));
        (weight.get(), from)
    }
}

const FILES: [&str; 2] = ["memory.low", "io.weight"];

#[test]
fn a_delegates_word_counts_where_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("ours"), 10, 200);
    cgroup(&root.join("user"), 20, 300);
    give(&root.join("user"), &["."]);
    cgroup(&root.join("user/his"), 30, 9000);
    give(&root.join("user/his"), &[".", "memory.low", "io.weight"]);
    cgroup(&root.join("user/ours"), 40, 700);
    cgroup(&root.join("user/his/deeper"), 50, 800);
    give(&root.join("user/his/deeper"), &FILES);
    // The files that divide the parent's resources should never have been given away.
    cgroup(&root.join("careless"), 60, 900);
    give(&root.join("careless"), &[".", "memory.low", "io.weight"]);

    let seen = Seen::of(root, &Config::default());
    for (path, floors, weight) in [
        ("ours", (10, 0), (200, WeightFrom::Cgroup)),
        ("user", (20, 0), (300, WeightFrom::Cgroup)),
        ("user/his", (0, 30), (9000, WeightFrom::Cgroup)),
        ("user/ours", (40, 0), (700, WeightFrom::Cgroup)),
        ("user/his/deeper", (0, 50), (800, WeightFrom::Cgroup)),
        ("careless", (0, 0), (100, WeightFrom::Nobody)),
    ] {
        assert_eq!(seen.floors(path), floors, "{path}");
        assert_eq!(seen.weight(path), weight, "{path}");
    }
}

/// runc writes BFQ's weight wherever BFQ is loaded.
#[test]
fn the_weight_that_was_set_counts_whichever_file_it_is_in() {
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
        let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
        let found = weight_of(&fs.root().child("a".as_ref()).unwrap(), scheduled);
        assert_eq!(
            found.map(|(weight, _)| weight.get()),
            expected,
            "{io} {bfq} {scheduled}"
        );
    }
}

/// podman with crun sets it on the container's cgroup inside the scope. Nobody may set it so for himself.
#[test]
fn an_only_childs_weight_counts_for_who_might_weigh_the_parent() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("scope"), 0, 100);
    cgroup(&root.join("scope/container"), 0, 300);
    cgroup(&root.join("user"), 0, 100);
    give(&root.join("user"), &["."]);
    cgroup(&root.join("user/scope"), 0, 100);
    give(&root.join("user/scope"), &[".", "memory.low", "io.weight"]);
    cgroup(&root.join("user/scope/container"), 0, 10_000);
    give(&root.join("user/scope/container"), &FILES);
    let seen = Seen::of(root, &Config::default());
    assert_eq!(seen.weight("scope"), (300, WeightFrom::OnlyChild));
    assert_eq!(seen.weight("user/scope"), (10_000, WeightFrom::OnlyChild));
    assert_eq!(seen.weight("user"), (100, WeightFrom::Nobody));

    // The same one level up: his only cgroup, weighed by himself.
    cgroup(&root.join("user/scope"), 0, 10_000);
    let seen = Seen::of(root, &Config::default());
    assert_eq!(seen.weight("user"), (100, WeightFrom::Nobody));
}

#[test]
fn a_rules_floor_is_no_floor_for_as_many_as_somebody_makes() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("user"), 0, 100);
    give(&root.join("user"), &["."]);
    cgroup(&root.join("user/web-1"), 0, 100);
    cgroup(&root.join("web-1"), 0, 100);
    let file = root.join("justitia.toml");
    let rules =
        ["web-*", "user/web-*"].map(|m| format!("[[tenant]]\nmatch = {m:?}\nfloor = \"64MiB\"\n"));
    write(&file, rules.concat()).unwrap();
    let config = Config::load(Some(&file)).unwrap();
    let seen = Seen::of(root, &config);
    assert_eq!(seen.floors("web-1"), (64, 0));
    assert_eq!(seen.floors("user/web-1"), (0, 64));
}

/// What was made while nobody listened is found, however deep.
#[test]
fn a_rescan_finds_what_events_did_not_tell() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("a"), 0, 100);
    let config = Config::default();
    let mut seen = Seen::of(root, &config);
    cgroup(&root.join("a/b"), 0, 100);
    cgroup(&root.join("a/b/c"), 0, 700);
    let mut changes = Changes::default();
    seen.0.rescan(&config, Instant::now(), &mut changes);
    assert_eq!(changes.come.len(), 2);
    assert_eq!(seen.weight("a/b/c").0, 700);
    let a = seen.node("a").cgroup.id();
    assert!(changes.written.contains(&(a, Knob::MemoryLow)));
    assert!(!changes.weighed);
    std::fs::write(root.join("a/io.weight"), "default 300\n").unwrap();
    seen.0.rescan(&config, Instant::now(), &mut changes);
    assert!(changes.weighed);
}

#[test]
fn depth_and_crowds_below_what_was_delegated_cost_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let mut deep = root.to_owned();
    for _ in 0..40 {
        deep.push("d");
        cgroup(&deep, 0, 100);
    }
    cgroup(&root.join("user"), 0, 100);
    give(&root.join("user"), &["."]);
    for n in 0..499 {
        cgroup(&root.join(format!("user/{n}")), 0, 100);
    }
    cgroup(&root.join("other"), 0, 100);
    let config = Config::default();
    let mut seen = Seen::of(root, &config);
    assert_eq!(seen.0.len(), 32 + 1 + 499 + 1);
    assert!(seen.0.limits().is_empty());

    // Two more are one too many.
    cgroup(&root.join("user/499"), 0, 100);
    cgroup(&root.join("user/0/500"), 0, 100);
    let mut changes = Changes::default();
    seen.0.rescan(&config, Instant::now(), &mut changes);
    assert_eq!(seen.0.len(), 32 + 2, "what was delegated is one tenant");
    assert_eq!(seen.0.watcher().map(TreeWatcher::len), Some(32 + 2 + 1));
    assert!(seen.node("user").children.is_empty());
    let limits = seen.0.limits();
    assert!(
        limits.len() == 1 && limits[0].contains("user was delegated"),
        "{limits:?}"
    );
    let gone = changes.gone.len();
    assert!(gone >= 500, "{gone}");
    let mut later = Changes::default();
    cgroup(&root.join("user/501"), 0, 100);
    cgroup(&root.join("late"), 0, 100);
    seen.0.rescan(&config, Instant::now(), &mut later);
    assert_eq!((later.come.len(), later.gone.len()), (1, 0));
}
