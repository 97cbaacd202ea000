use std::time::Instant;

use justitia_kernel::cgroup::CgroupFs;
use justitia_kernel::probes::Counters;

use super::tick::Agent;
use crate::config::Config;
use crate::enforce::protection::ProtectionController;
use crate::monitor::{AppIoMonitor, Changes, ReclaimFeatures};

/// Removals are reported by events; if those are late, they are found by failed reads.
#[test]
fn the_state_of_a_removed_cgroup_is_dropped_however_the_removal_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("cgroup.controllers"), "memory\n").unwrap();
    std::fs::write(path.join("memory.stat"), "file 4096\n").unwrap();
    let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
    let (features, app_io) = (
        ReclaimFeatures::default(),
        AppIoMonitor::unavailable("a test"),
    );
    let mut agent = Agent::new(
        Config::default(),
        &fs,
        features,
        ProtectionController::new(None),
        None,
        app_io,
    )
    .unwrap();
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
