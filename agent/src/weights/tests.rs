use std::path::{Path, PathBuf};
use std::time::Duration;

use justitia_cgroup_tree::Changes;
use justitia_kernel::cgroup::{Cgroup, CgroupFs};

use super::*;
use crate::knobs::Unwritable;
use crate::page_cache::MemorySampler;

const UNIT: &str = "db.service";

/// A tree with one unit, for which 700 was declared, and a store.
struct Host {
    dir: tempfile::TempDir,
    store: KnobStore,
    cgroups: CgroupTree,
    weights: DeclaredWeights,
    now: Instant,
}

impl Host {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        let unit = root.join(UNIT);
        std::fs::create_dir_all(&unit).unwrap();
        std::fs::write(unit.join("cgroup.controllers"), "io memory\n").unwrap();
        std::fs::write(unit.join("cgroup.events"), "populated 1\n").unwrap();
        for (file, value) in files {
            std::fs::write(unit.join(file), value).unwrap();
        }
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let (store, _) = KnobStore::open(&fs, &dir.path().join("state")).unwrap();
        let mut host = Self {
            dir,
            store,
            cgroups: CgroupTree::new(&fs, false, MemorySampler::new),
            weights: DeclaredWeights::default(),
            now: Instant::now(),
        };
        host.declare(Some(700));
        host
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join("cgroup").join(file)
    }

    fn write(&self, file: &str, value: &str) {
        std::fs::write(self.path(UNIT).join(file), value).unwrap();
    }

    /// What stands in a file of weights.
    fn stands(&self, file: &str) -> String {
        let text = std::fs::read_to_string(self.path(UNIT).join(file)).unwrap();
        text.trim().to_owned()
    }

    fn declare(&mut self, weight: Option<u64>) {
        let unit = self.path("etc/systemd/system").join(UNIT);
        std::fs::create_dir_all(unit.parent().unwrap()).unwrap();
        match weight {
            Some(weight) => {
                std::fs::write(unit, format!("[Service]\nIOWeight={weight}\n")).unwrap();
            }
            None => std::fs::remove_file(unit).unwrap(),
        }
        // Units are read when a cgroup is seen first, and when its weight is written.
        self.see_anew();
    }

    fn see_anew(&mut self) {
        let fs = CgroupFs::open_fixture(&self.path("")).unwrap();
        self.cgroups = CgroupTree::new(&fs, false, MemorySampler::new);
    }

    fn tick(&mut self, restore: bool) -> Vec<Decided> {
        self.now += Duration::from_secs(1);
        let mut changes = Changes::default();
        self.cgroups.rescan(&[], self.now, &mut changes);
        self.weights
            .tick(&mut self.store, &self.cgroups, restore, self.now)
    }

    fn cgroup(&self) -> Cgroup {
        let ids = self.cgroups.breadth_first();
        let mut nodes = ids.iter().filter_map(|id| self.cgroups.get(*id));
        let node = nodes.find(|node| node.cgroup.path() == Path::new(UNIT));
        node.unwrap().cgroup.clone()
    }

    /// Adds a container of Docker, for which 400 was declared, with 100 in these files; returns its cgroup.
    fn container(&self, files: &[&str]) -> String {
        const ID: &str = "46ec00ce0123456789abcdef0123456789abcdef0123456789abcdef01234567";
        let scope = format!("docker-{ID}.scope");
        let state = self.path(&format!("run/docker/runtime-runc/moby/{ID}/state.json"));
        std::fs::create_dir_all(state.parent().unwrap()).unwrap();
        let text = format!(
            r#"{{"cgroup_paths":{{"":"/sys/fs/cgroup/{scope}"}},"config":{{"cgroups":{{"blkio_weight":400}}}}}}"#
        );
        std::fs::write(state, text).unwrap();
        let cgroup = self.path(&scope);
        std::fs::create_dir(&cgroup).unwrap();
        std::fs::write(cgroup.join("cgroup.controllers"), "io memory\n").unwrap();
        std::fs::write(cgroup.join("cgroup.events"), "populated 1\n").unwrap();
        for file in files {
            std::fs::write(cgroup.join(file), "default 100\n").unwrap();
        }
        scope
    }

    fn is_left(&self) -> bool {
        let mut left = self.store.unwritable();
        left.any(|(_, _, why)| matches!(why, Unwritable::External { .. }))
    }
}

#[test]
fn a_declared_weight_is_written_back_and_what_stood_there_is_restored() {
    let mut host = Host::new(&[("io.weight", "default 100\n")]);
    assert!(host.tick(false).is_empty());
    assert_eq!(host.stands("io.weight"), "default 100");
    let decided = host.tick(true);
    assert!(matches!(&decided[0].action, Action::Set { knob, .. } if knob == "io.weight"));
    let why = decided[0].reason.to_string();
    assert!(
        why.starts_with("700 was declared in ") && why.ends_with("the kernel had 100"),
        "{why}"
    );
    assert_eq!(host.stands("io.weight"), "default 700");
    let id = host.cgroup().id();
    assert!(host.weights.reason(id, Knob::IoWeight).is_some());
    assert!(
        host.tick(true).is_empty(),
        "nothing is written without need"
    );
    // As systemd does at a reload.
    host.write("io.weight", "default 100\n");
    host.tick(true);
    assert_eq!(host.stands("io.weight"), "default 700");
    // Another number, and none.
    host.declare(Some(300));
    host.tick(true);
    assert_eq!(host.stands("io.weight"), "default 300");
    host.declare(None);
    assert_eq!(host.tick(true).len(), 1);
    assert_eq!(host.stands("io.weight"), "default 100");
    assert!(host.store.is_empty());
    // Switched off.
    host.declare(Some(700));
    host.tick(true);
    assert_eq!(host.stands("io.weight"), "default 700");
    assert!(matches!(&host.tick(false)[0].action, Action::Restore { knob } if knob == "io.weight"));
    assert_eq!(host.stands("io.weight"), "default 100");
}

#[test]
fn what_another_writer_decided_stays_until_the_declared_weight_stands_again() {
    let mut host = Host::new(&[("io.weight", "default 77\n")]);
    let decided = host.tick(true);
    assert!(matches!(&decided[0].action, Action::MarkExternal { .. }));
    assert_eq!(host.stands("io.weight"), "default 77");
    assert!(host.tick(true).is_empty() && host.is_left());
    // A runtime writes what was declared to it, and then systemd is reloaded.
    host.write("io.weight", "default 700\n");
    assert!(host.tick(true).is_empty() && !host.is_left());
    host.write("io.weight", "default 100\n");
    host.tick(true);
    assert_eq!(host.stands("io.weight"), "default 700");
    // Over ours.
    host.write("io.weight", "default 77\n");
    let decided = host.tick(true);
    assert!(matches!(&decided[0].action, Action::MarkExternal { .. }));
    assert_eq!(host.stands("io.weight"), "default 77");
    // What its operator releases stays, whatever stands there.
    let mut host = Host::new(&[("io.weight", "default 100\n")]);
    host.tick(true);
    let cgroup = host.cgroup();
    host.store.release(&cgroup, Knob::IoWeight).unwrap();
    for value in ["default 700\n", "default 100\n"] {
        host.write("io.weight", value);
        assert!(host.tick(true).is_empty() && host.is_left());
    }
    assert_eq!(host.stands("io.weight"), "default 100");
    // And is ours again when that is asked for.
    host.store.take(&cgroup, Knob::IoWeight).unwrap();
    host.tick(true);
    assert_eq!(host.stands("io.weight"), "default 700");
}

#[test]
fn both_files_get_it_and_bfqs_what_systemd_writes() {
    let files = [
        ("io.weight", "default 100\n"),
        ("io.bfq.weight", "default 100\n"),
    ];
    for (declared, bfq) in [(700, 154), (2000, 272), (10_000, 1000)] {
        let mut host = Host::new(&files);
        host.declare(Some(declared));
        assert_eq!(host.tick(true).len(), 2);
        assert_eq!(host.stands("io.weight"), format!("default {declared}"));
        assert_eq!(host.stands("io.bfq.weight"), format!("default {bfq}"));
        assert!(host.tick(true).is_empty());
    }
    // One of them says it: that is no drift.
    for bfq in ["700\n", "154\n"] {
        let mut host = Host::new(&[("io.weight", "default 100\n"), ("io.bfq.weight", bfq)]);
        assert!(host.tick(true).is_empty());
        assert_eq!(host.stands("io.weight"), "default 100");
    }
}

/// runc writes a container's weight to `io.bfq.weight` as it is, and only where that is missing to `io.weight`, converted.
#[test]
fn a_container_gets_the_number_that_its_runtime_writes() {
    let cases: [(&str, &str, &[&str]); 3] = [
        ("io.weight", "default 3940", &["io.weight"]),
        ("io.weight", "default 100", &["io.weight", "io.bfq.weight"]),
        (
            "io.bfq.weight",
            "default 400",
            &["io.weight", "io.bfq.weight"],
        ),
    ];
    for (file, expected, files) in cases {
        let mut host = Host::new(&[]);
        let scope = host.container(files);
        host.tick(true);
        let stands = std::fs::read_to_string(host.path(&scope).join(file)).unwrap();
        assert_eq!(stands.trim(), expected, "{file} of {files:?}");
        assert!(host.tick(true).is_empty());
    }
}

#[test]
fn in_a_delegated_subtree_weights_are_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    // As long as what is written over it: unlike the kernel's, these files keep what is beyond.
    let mut host = Host::new(&[("io.weight", "default 1000\n")]);
    // Of a container its runtime's word counts there, too.
    let scope = host.container(&["io.weight"]);
    let weight = host.path(&scope).join("io.weight");
    let stands = || std::fs::read_to_string(&weight).unwrap();
    host.tick(true);
    assert_eq!(stands().trim(), "default 3940");
    // The tree's own root is another's from now on.
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(host.path(""), open).unwrap();
    host.see_anew();
    host.tick(true);
    let ids = host.cgroups.breadth_first();
    let mut nodes = ids.iter().filter_map(|id| host.cgroups.get(*id));
    assert!(nodes.any(|node| node.in_delegation && node.identity().declared.is_some()));
    assert_eq!(stands().trim(), "default 1000");
    assert!(host.store.is_empty());
}
