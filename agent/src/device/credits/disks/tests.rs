//! Disks that come and go, over a sysfs of plain files.

use crate::device::{Costs, Interval};
use std::path::Path;
use std::time::Duration;

use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::io::{DevId, IoStat};
use justitia_kernel::knob::Knob;

use super::super::Credits;
use super::super::divide::GONE;
use super::*;
use crate::config::Config;
use crate::device::disk::DiskIdentity;
use crate::device::tests::Sys;
use crate::device::weights::{Contention, Controller, Weighted, a_line_is_written};
use crate::knobs::WriteOutcome;
use crate::page_cache::{CgroupTree, MemorySampler};
use justitia_cgroup_tree::Changes;

const NUMBER: DevId = DevId { major: 8, minor: 0 };
const KNOB: Knob = Knob::IoBfqWeightOn(NUMBER);
const FILE: &str = "io.bfq.weight";
const STAT: &str = "100 5 800 40 200 9 3200 90 0 5000 130\n";

struct Machine {
    sys: Sys,
    dir: tempfile::TempDir,
    credits: Credits,
    store: KnobStore,
    cgroups: Vec<Cgroup>,
    begin: Instant,
}

impl Machine {
    /// With a disk whose weights are corrected.
    fn corrected() -> Self {
        let mut machine = Self::new();
        machine.come(1);
        machine.follow(0);
        machine.correct();
        machine
    }

    /// Without disks, with two cgroups.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sys = Sys(tempfile::tempdir().unwrap());
        let root = dir.path().join("cgroup");
        for name in ["a", "b"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join(FILE), "default 100\n").unwrap();
        }
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let open = |name: &str| Cgroup::open_at(&fs, Path::new(name)).unwrap();
        let (mut store, _) = KnobStore::open(&fs, &dir.path().join("state")).unwrap();
        store.write_knob = a_line_is_written;
        let mut credits = Credits::open(&Config::default(), fs.root());
        let qos = root.join("io.cost.qos");
        credits.following = Some(Following::new(sys.0.path().to_owned(), qos));
        Self {
            cgroups: ["a", "b"].map(open).into(),
            sys,
            dir,
            credits,
            store,
            begin: Instant::now(),
        }
    }

    fn come(&self, sequence: u64) {
        let dir = self.sys.device("sda", &NUMBER.to_string());
        std::fs::write(dir.join("stat"), STAT).unwrap();
        std::fs::write(dir.join("diskseq"), format!("{sequence}\n")).unwrap();
        std::fs::create_dir(dir.join("queue")).unwrap();
        std::fs::write(dir.join("queue/scheduler"), "none [bfq]\n").unwrap();
    }

    /// The disk goes, and what the kernel keeps for it.
    fn go(&self) {
        self.sys.remove("sda", &NUMBER.to_string());
        for name in ["a", "b"] {
            std::fs::write(self.file(name, FILE), "default 100\n").unwrap();
        }
    }

    fn file(&self, cgroup: &str, file: &str) -> PathBuf {
        self.dir.path().join("cgroup").join(cgroup).join(file)
    }

    fn follow(&mut self, seconds: u64) -> Vec<DiskIdentity> {
        let now = self.begin + Duration::from_secs(seconds);
        self.credits.follow_disks(Some(&mut self.store), now);
        let disks = self.credits.disks.iter();
        disks.map(|one| one.disk.identity).collect()
    }

    /// What divides the disk, as is looked now and then.
    fn controller(&mut self) -> Option<Controller> {
        let Credits {
            disks, root, moved, ..
        } = &mut self.credits;
        let disk = &mut disks[0];
        moved.extend(disk.follow_controller(root, Some(&mut self.store)));
        disk.weighted.as_ref().map(Weighted::controller)
    }

    /// The first cgroup has a corrected weight, and the second one a line of its operator's.
    fn correct(&mut self) {
        assert_eq!(self.controller(), Some(Controller::Bfq));
        let (a, b) = (&self.cgroups[0], self.cgroups[1].id());
        let set = self.store.set(a, KNOB, "8:0 300");
        assert_eq!(set.unwrap(), WriteOutcome::Written);
        self.store.mark_external(b, KNOB, "8:0 5");
    }

    /// Nothing is held or left of the number, and the first cgroup was told so.
    fn nothing_is_left(&mut self, why: &str) {
        assert!(self.store.is_empty());
        let yielded: Vec<_> = self.store.external().collect();
        assert_eq!(yielded, []);
        let told = Moved {
            id: self.cgroups[0].id(),
            knob: KNOB,
            to: None,
            why: why.to_owned(),
        };
        assert_eq!(self.credits.moved(), [told]);
    }
}

#[test]
fn a_disk_that_comes_is_divided_and_one_that_goes_leaves_nothing() {
    let mut machine = Machine::new();
    assert_eq!(machine.follow(0), []);
    machine.come(1);
    assert_eq!(machine.follow(1), [DiskIdentity::Sequence(1)]);
    machine.correct();
    machine.go();
    assert_eq!(machine.follow(2), []);
    machine.nothing_is_left(GONE);
    machine.come(2);
    assert_eq!(machine.follow(3), [DiskIdentity::Sequence(2)]);
    assert!(machine.credits.disks[0].weighted.is_none());
}

#[test]
fn another_disk_of_the_same_number_begins_anew() {
    let mut machine = Machine::corrected();
    // Between two looks.
    machine.go();
    machine.come(2);
    assert_eq!(machine.follow(10), [DiskIdentity::Sequence(2)]);
    machine.nothing_is_left(GONE);
    assert!(machine.credits.disks[0].weighted.is_none());
}

#[test]
fn another_medium_begins_anew_and_what_the_kernel_keeps_is_given_back() {
    let mut machine = Machine::corrected();
    let sequence = machine.sys.0.path().join("devices/sda/diskseq");
    std::fs::write(sequence, "2\n").unwrap();
    assert_eq!(machine.follow(10), [DiskIdentity::Sequence(2)]);
    let stands = std::fs::read_to_string(machine.file("a", FILE)).unwrap();
    assert_eq!(stands, "default 100\n");
    machine.nothing_is_left(GONE);
}

#[test]
fn a_disk_whose_counters_cannot_be_read_is_not_divided() {
    let mut machine = Machine::corrected();
    let id = machine.cgroups[0].id();
    std::fs::write(machine.sys.0.path().join("devices/sda/stat"), "").unwrap();
    assert_eq!(machine.credits.disks[0].meter.sample(machine.begin), None);
    assert_eq!(machine.follow(0), [], "it does not wait for the next look");
    assert!(machine.store.is_empty() && machine.store.may_write(id, KNOB));
}

/// It comes before the scheduler, so the lines of BFQ go.
#[test]
fn io_cost_that_is_enabled_later_has_its_weights_corrected() {
    let mut machine = Machine::corrected();
    let qos = machine.file("", "io.cost.qos");
    std::fs::write(&qos, "8:0 enable=1 ctrl=auto\n").unwrap();
    assert_eq!(machine.follow(10).len(), 1);
    assert_eq!(machine.controller(), Some(Controller::IoCost));
    assert!(machine.credits.moved().len() == 1 && machine.store.is_empty());
    // The disk is the same: what was left there stays left.
    assert!(!machine.store.may_write(machine.cgroups[1].id(), KNOB));
    // Its model is used up, though the disk is not busy.
    let begin = machine.begin;
    let mut look = |seconds, used| {
        let stat = IoStat {
            cost_usage: used,
            ..IoStat::default()
        };
        let now = begin + Duration::from_secs(seconds);
        machine.credits.disks[0].look(now, &[(NUMBER, stat)])
    };
    look(10, 0);
    let interval = look(11, 750_000).unwrap();
    assert_eq!(interval.used, Some(0.75));
    assert_eq!(interval.occupied().to_bits(), 0.75_f64.to_bits());
    std::fs::write(&qos, "8:0 enable=0\n").unwrap();
    assert_eq!(machine.follow(20).len(), 1);
    assert_eq!(machine.controller(), Some(Controller::Bfq));
}

#[test]
fn io_cost_is_ours_where_neither_bfq_nor_an_operators_io_cost_divides() {
    let mut machine = Machine::corrected();
    let scheduler = machine.sys.0.path().join("devices/sda/queue/scheduler");
    std::fs::write(scheduler, "[none] bfq\n").unwrap();
    assert!(machine.credits.disks[0].own.is_none());
    assert_eq!(machine.controller(), Some(Controller::IoCost));
    assert!(machine.credits.moved().len() == 1 && machine.store.is_empty());
    assert!(machine.credits.disks[0].own.is_some() && !machine.credits.engaged());
    // Once enabled, it is not taken for the operator's; but where that one enables it, it is.
    machine.credits.disks[0].io_cost = true;
    assert_eq!(machine.controller(), Some(Controller::IoCost));
    assert!(machine.credits.disks[0].own.is_none());
}

#[test]
fn io_cost_that_is_ours_is_not_found_as_an_operators() {
    let mut machine = Machine::new();
    for file in ["io.cost.qos", "io.cost.model"] {
        std::fs::write(machine.file("", file), "").unwrap();
    }
    machine.come(1);
    machine.follow(0);
    let scheduler = machine.sys.0.path().join("devices/sda/queue/scheduler");
    std::fs::write(scheduler, "[none] bfq\n").unwrap();
    assert_eq!(machine.controller(), Some(Controller::IoCost));
    let busy = Interval::busy(60e6, 1000.0);
    machine.store.write_knob = |cgroup, knob, value| {
        std::fs::write(cgroup.full_path().join(knob.file()), format!("{value}\n")).unwrap();
        Ok(())
    };
    let root = machine.credits.root.clone();
    let disk = &mut machine.credits.disks[0];
    let own = disk.own.as_mut().unwrap();
    for _ in 0..8 {
        own.step(Contention::Engaged, &busy, &Costs::default());
        own.apply(&root, &mut machine.store);
    }
    assert!(disk.has_own_io_cost());
    let found = std::fs::read(machine.file("", "io.cost.qos")).unwrap();
    assert!(!justitia_kernel::io::io_cost_devices(&found).is_empty());
    machine.follow(60);
    assert!(!machine.credits.disks[0].io_cost);
}

#[test]
fn a_disk_on_which_a_latency_is_kept_is_not_divided() {
    let mut machine = Machine::corrected();
    std::fs::write(machine.file("b", "cgroup.controllers"), "io memory\n").unwrap();
    let fs = CgroupFs::open_fixture(&machine.dir.path().join("cgroup")).unwrap();
    let mut cgroups = CgroupTree::new(&fs, false, MemorySampler::new);
    let mut kept = |machine: &mut Machine, line: &str| {
        std::fs::write(machine.file("b", "io.latency"), line).unwrap();
        cgroups.rescan(&[], Instant::now(), &mut Changes::default());
        // It is told of a disk that nobody uses, too.
        let told: Vec<String> = machine.credits.limits(&cgroups).collect();
        machine.credits.follow_latency(&cgroups);
        (machine.controller(), told.join("").contains("(8:0) is not"))
    };
    let divided = (Some(Controller::Bfq), false);
    assert_eq!(kept(&mut machine, "8:16 target=10000\n"), divided);
    assert_eq!(machine.credits.moved(), []);
    assert_eq!(kept(&mut machine, "8:0 target=10000\n"), (None, true));
    let moved = machine.credits.moved();
    assert!(
        matches!(&moved[..], [one] if one.to.is_none() && one.why.contains("io.latency")),
        "{moved:?}"
    );
    assert!(machine.store.is_empty());
    assert_eq!(kept(&mut machine, ""), divided);
}

/// What the operator has chosen for the disk is not known then.
#[test]
fn while_io_cost_cannot_be_read_nothing_changes() {
    let mut machine = Machine::new();
    std::fs::write(machine.file("", "io.cost.qos"), "8:0 enable=1\n").unwrap();
    let following = machine.credits.following.as_mut().unwrap();
    following.read = |_| Err(rustix::io::Errno::MFILE.into());
    machine.come(1);
    assert_eq!(machine.follow(0), []);
    machine.credits.following.as_mut().unwrap().read = |path| std::fs::read(path);
    assert_eq!(machine.follow(1).len(), 1);
    assert!(machine.credits.disks[0].io_cost);
}

#[test]
fn a_new_disk_whose_counters_cannot_be_read_is_divided_within_a_second() {
    let mut machine = Machine::new();
    machine.come(1);
    let (stat, aside) = (
        machine.sys.0.path().join("devices/sda/stat"),
        machine.dir.path().join("stat"),
    );
    std::fs::rename(&stat, &aside).unwrap();
    assert_eq!(machine.follow(0), []);
    std::fs::rename(&aside, &stat).unwrap();
    assert_eq!(machine.follow(1), [DiskIdentity::Sequence(1)]);
}

#[test]
fn which_disks_are_divided_and_why_others_are_not() {
    let sys = Sys(tempfile::tempdir().unwrap());
    sys.device("sda", "8:0");
    sys.device("sdb", "8:16");
    sys.device("zram0", "252:0");
    let said: Vec<_> = disk_support(sys.0.path())
        .unwrap()
        .into_iter()
        .map(|disk| (disk.name, disk.number, disk.left))
        .collect();
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        ("sda".to_owned(), text("8:0"), None),
        ("sdb".to_owned(), text("8:16"), None),
        ("zram0".to_owned(), None, text("it is in memory")),
    ];
    assert_eq!(said, expected);
}
