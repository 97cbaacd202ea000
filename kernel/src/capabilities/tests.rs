//! Fake `/proc`, `/sys` and cgroup trees.

use std::path::Path;

use tempfile::TempDir;

use super::{FactName, Function, KernelSupport, Outcome, Paths, State, has_reclaim_swappiness};
use crate::cgroup::CgroupFs;

/// A machine on which everything works; tests take things away.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.write("proc/self/status", "Name:\tx\nUid:\t1000\t0\t0\t0\n");
        machine.write("proc/sys/kernel/osrelease", "6.12.117+deb12-cloud-amd64\n");
        machine.write(
            "proc/meminfo",
            "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n",
        );
        machine.write(
            "proc/pressure/memory",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        );
        machine.mount("rw", "rw,memory_recursiveprot");
        machine.write("cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
        machine.write("cgroup/cgroup.subtree_control", "cpu io memory\n");
        machine.write("cgroup/memory.reclaim", "");
        machine.write(
            "cgroup/io.cost.qos",
            "8:0 enable=1 ctrl=auto\n8:16 enable=0 ctrl=auto\n",
        );
        machine.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
        machine.write("sys/kernel/debug/lru_gen", "memcg 1 /\n");
        machine.write("sys/devices/system/node/online", "0\n");
        machine.write("sys/kernel/btf/vmlinux", "x");
        machine.write("sys/block/vda/queue/scheduler", "none mq-deadline [bfq]\n");
        machine.write("sys/block/vdb/queue/scheduler", "[none] mq-deadline bfq\n");
        machine
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn remove(&self, file: &str) {
        let path = self.path().join(file);
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }

    fn mount(&self, options: &str, superblock: &str) {
        let path = self.path().join("cgroup");
        let path = path.to_str().unwrap();
        let root = "25 1 8:1 / / rw,noatime shared:1 - ext4 /dev/sda1 rw\n";
        let line = format!("31 25 0:27 / {path} {options} - cgroup2 cgroup2 {superblock}\n");
        self.write("proc/self/mountinfo", format!("{root}{line}"));
    }

    fn support(&self) -> KernelSupport {
        KernelSupport::detect(&Paths {
            proc: self.path().join("proc"),
            sys: self.path().join("sys"),
            verify_cgroup2: false,
        })
    }

    /// The state of a fact, and its reason when it must contain `word`.
    fn expect(&self, name: FactName, state: State, word: &str) {
        let support = self.support();
        let fact = support.fact(name).unwrap();
        assert_eq!(fact.state, state, "{fact:?}");
        assert!(fact.reason.contains(word), "{fact:?} lacks {word:?}");
    }
}

#[test]
fn everything_works() {
    let support = Machine::new().support();
    for fact in support.facts() {
        let expected = match fact.name {
            FactName::Mglru | FactName::Swap => State::No,
            _ => State::Yes,
        };
        assert_eq!(fact.state, expected, "{fact:?}");
        assert!(
            !fact.reason.is_empty() && !fact.reason.contains('\n'),
            "{fact:?}"
        );
    }
    assert_eq!(support.facts().len(), FactName::ALL.len());
    for verdict in support.verdicts() {
        if verdict.function == Function::DeviceCredits {
            // One of the disks is io.cost's.
            assert_eq!(verdict.outcome, Outcome::Limited, "{verdict:?}");
            assert_eq!(verdict.because[0].fact.reason, "8:0");
            assert_eq!(verdict.switch.as_deref(), Some("[credits] enabled = true"));
            continue;
        }
        assert_eq!(verdict.outcome, Outcome::Works, "{verdict:?}");
        assert_eq!(verdict.because, []);
    }
    assert_eq!(support.fact(FactName::Bfq).unwrap().reason, "vda");
    assert_eq!(support.fact(FactName::IoCost).unwrap().reason, "8:0");
}

#[test]
fn each_fact_can_be_no() {
    type Break = fn(&Machine);
    let cases: &[(FactName, &str, Break)] = &[
        (FactName::RootPrivileges, "user is 7", |m| {
            m.write("proc/self/status", "Uid:\t0\t7\t0\t0\n")
        }),
        (FactName::Cgroup2, "mount -t cgroup2", |m| {
            m.write("proc/self/mountinfo", "")
        }),
        (FactName::Cgroup2Writable, "read-only", |m| {
            m.mount("ro", "rw")
        }),
        (FactName::MemoryController, "cgroup_no_v1", |m| {
            m.write("cgroup/cgroup.controllers", "io\n")
        }),
        (FactName::MemoryEnabled, "echo +memory", |m| {
            m.write("cgroup/cgroup.subtree_control", "\n")
        }),
        (FactName::IoController, "cgroup_no_v1", |m| {
            m.write("cgroup/cgroup.controllers", "\n")
        }),
        (FactName::IoEnabled, "echo +io", |m| {
            m.write("cgroup/cgroup.subtree_control", "\n")
        }),
        (FactName::CpuController, "cgroup_no_v1", |m| {
            m.write("cgroup/cgroup.controllers", "\n")
        }),
        (FactName::CpuEnabled, "echo +cpu", |m| {
            m.write("cgroup/cgroup.subtree_control", "\n")
        }),
        (FactName::MemoryReclaim, "5.19", |m| {
            m.remove("cgroup/memory.reclaim")
        }),
        (FactName::ReclaimSwappiness, "6.1.0-56", |m| {
            m.write("proc/sys/kernel/osrelease", "6.1.0-56\n")
        }),
        (FactName::Mglru, "CONFIG_LRU_GEN", |m| {
            m.remove("sys/kernel/mm/lru_gen")
        }),
        (FactName::MglruDebug, "debugfs", |m| {
            m.remove("sys/kernel/debug")
        }),
        (FactName::RecursiveProtection, "every level", |m| {
            m.mount("rw", "rw")
        }),
        (FactName::Psi, "psi=1", |m| m.remove("proc/pressure")),
        (FactName::Bfq, "no disk", |m| m.remove("sys/block/vda")),
        (FactName::IoCost, "enable=1", |m| {
            m.write("cgroup/io.cost.qos", "")
        }),
        (FactName::IoCost, "lacks", |m| {
            m.remove("cgroup/io.cost.qos")
        }),
        (FactName::Numa, "CONFIG_NUMA", |m| m.remove("sys/devices")),
        (FactName::Btf, "BTF", |m| m.remove("sys/kernel/btf")),
        (FactName::SafeLimits, "metadata of others", |m| {
            m.write("proc/sys/kernel/osrelease", "6.11.9\n")
        }),
        (FactName::Cachestat, "6.5 brought it", |m| {
            m.write("proc/sys/kernel/osrelease", "6.4.1\n")
        }),
        (FactName::OwnableFiles, "not handed over", |m| {
            m.write("proc/self/mountinfo", "25 1 0:9 / / rw - overlay none rw\n")
        }),
    ];
    for (name, word, change) in cases {
        let machine = Machine::new();
        change(&machine);
        machine.expect(*name, State::No, word);
    }
    let machine = Machine::new();
    machine.write("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
    machine.expect(FactName::Mglru, State::Yes, "0x0007");
    machine.write(
        "proc/meminfo",
        "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\nSwapTotal: 1048576 kB\n",
    );
    machine.expect(FactName::Swap, State::Yes, "1024 MiB");
}

#[test]
fn what_depends_on_something_missing_does_not_apply() {
    type Break = fn(&Machine);
    let cases: &[(FactName, &str, Break)] = &[
        (FactName::Cgroup2Writable, "not mounted", |m| {
            m.write("proc/self/mountinfo", "")
        }),
        (FactName::ReclaimSwappiness, "not mounted", |m| {
            m.write("proc/self/mountinfo", "")
        }),
        (FactName::MemoryEnabled, "does not have", |m| {
            m.write("cgroup/cgroup.controllers", "\n")
        }),
        (FactName::ReclaimSwappiness, "no memory.reclaim", |m| {
            m.remove("cgroup/memory.reclaim")
        }),
        (FactName::MglruDebug, "CONFIG_LRU_GEN", |m| {
            m.remove("sys/kernel/mm/lru_gen")
        }),
        (FactName::IoCost, "io controller", |m| {
            m.write("cgroup/cgroup.controllers", "memory\n")
        }),
    ];
    for (name, word, change) in cases {
        let machine = Machine::new();
        change(&machine);
        machine.expect(*name, State::NotApplicable, word);
    }
}

#[test]
fn what_cannot_be_read_is_unknown() {
    let garbage = b"\xff\0\xff -1";
    for (name, file) in [
        (FactName::RootPrivileges, "proc/self/status"),
        (FactName::MemoryController, "cgroup/cgroup.controllers"),
        (FactName::IoEnabled, "cgroup/cgroup.subtree_control"),
        (FactName::ReclaimSwappiness, "proc/sys/kernel/osrelease"),
        (FactName::Mglru, "sys/kernel/mm/lru_gen/enabled"),
        (FactName::Swap, "proc/meminfo"),
        (FactName::Psi, "proc/pressure/memory"),
    ] {
        let machine = Machine::new();
        machine.write(file, garbage);
        machine.expect(name, State::Unknown, "");
    }
    let machine = Machine::new();
    machine.remove("proc/sys");
    machine.remove("sys/block");
    machine.expect(FactName::KernelRelease, State::Unknown, "osrelease");
    machine.expect(FactName::ReclaimSwappiness, State::Unknown, "osrelease");
    machine.expect(FactName::Bfq, State::Unknown, "block");
}

#[test]
fn an_empty_machine_is_described() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths {
        proc: dir.path().join("proc"),
        sys: dir.path().join("sys"),
        verify_cgroup2: true,
    };
    let support = KernelSupport::detect(&paths);
    for fact in support.facts() {
        assert_ne!(fact.state, State::Yes, "{fact:?}");
        assert!(!fact.reason.is_empty());
    }
    for verdict in support.verdicts() {
        assert_eq!(verdict.outcome, Outcome::Prevented);
        assert_eq!(verdict.because.len(), 1);
    }
}

#[test]
fn verdicts_name_the_fact() {
    type Break = fn(&Machine);
    let swap = "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\nSwapTotal: 8 kB\n";
    let cases: &[(Function, Outcome, FactName, Break)] = &[
        (
            Function::CacheProtection,
            Outcome::Prevented,
            FactName::MemoryEnabled,
            |m| {
                m.write("cgroup/cgroup.subtree_control", "io\n");
            },
        ),
        (
            Function::CacheProtection,
            Outcome::Limited,
            FactName::Mglru,
            |m| {
                m.write("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
            },
        ),
        (
            Function::CacheProtection,
            Outcome::Limited,
            FactName::RootPrivileges,
            |m| {
                m.remove("proc/self/status");
            },
        ),
        (
            Function::ProactiveReclaim,
            Outcome::Prevented,
            FactName::MemoryReclaim,
            |m| {
                m.remove("cgroup/memory.reclaim");
            },
        ),
        (
            Function::ProactiveReclaim,
            Outcome::Limited,
            FactName::MglruDebug,
            |m| {
                m.write("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
                m.remove("sys/kernel/debug/lru_gen");
            },
        ),
        (
            Function::ProactiveReclaim,
            Outcome::Limited,
            FactName::Numa,
            |m| m.remove("sys/devices"),
        ),
        (
            Function::Weights,
            Outcome::Prevented,
            FactName::IoController,
            |m| {
                m.write("cgroup/cgroup.controllers", "memory\n");
            },
        ),
        (
            Function::DeviceCredits,
            Outcome::Prevented,
            FactName::SafeLimits,
            |m| m.write("proc/sys/kernel/osrelease", "6.1.0\n"),
        ),
        (
            Function::DeviceCredits,
            Outcome::Prevented,
            FactName::IoEnabled,
            |m| m.write("cgroup/cgroup.subtree_control", "memory\n"),
        ),
        (
            Function::PageOwnership,
            Outcome::Prevented,
            FactName::Cachestat,
            |m| m.write("proc/sys/kernel/osrelease", "6.1.0\n"),
        ),
    ];
    for (function, outcome, name, change) in cases {
        let machine = Machine::new();
        change(&machine);
        let verdict = machine.support().verdict(*function);
        assert_eq!(verdict.outcome, *outcome, "{verdict:?}");
        assert_eq!(verdict.because.len(), 1, "{verdict:?}");
        assert_eq!(verdict.because[0].fact.name, *name);
    }
    let machine = Machine::new();
    machine.write("proc/sys/kernel/osrelease", "6.1.0-56-cloud-amd64\n");
    let outcome = |machine: &Machine| {
        machine
            .support()
            .verdict(Function::ProactiveReclaim)
            .outcome
    };
    // Without swap, there is no anonymous memory to be taken.
    assert_eq!(outcome(&machine), Outcome::Works);
    machine.write("proc/meminfo", swap);
    assert_eq!(outcome(&machine), Outcome::Limited);
}

#[test]
fn asking_the_kernel_replaces_the_guess() {
    let machine = Machine::new();
    machine.write("proc/sys/kernel/osrelease", "6.1.0\n");
    let mut support = machine.support();
    assert!(!support.has(FactName::ReclaimSwappiness));
    let fs = CgroupFs::open_fixture(&machine.path().join("cgroup"), true).unwrap();
    support.set(has_reclaim_swappiness(fs.root()));
    assert!(support.has(FactName::ReclaimSwappiness));
    assert_eq!(support.facts().len(), FactName::ALL.len());
    machine.remove("cgroup/memory.reclaim");
    assert_eq!(has_reclaim_swappiness(fs.root()).state, State::Unknown);
}

#[test]
fn serialised_and_back() {
    let support = Machine::new().support();
    let text = serde_json::to_string(&support).unwrap();
    assert!(
        text.contains(r#"{"name":"memory-reclaim","state":"yes","reason":"#),
        "{text}"
    );
    assert_eq!(
        serde_json::from_str::<KernelSupport>(&text).unwrap(),
        support
    );
    assert!(
        serde_json::to_string(&support.verdicts())
            .unwrap()
            .contains("cache-protection")
    );
}

#[test]
fn this_machine_is_described() {
    let support = KernelSupport::detect(&Paths::default());
    assert!(support.has(FactName::KernelRelease));
    assert_eq!(support.facts().len(), FactName::ALL.len());
}
