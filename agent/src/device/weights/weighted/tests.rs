//! Lines of `io.bfq.weight` over plain files, which a stand-in for the kernel's writes.

use std::path::Path;

use justitia_kernel::cgroup::CgroupFs;
use justitia_kernel::io::IoWeight;
use justitia_share::Weight;

use super::*;

const DISK: DevId = DevId { major: 8, minor: 0 };
const KNOB: Knob = Knob::IoBfqWeightOn(DISK);
const FILE: &str = "io.bfq.weight";

/// As the kernel does: one device's line is replaced or removed, the others stay.
pub(in crate::device) fn a_line_is_written(
    cgroup: &Cgroup,
    knob: Knob,
    value: &str,
) -> justitia_kernel::Result<()> {
    assert_eq!(knob, KNOB);
    let path = cgroup.full_path().join(FILE);
    let stands = IoWeight::parse(&std::fs::read(&path).unwrap()).unwrap();
    let mut lines = vec![format!("default {}", stands.default)];
    let others = stands.per_device.iter().filter(|(of, _)| *of != DISK);
    lines.extend(others.map(|(of, weight)| format!("{of} {weight}")));
    if value != knob.default_value() {
        lines.push(value.to_owned());
    }
    std::fs::write(path, lines.join("\n") + "\n").unwrap();
    Ok(())
}

struct Fixture {
    dir: tempfile::TempDir,
    store: KnobStore,
    cgroups: Vec<Cgroup>,
    weighted: Weighted,
    tree: Tree<Demand>,
    nodes: HashMap<CgroupId, NodeId>,
}

impl Fixture {
    /// Two tenants of weights 100 and 300.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        let weights = [("a", 100), ("b", 300)];
        for (name, weight) in weights {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join(FILE), format!("default {weight}\n")).unwrap();
        }
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let (mut store, _) = KnobStore::open(&fs, &dir.path().join("state")).unwrap();
        store.write_knob = a_line_is_written;
        let (mut tree, mut nodes, mut cgroups) = (Tree::new(), HashMap::new(), Vec::new());
        for (name, weight) in weights {
            let cgroup = Cgroup::open_at(&fs, Path::new(name)).unwrap();
            let demand = Demand::unlimited(Weight::try_from(weight).unwrap());
            nodes.insert(cgroup.id(), tree.push(None, demand));
            cgroups.push(cgroup);
        }
        Self {
            dir,
            store,
            cgroups,
            weighted: Weighted::new(Controller::Bfq, DISK),
            tree,
            nodes,
        }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("cgroup").join(name).join(FILE)
    }

    fn stands(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap()
    }

    /// Whether there is a line of ours.
    fn has_line(&self, name: &str) -> bool {
        self.stands(name).contains("\n8:0 ")
    }

    /// Both wait for the disk and get the same, for so many looks.
    fn contend(&mut self, looks: usize) -> Vec<Change> {
        let used = self.cgroups.iter().map(|cgroup| Used {
            node: self.nodes[&cgroup.id()],
            bytes: 30e6,
            written: 30e6,
            stalled: 1.0,
            application: 30e6,
            dirty: 0,
        });
        let used: Vec<Used> = used.collect();
        self.look(looks, &used)
    }

    fn look(&mut self, looks: usize, used: &[Used]) -> Vec<Change> {
        let busy = if used.is_empty() { 0.0 } else { 1.0 };
        let looked = Looked {
            seconds: 0.25,
            busy,
            divided: true,
        };
        let cgroups = self.cgroups.clone();
        let find = |id| cgroups.iter().find(|cgroup| cgroup.id() == id);
        let mut changes = Vec::new();
        for _ in 0..looks {
            self.weighted.audit(find, &mut self.store);
            let corrected = self.weighted.step(&self.tree, &self.nodes, looked, used);
            changes.extend(self.weighted.apply(&corrected, find, &mut self.store));
        }
        changes
    }
}

#[test]
fn lines_come_with_contention_and_go_with_it() {
    let mut fixture = Fixture::new();
    let changes = fixture.contend(12);
    assert!(fixture.has_line("a") && fixture.has_line("b"));
    let why = &changes.last().unwrap().why;
    assert!(why.contains("correction"), "{why}");
    // The operator's weight stays.
    assert!(fixture.stands("b").starts_with("default 300\n"));
    let gone = fixture.look(12, &[]);
    assert!(gone.iter().all(|change| change.to.is_none()) && gone.len() == 2);
    assert_eq!(fixture.stands("a"), "default 100\n");
    assert!(fixture.store.is_empty());
}

#[test]
fn a_new_weight_of_the_operator_removes_the_line_which_comes_again() {
    let mut fixture = Fixture::new();
    fixture.contend(12);
    std::fs::write(fixture.file("a"), "default 200\n").unwrap();
    fixture.contend(1);
    assert!(fixture.has_line("a"), "{}", fixture.stands("a"));
    fixture.store.restore_all();
    assert_eq!(fixture.stands("a"), "default 200\n");
    assert_eq!(fixture.stands("b"), "default 300\n");
}

#[test]
fn a_line_of_the_operator_is_his() {
    let mut fixture = Fixture::new();
    std::fs::write(fixture.file("a"), "default 100\n8:0 700\n").unwrap();
    fixture.contend(12);
    assert_eq!(fixture.stands("a"), "default 100\n8:0 700\n");
    assert!(fixture.has_line("b"));
    // One over ours, too.
    std::fs::write(fixture.file("b"), "default 300\n8:0 701\n").unwrap();
    fixture.contend(12);
    assert_eq!(fixture.stands("b"), "default 300\n8:0 701\n");
    fixture.store.restore_all();
    assert_eq!(fixture.stands("b"), "default 300\n8:0 701\n");
}

/// Its operator had us take it.
#[test]
fn a_line_that_was_taken_stands_while_nobody_contends() {
    let mut fixture = Fixture::new();
    let theirs = "default 100\n8:0 700\n";
    std::fs::write(fixture.file("a"), theirs).unwrap();
    let a = fixture.cgroups[0].clone();
    assert!(fixture.store.take(&a, KNOB).unwrap());
    for _ in 0..2 {
        assert_eq!(fixture.stands("a"), theirs);
        fixture.contend(12);
        assert!(fixture.has_line("a") && fixture.stands("a") != theirs);
        fixture.look(12, &[]);
        assert!(fixture.store.is_empty());
    }
    assert_eq!(fixture.stands("a"), theirs);
}

/// As after a kill, the next start or `justitia reset` restores what the journal has.
#[test]
fn what_stands_is_in_the_journal() {
    let mut fixture = Fixture::new();
    fixture.contend(12);
    let ledger = fixture.dir.path().join("state/ledger");
    let ledger = std::fs::read_to_string(ledger).unwrap();
    let entries = ledger.lines().filter(|line| line.contains("8:0 default"));
    assert!(entries.count() >= 2, "{ledger}");
    fixture.store.restore_all();
    assert_eq!(fixture.stands("a"), "default 100\n");
}
