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
