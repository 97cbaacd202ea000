//! Fake `/proc`, `/sys` and cgroup trees.

use std::path::Path;

use tempfile::TempDir;

use super::{
    Capabilities, CapabilityId, Feature, Paths, State, SupportLevel, ask_reclaim_swappiness,
};
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

    fn capabilities(&self) -> Capabilities {
        Capabilities::detect(&Paths {
            proc: self.path().join("proc"),
            sys: self.path().join("sys"),
            verify_cgroup2: false,
        })
    }

    /// The state of a capability, and its reason when it must contain `word`.
    fn expect(&self, name: CapabilityId, state: State, word: &str) {
        let found = self.capabilities();
        let capability = found.get(name).unwrap();
        assert_eq!(capability.state, state, "{capability:?}");
        assert!(
            capability.reason.contains(word),
            "{capability:?} lacks {word:?}"
        );
    }
}

#[test]
fn everything_works() {
    let found = Machine::new().capabilities();
    for capability in found.all() {
        let expected = match capability.id {
            CapabilityId::Mglru | CapabilityId::Swap => State::No,
            _ => State::Yes,
        };
        assert_eq!(capability.state, expected, "{capability:?}");
        assert!(
            !capability.reason.is_empty() && !capability.reason.contains('\n'),
            "{capability:?}"
        );
    }
    assert_eq!(found.all().len(), CapabilityId::ALL.len());
    for support in found.features() {
        if support.feature == Feature::DeviceCredits {
            // One of the disks is io.cost's.
            assert_eq!(support.level, SupportLevel::Limited, "{support:?}");
            assert_eq!(support.causes[0].capability.reason, "8:0");
            assert_eq!(support.switch.as_deref(), Some("[io] enabled = true"));
            continue;
        }
        assert_eq!(support.level, SupportLevel::Full, "{support:?}");
        assert_eq!(support.causes, []);
    }
    assert_eq!(found.get(CapabilityId::Bfq).unwrap().reason, "vda");
    assert_eq!(found.get(CapabilityId::IoCost).unwrap().reason, "8:0");
}

#[test]
fn each_fact_can_be_no() {
    type Break = fn(&Machine);
    let cases: &[(CapabilityId, &str, Break)] = &[
        (CapabilityId::RootPrivileges, "user is 7", |m| {
            m.write("proc/self/status", "Uid:\t0\t7\t0\t0\n")
        }),
        (CapabilityId::Cgroup2, "mount -t cgroup2", |m| {
            m.write("proc/self/mountinfo", "")
        }),
        (CapabilityId::Cgroup2Writable, "read-only", |m| {
            m.mount("ro", "rw")
        }),
        (CapabilityId::MemoryController, "cgroup_no_v1", |m| {
            m.write("cgroup/cgroup.controllers", "io\n")
        }),
        (CapabilityId::MemoryEnabled, "echo +memory", |m| {
            m.write("cgroup/cgroup.subtree_control", "\n")
        }),
        (CapabilityId::IoController, "cgroup_no_v1", |m| {
            m.write("cgroup/cgroup.controllers", "\n")
        }),
        (CapabilityId::IoEnabled, "echo +io", |m| {
            m.write("cgroup/cgroup.subtree_control", "\n")
        }),
        (CapabilityId::CpuController, "cgroup_no_v1", |m| {
            m.write("cgroup/cgroup.controllers", "\n")
        }),
        (CapabilityId::CpuEnabled, "echo +cpu", |m| {
            m.write("cgroup/cgroup.subtree_control", "\n")
        }),
        (CapabilityId::MemoryReclaim, "5.19", |m| {
            m.remove("cgroup/memory.reclaim")
        }),
        (CapabilityId::ReclaimSwappiness, "6.1.0-56", |m| {
            m.write("proc/sys/kernel/osrelease", "6.1.0-56\n")
        }),
        (CapabilityId::Mglru, "CONFIG_LRU_GEN", |m| {
            m.remove("sys/kernel/mm/lru_gen")
        }),
        (CapabilityId::MglruDebug, "debugfs", |m| {
            m.remove("sys/kernel/debug")
        }),
        (CapabilityId::RecursiveProtection, "every level", |m| {
            m.mount("rw", "rw")
        }),
        (CapabilityId::Psi, "psi=1", |m| m.remove("proc/pressure")),
        (CapabilityId::Bfq, "no disk", |m| m.remove("sys/block/vda")),
        (CapabilityId::IoCost, "enable=1", |m| {
            m.write("cgroup/io.cost.qos", "")
        }),
        (CapabilityId::IoCost, "lacks", |m| {
            m.remove("cgroup/io.cost.qos")
        }),
        (CapabilityId::Numa, "CONFIG_NUMA", |m| {
            m.remove("sys/devices")
        }),
        (CapabilityId::Btf, "BTF", |m| m.remove("sys/kernel/btf")),
        (
            CapabilityId::IoMaxWithoutInversion,
            "metadata of others",
            |m| m.write("proc/sys/kernel/osrelease", "6.11.9\n"),
        ),
        (CapabilityId::Cachestat, "6.5 brought it", |m| {
            m.write("proc/sys/kernel/osrelease", "6.4.1\n")
        }),
        (CapabilityId::RechargeableFiles, "not recharged", |m| {
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
    machine.expect(CapabilityId::Mglru, State::Yes, "0x0007");
    machine.write(
        "proc/meminfo",
        "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\nSwapTotal: 1048576 kB\n",
    );
    machine.expect(CapabilityId::Swap, State::Yes, "1024 MiB");
}

#[test]
fn what_depends_on_something_missing_does_not_apply() {
    type Break = fn(&Machine);
    let cases: &[(CapabilityId, &str, Break)] = &[
        (CapabilityId::Cgroup2Writable, "not mounted", |m| {
            m.write("proc/self/mountinfo", "")
        }),
        (CapabilityId::ReclaimSwappiness, "not mounted", |m| {
            m.write("proc/self/mountinfo", "")
        }),
        (CapabilityId::MemoryEnabled, "does not have", |m| {
            m.write("cgroup/cgroup.controllers", "\n")
        }),
        (CapabilityId::ReclaimSwappiness, "no memory.reclaim", |m| {
            m.remove("cgroup/memory.reclaim")
        }),
        (CapabilityId::MglruDebug, "CONFIG_LRU_GEN", |m| {
            m.remove("sys/kernel/mm/lru_gen")
        }),
        (CapabilityId::IoCost, "io controller", |m| {
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
        (CapabilityId::RootPrivileges, "proc/self/status"),
        (CapabilityId::MemoryController, "cgroup/cgroup.controllers"),
        (CapabilityId::IoEnabled, "cgroup/cgroup.subtree_control"),
        (CapabilityId::ReclaimSwappiness, "proc/sys/kernel/osrelease"),
        (CapabilityId::Mglru, "sys/kernel/mm/lru_gen/enabled"),
        (CapabilityId::Swap, "proc/meminfo"),
        (CapabilityId::Psi, "proc/pressure/memory"),
    ] {
        let machine = Machine::new();
        machine.write(file, garbage);
        machine.expect(name, State::Unknown, "");
    }
    let machine = Machine::new();
    machine.remove("proc/sys");
    machine.remove("sys/block");
    machine.expect(CapabilityId::KernelRelease, State::Unknown, "osrelease");
    machine.expect(CapabilityId::ReclaimSwappiness, State::Unknown, "osrelease");
    machine.expect(CapabilityId::Bfq, State::Unknown, "block");
}

#[test]
fn an_empty_machine_is_described() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths {
        proc: dir.path().join("proc"),
        sys: dir.path().join("sys"),
        verify_cgroup2: true,
    };
    let found = Capabilities::detect(&paths);
    for capability in found.all() {
        assert_ne!(capability.state, State::Yes, "{capability:?}");
        assert!(!capability.reason.is_empty());
    }
    for support in found.features() {
        assert_eq!(support.level, SupportLevel::Unavailable);
        assert_eq!(support.causes.len(), 1);
    }
}

#[test]
fn verdicts_name_the_fact() {
    type Break = fn(&Machine);
    let swap = "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\nSwapTotal: 8 kB\n";
    let cases: &[(Feature, SupportLevel, CapabilityId, Break)] = &[
        (
            Feature::CacheProtection,
            SupportLevel::Unavailable,
            CapabilityId::MemoryEnabled,
            |m| {
                m.write("cgroup/cgroup.subtree_control", "io\n");
            },
        ),
        (
            Feature::CacheProtection,
            SupportLevel::Limited,
            CapabilityId::Mglru,
            |m| {
                m.write("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
            },
        ),
        (
            Feature::CacheProtection,
            SupportLevel::Limited,
            CapabilityId::RootPrivileges,
            |m| {
                m.remove("proc/self/status");
            },
        ),
        (
            Feature::ProactiveReclaim,
            SupportLevel::Unavailable,
            CapabilityId::MemoryReclaim,
            |m| {
                m.remove("cgroup/memory.reclaim");
            },
        ),
        (
            Feature::ProactiveReclaim,
            SupportLevel::Limited,
            CapabilityId::MglruDebug,
            |m| {
                m.write("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
                m.remove("sys/kernel/debug/lru_gen");
            },
        ),
        (
            Feature::ProactiveReclaim,
            SupportLevel::Limited,
            CapabilityId::Numa,
            |m| m.remove("sys/devices"),
        ),
        (
            Feature::Weights,
            SupportLevel::Unavailable,
            CapabilityId::IoController,
            |m| {
                m.write("cgroup/cgroup.controllers", "memory\n");
            },
        ),
        (
            Feature::DeviceCredits,
            SupportLevel::Unavailable,
            CapabilityId::IoMaxWithoutInversion,
            |m| m.write("proc/sys/kernel/osrelease", "6.1.0\n"),
        ),
        (
            Feature::DeviceCredits,
            SupportLevel::Unavailable,
            CapabilityId::IoEnabled,
            |m| m.write("cgroup/cgroup.subtree_control", "memory\n"),
        ),
        (
            Feature::Recharge,
            SupportLevel::Unavailable,
            CapabilityId::Cachestat,
            |m| m.write("proc/sys/kernel/osrelease", "6.1.0\n"),
        ),
    ];
    for (function, outcome, name, change) in cases {
        let machine = Machine::new();
        change(&machine);
        let support = machine.capabilities().feature(*function);
        assert_eq!(support.level, *outcome, "{support:?}");
        assert_eq!(support.causes.len(), 1, "{support:?}");
        assert_eq!(support.causes[0].capability.id, *name);
    }
    let machine = Machine::new();
    machine.write("proc/sys/kernel/osrelease", "6.1.0-56-cloud-amd64\n");
    let level = |machine: &Machine| {
        machine
            .capabilities()
            .feature(Feature::ProactiveReclaim)
            .level
    };
    // Without swap, there is no anonymous memory to be taken.
    assert_eq!(level(&machine), SupportLevel::Full);
    machine.write("proc/meminfo", swap);
    assert_eq!(level(&machine), SupportLevel::Limited);
}

#[test]
fn asking_the_kernel_replaces_the_guess() {
    let machine = Machine::new();
    machine.write("proc/sys/kernel/osrelease", "6.1.0\n");
    let mut found = machine.capabilities();
    assert!(!found.has(CapabilityId::ReclaimSwappiness));
    let fs = CgroupFs::open_fixture(&machine.path().join("cgroup"), true).unwrap();
    found.set(ask_reclaim_swappiness(fs.root()));
    assert!(found.has(CapabilityId::ReclaimSwappiness));
    assert_eq!(found.all().len(), CapabilityId::ALL.len());
    machine.remove("cgroup/memory.reclaim");
    assert_eq!(ask_reclaim_swappiness(fs.root()).state, State::Unknown);
}

#[test]
fn serialised_and_back() {
    let found = Machine::new().capabilities();
    let text = serde_json::to_string(&found).unwrap();
    assert!(
        text.contains(r#"{"id":"memory-reclaim","state":"yes","reason":"#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<Capabilities>(&text).unwrap(), found);
    assert!(
        serde_json::to_string(&found.features())
            .unwrap()
            .contains("cache-protection")
    );
}

#[test]
fn this_machine_is_described() {
    let found = Capabilities::detect(&Paths::default());
    assert!(found.has(CapabilityId::KernelRelease));
    assert_eq!(found.all().len(), CapabilityId::ALL.len());
}
