//! Fake `/proc`, `/sys` and cgroup trees.

mod features;
mod machine;

use machine::{Machine, auxv};

use super::*;

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
        assert_eq!(support.level, SupportLevel::Full, "{support:?}");
        assert_eq!(support.causes, []);
    }
    assert_eq!(found.get(CapabilityId::Bfq).unwrap().reason, "vda");
    assert_eq!(found.get(CapabilityId::IoCost).unwrap().reason, "8:0");
}

type Break = fn(&Machine);

/// The capability that is missing, a word of the reason, and what is broken.
const MISSING: &[(CapabilityId, &str, Break)] = &[
    (CapabilityId::RootPrivileges, "user is 7", |m| {
        m.write("proc/self/status", "Uid:\t0\t7\t0\t0\n")
    }),
    (CapabilityId::PageSize, "65536 bytes", |m| {
        m.write("proc/self/auxv", auxv(65536))
    }),
    (CapabilityId::Cgroup2, "mount -t cgroup2", |m| {
        m.write("proc/self/mountinfo", "")
    }),
    (CapabilityId::Cgroup2Writable, "read-only", |m| {
        m.mount("ro", "rw")
    }),
    (
        CapabilityId::MemoryController,
        "systemd.unified_cgroup_hierarchy=1",
        |m| m.write("cgroup/cgroup.controllers", "io\n"),
    ),
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
    (CapabilityId::Cachestat, "6.5 brought it", |m| {
        m.write("proc/sys/kernel/osrelease", "6.4.1\n")
    }),
    (CapabilityId::RechargeableFiles, "not recharged", |m| {
        m.write("proc/self/mountinfo", "25 1 0:9 / / rw - overlay none rw\n")
    }),
];

#[test]
fn each_capability_can_be_missing() {
    for (name, word, change) in MISSING {
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
fn a_capability_that_depends_on_a_missing_one_does_not_apply() {
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
fn a_capability_that_cannot_be_read_is_unknown() {
    let garbage = b"\xff\0\xff -1";
    for (name, file) in [
        (CapabilityId::RootPrivileges, "proc/self/status"),
        (CapabilityId::PageSize, "proc/self/auxv"),
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
    assert!(found.has(CapabilityId::PageSize));
    assert_eq!(found.all().len(), CapabilityId::ALL.len());
}
