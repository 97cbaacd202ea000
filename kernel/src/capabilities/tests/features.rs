//! Which features work with which capabilities.

use super::machine::Machine;
use crate::capabilities::Feature;

/// The feature, what is left of it, the capability that is the cause, and what is broken.
const CASES: &str = r"
CacheProtection | Unavailable | MemoryEnabled | write cgroup/cgroup.subtree_control io\n
CacheProtection | Unavailable | PageSize | pages 65536
CacheProtection | Limited | Mglru | write sys/kernel/mm/lru_gen/enabled 0x0007\n
CacheProtection | Limited | RootPrivileges | remove proc/self/status
ProactiveReclaim | Unavailable | MemoryReclaim | remove cgroup/memory.reclaim
ProactiveReclaim | Limited | MglruDebug | write sys/kernel/mm/lru_gen/enabled 0x0007\n; remove sys/kernel/debug/lru_gen
ProactiveReclaim | Limited | Numa | remove sys/devices
Weights | Unavailable | IoController | write cgroup/cgroup.controllers memory\n
DeviceBandwidth | Unavailable | IoEnabled | write cgroup/cgroup.subtree_control memory\n
Recharge | Unavailable | Cachestat | write proc/sys/kernel/osrelease 6.1.0\n
";

#[test]
fn a_limited_feature_names_the_capability() {
    let swap = "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\nSwapTotal: 8 kB\n";
    for row in CASES.trim().lines() {
        let (expected, change) = row.rsplit_once(" | ").unwrap();
        let found = Machine::changed(change).capabilities();
        let of = |feature: &Feature| expected.starts_with(&format!("{feature:?} |"));
        let feature = Feature::ALL.into_iter().find(of).unwrap();
        let support = found.feature(feature);
        assert_eq!(support.causes.len(), 1, "{support:?}");
        let cause = support.causes[0].capability.id;
        let told = format!("{feature:?} | {:?} | {cause:?}", support.level);
        assert_eq!(told, expected, "{support:?}");
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
