//! The lines of io.cost over plain files, of one disk.

use justitia_kernel::cgroup::CgroupFs;

use super::*;

const DISK: DevId = DevId { major: 8, minor: 0 };
const QOS: &str = "io.cost.qos";
const MODEL: &str = "io.cost.model";

struct Fixture {
    dir: tempfile::TempDir,
    store: KnobStore,
    root: Cgroup,
    own: OwnIoCost,
    costs: Costs,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        std::fs::create_dir(&root).unwrap();
        for file in [QOS, MODEL] {
            std::fs::write(root.join(file), "").unwrap();
        }
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let (mut store, _) = KnobStore::open(&fs, &dir.path().join("state")).unwrap();
        store.write_knob = |cgroup, knob, value| {
            std::fs::write(cgroup.full_path().join(knob.file()), format!("{value}\n")).unwrap();
            Ok(())
        };
        Self {
            root: fs.root().clone(),
            dir,
            store,
            own: OwnIoCost::new(DISK),
            costs: Costs::default(),
        }
    }

    /// Seconds in which the disk was busy and completed so many bytes a second.
    fn busy(&mut self, contention: Contention, seconds: u32, bytes: f64) -> Vec<Moved> {
        let interval = Interval {
            used: Some(1.0),
            ..Interval::busy(bytes, bytes / 65536.0)
        };
        let mut moved = Vec::new();
        for _ in 0..4 * seconds {
            self.costs.step(true, &interval, false);
            self.own.step(contention, &interval, &self.costs);
            moved.extend(self.own.apply(&self.root, &mut self.store));
        }
        moved
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.root.full_path().join(file), text).unwrap();
    }

    fn reads(&self, file: &str) -> String {
        std::fs::read_to_string(self.root.full_path().join(file)).unwrap()
    }
}

#[test]
fn it_is_enabled_while_tenants_contend_and_given_back_after() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.busy(Contention::None, 2, 60e6), []);
    assert!(!fixture.own.stands());
    let moved = fixture.busy(Contention::Engaged, 2, 60e6);
    assert!(fixture.own.stands());
    assert!(
        fixture
            .reads(QOS)
            .starts_with("8:0 enable=1 ctrl=user rpct=0.00 rlat=25000")
    );
    let model = fixture.reads(MODEL);
    assert!(
        model.contains("rbps=59400000") && model.contains("wbps=59400000"),
        "{model}"
    );
    assert!(model.contains("rrandiops=14502"), "as many pages: {model}");
    let knobs: Vec<Knob> = moved.iter().map(|one| one.knob).collect();
    let (qos, model) = (Knob::IoCostQos(DISK), Knob::IoCostModel(DISK));
    assert_eq!(
        knobs,
        [model, qos, model],
        "the queue is emptied, then filled"
    );
    assert!(
        moved[0].why.contains("hands out 45.3M/s"),
        "{}",
        moved[0].why
    );
    let moved = fixture.busy(Contention::None, 1, 60e6);
    assert_eq!(moved.len(), 2);
    assert_eq!(fixture.reads(QOS), "8:0 enable=0 ctrl=auto\n");
    assert_eq!(fixture.reads(MODEL), "8:0 ctrl=auto\n");
    assert!(fixture.store.is_empty() && !fixture.own.stands());
}

#[test]
fn a_model_has_numbers_that_the_kernel_can_count_with() {
    let of = |bytes, requests| model(DISK, &Prices { bytes, requests });
    let largest = of(1e30, f64::INFINITY);
    assert!(
        largest.contains("rbps=1000000000000 rseqiops=1000000000 "),
        "{largest}"
    );
    assert!(of(1e30, 1e30).contains("rseqiops=1000000000 "));
    assert!(of(0.0, 0.0).contains("rbps=65536 rseqiops=1 "));
}

#[test]
fn what_its_operator_has_set_is_left_alone() {
    let mut fixture = Fixture::new();
    let theirs =
        "8:0 ctrl=user model=linear rbps=1 rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1\n";
    fixture.write(MODEL, theirs);
    assert_eq!(fixture.busy(Contention::Engaged, 2, 60e6), []);
    assert_eq!(
        (fixture.reads(MODEL), fixture.reads(QOS)),
        (theirs.to_owned(), String::new())
    );
}

#[test]
fn what_another_writer_sets_is_left_and_the_rest_given_back() {
    let mut fixture = Fixture::new();
    fixture.busy(Contention::Engaged, 2, 60e6);
    let theirs = "8:0 enable=1 ctrl=auto\n";
    fixture.write(QOS, theirs);
    let moved = fixture.own.audit(&fixture.root, &mut fixture.store);
    assert_eq!(moved.len(), 1, "{moved:?}");
    assert_eq!(fixture.reads(QOS), theirs);
    assert_eq!(fixture.reads(MODEL), "8:0 ctrl=auto\n");
    assert_eq!(
        fixture.busy(Contention::Engaged, 2, 60e6),
        [],
        "it is theirs from now on"
    );
}

#[test]
fn where_one_line_is_released_the_other_is_given_back() {
    let mut fixture = Fixture::new();
    fixture.busy(Contention::Engaged, 2, 60e6);
    let qos = Knob::IoCostQos(DISK);
    let released = fixture.store.release(&fixture.root, qos).unwrap();
    assert_eq!(released, "8:0 enable=0 ctrl=auto");
    let moved = fixture.own.audit(&fixture.root, &mut fixture.store);
    assert_eq!(moved.len(), 1, "{moved:?}");
    assert_eq!(fixture.reads(MODEL), "8:0 ctrl=auto\n");
    assert!(fixture.store.is_empty() && !fixture.own.stands());
}

#[test]
fn both_lines_are_in_the_journal() {
    let mut fixture = Fixture::new();
    fixture.busy(Contention::Engaged, 2, 60e6);
    let ledger = std::fs::read_to_string(fixture.dir.path().join("state/ledger")).unwrap();
    for original in ["8:0 enable=0 ctrl=auto", "8:0 ctrl=auto"] {
        assert!(ledger.contains(&format!("{original:?}")), "{ledger}");
    }
    fixture.store.restore_all();
    assert_eq!(fixture.reads(QOS), "8:0 enable=0 ctrl=auto\n");
    assert_eq!(fixture.reads(MODEL), "8:0 ctrl=auto\n");
}
