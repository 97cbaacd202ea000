//! Which features work with which capabilities.

use super::machine::{Machine, auxv};
use crate::capabilities::{CapabilityId, Feature, SupportLevel};

type Break = fn(&Machine);

/// What is broken, which feature that limits or prevents, and which capability is its cause.
const CASES: &[(Feature, SupportLevel, CapabilityId, Break)] = &[
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
        SupportLevel::Unavailable,
        CapabilityId::PageSize,
        |m| {
            m.write("proc/self/auxv", auxv(65536));
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
        Feature::DeviceBandwidth,
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
        let support = machine.capabilities().feature(Feature::ProactiveReclaim);
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
