//! Fake `/proc`, `/sys` and cgroup trees.

mod features;
mod machine;

use machine::Machine;

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

/// The capability that is missing, a word of the reason, and what is broken.
const MISSING: &str = r"
RootPrivileges | user is 7 | write proc/self/status Uid:\t0\t7\t0\t0\n
PageSize | 65536 bytes | pages 65536
Cgroup2 | mount -t cgroup2 | write proc/self/mountinfo
Cgroup2Writable | read-only | mount ro rw
MemoryController | systemd.unified_cgroup_hierarchy=1 | write cgroup/cgroup.controllers io\n
MemoryEnabled | echo +memory | write cgroup/cgroup.subtree_control \n
IoController | cgroup_no_v1 | write cgroup/cgroup.controllers \n
IoEnabled | echo +io | write cgroup/cgroup.subtree_control \n
CpuController | cgroup_no_v1 | write cgroup/cgroup.controllers \n
CpuEnabled | echo +cpu | write cgroup/cgroup.subtree_control \n
MemoryReclaim | 5.19 | remove cgroup/memory.reclaim
ReclaimSwappiness | 6.1.0-56 | write proc/sys/kernel/osrelease 6.1.0-56\n
Mglru | CONFIG_LRU_GEN | remove sys/kernel/mm/lru_gen
MglruDebug | debugfs | remove sys/kernel/debug
RecursiveProtection | every level | mount rw rw
Psi | psi=1 | remove proc/pressure
Bfq | no disk | remove sys/block/vda
IoCost | enable=1 | write cgroup/io.cost.qos
IoCost | lacks | remove cgroup/io.cost.qos
Numa | CONFIG_NUMA | remove sys/devices
Btf | BTF | remove sys/kernel/btf
Cachestat | 6.5 brought it | write proc/sys/kernel/osrelease 6.4.1\n
RechargeableFiles | not recharged | write proc/self/mountinfo 25 1 0:9 / / rw - overlay none rw\n
";

/// The capabilities of such a table, the words, and machines on which that is so.
fn cases(table: &str) -> impl Iterator<Item = (CapabilityId, &str, Machine)> {
    table.trim().lines().map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [name, word, change] = cells[..] else {
            panic!("{row}")
        };
        let mut all = CapabilityId::ALL.into_iter();
        let id = all.find(|id| format!("{id:?}") == name).unwrap();
        (id, word, Machine::changed(change))
    })
}

#[test]
fn each_capability_can_be_missing() {
    for (id, word, machine) in cases(MISSING) {
        machine.expect(id, State::No, word);
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
    let table = r"
Cgroup2Writable | not mounted | write proc/self/mountinfo
ReclaimSwappiness | not mounted | write proc/self/mountinfo
MemoryEnabled | does not have | write cgroup/cgroup.controllers \n
ReclaimSwappiness | no memory.reclaim | remove cgroup/memory.reclaim
MglruDebug | CONFIG_LRU_GEN | remove sys/kernel/mm/lru_gen
IoCost | io controller | write cgroup/cgroup.controllers memory\n
";
    for (id, word, machine) in cases(table) {
        machine.expect(id, State::NotApplicable, word);
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
