use std::time::Instant;

use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::probes::Counters;
use justitia_share::Tree;

use super::tick::Agent;
use crate::config::Config;
use crate::enforce::protection::ProtectionController;
use crate::monitor::{AppIoMonitor, Changes, ReclaimFeatures};
use crate::plan::{Entitlements, Key, Memory, Policy, Snapshot, fixture};
use crate::report::status::status;

/// An agent that only observes a tree of plain files, with one cgroup, in `dir`.
fn observer(dir: &std::path::Path) -> Agent {
    let path = dir.join("a");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("cgroup.controllers"), "memory\n").unwrap();
    std::fs::write(path.join("memory.stat"), "file 4096\n").unwrap();
    let fs = CgroupFs::open_fixture(dir, true).unwrap();
    let (features, app_io) = (
        ReclaimFeatures::default(),
        AppIoMonitor::unavailable("a test"),
    );
    Agent::new(
        Config::default(),
        &fs,
        features,
        ProtectionController::new(None),
        None,
        app_io,
    )
    .unwrap()
}

/// Removals are reported by events; if those are late, they are found by failed reads.
#[test]
fn the_state_of_a_removed_cgroup_is_dropped_however_the_removal_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = observer(dir.path());
    let now = Instant::now();
    let id = agent.monitor.cgroups.breadth_first()[0];
    agent
        .monitor
        .app_io
        .record_counters(id, Counters::default(), now);
    assert!(agent.monitor.app_io.has_counters(id));

    let mut changes = Changes::default();
    agent.monitor.cgroups.remove(id, &mut changes);
    assert_eq!(changes.removed, [id]);
    agent.apply_changes(&changes, now);
    assert!(!agent.monitor.app_io.has_counters(id));
}

#[test]
fn an_inner_node_protects_what_its_leaves_do_and_the_unmanaged_tenant_nothing() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mut agent = observer(dir.path());
    let mut tenants = Tree::new();
    let tenant = |key, growing, holds: u64| {
        let mut tenant = fixture::tenant(key, 100, holds * MIB);
        tenant.growing = growing;
        tenant
    };
    let cgroup = |id| Key::Cgroup(CgroupId(id));
    let slice = tenants.push(None, tenant(cgroup(1), false, 0));
    // One that demands what it holds, and is entitled to more.
    tenants.push(Some(slice), tenant(cgroup(2), false, 30));
    tenants.push(Some(slice), tenant(cgroup(3), false, 50));
    tenants.push(None, tenant(Key::Unmanaged, false, 20));
    agent.snapshot = Snapshot {
        memory: Memory {
            total: 1024 * MIB,
            free: 900 * MIB,
            ..Memory::default()
        },
        tenants,
    };
    agent.entitlements = Entitlements::of(&agent.snapshot, &Policy::default());
    let tenants = status(&agent, &[], true).tenants;
    let protected: Vec<u64> = tenants.iter().map(|t| t.protected / MIB).collect();
    assert_eq!(protected, [80, 30, 50, 0]);
    assert!(tenants[0].entitlement > 80 * MIB);
}
