//! Which features work with which capabilities.

use super::machine::{Machine, auxv};
use crate::capabilities::CapabilityId::{
    self, Cachestat, IoController, IoEnabled, MemoryEnabled, MemoryReclaim, Mglru, MglruDebug,
    Numa, PageSize, RootPrivileges,
};
use crate::capabilities::Feature::{
    self, CacheProtection, DeviceBandwidth, ProactiveReclaim, Recharge, Weights,
};
use crate::capabilities::SupportLevel::{self, Limited, Unavailable};

type Break = fn(&Machine);

/// What is broken, which feature that limits or prevents, and which capability is its cause.
const CASES: &[(Feature, SupportLevel, CapabilityId, Break)] = &[
    (CacheProtection, Unavailable, MemoryEnabled, |m| {
        m.write("cgroup/cgroup.subtree_control", "io\n")
    }),
    (CacheProtection, Unavailable, PageSize, |m| {
        m.write("proc/self/auxv", auxv(65536))
    }),
    (CacheProtection, Limited, Mglru, |m| {
        m.write("sys/kernel/mm/lru_gen/enabled", "0x0007\n")
    }),
    (CacheProtection, Limited, RootPrivileges, |m| {
        m.remove("proc/self/status");
    }),
    (ProactiveReclaim, Unavailable, MemoryReclaim, |m| {
        m.remove("cgroup/memory.reclaim");
    }),
    (ProactiveReclaim, Limited, MglruDebug, |m| {
        m.write("sys/kernel/mm/lru_gen/enabled", "0x0007\n");
        m.remove("sys/kernel/debug/lru_gen");
    }),
    (ProactiveReclaim, Limited, Numa, |m| m.remove("sys/devices")),
    (Weights, Unavailable, IoController, |m| {
        m.write("cgroup/cgroup.controllers", "memory\n")
    }),
    (DeviceBandwidth, Unavailable, IoEnabled, |m| {
        m.write("cgroup/cgroup.subtree_control", "memory\n")
    }),
    (Recharge, Unavailable, Cachestat, |m| {
        m.write("proc/sys/kernel/osrelease", "6.1.0\n")
    }),
];

#[test]
fn a_limited_feature_names_the_capability() {
    let swap = "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\nSwapTotal: 8 kB\n";
    for (function, outcome, name, change) in CASES {
        let machine = Machine::new();
        change(&machine);
        let support = machine.capabilities().feature(*function);
        assert_eq!(support.level, *outcome, "{support:?}");
        assert_eq!(support.causes.len(), 1, "{support:?}");
        assert_eq!(support.causes[0].capability.id, *name);
    }
    let machine = Machine::new();
    machine.write("proc/sys/kernel/osrelease", "6.1.0-56-cloud-amd64\n");
    let consequences = |machine: &Machine| -> Vec<String> {
        let support = machine.capabilities().feature(ProactiveReclaim);
        let causes = support.causes.into_iter();
        causes.map(|cause| cause.consequence).collect()
    };
    // Without swap, there is no anonymous memory to be taken: the unmanaged tenant alone is left out.
    let found = consequences(&machine);
    assert!(
        matches!(&found[..], [one] if one.contains("unmanaged")),
        "{found:?}"
    );
    machine.write("proc/meminfo", swap);
    let found = consequences(&machine);
    assert!(
        matches!(&found[..], [one, two] if one.contains("unmanaged") && two.contains("anonymous")),
        "{found:?}"
    );
}
