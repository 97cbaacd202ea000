use std::path::Path;
use std::time::{Duration, Instant};

use justitia_api::{EstimateBasis, ReclaimExemption, TenantKind, WeightSource};
use justitia_cgroup_tree::Changes;
use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::probes::Counters;
use justitia_kernel::proc::ProcFs;
use justitia_share::Tree;

use super::Agent;
use crate::config::Config;
use crate::model::{Key, MIN_OBSERVATION, Memory, Snapshot, WorkingSet};
use crate::monitor::{AppIoMonitor, Switches};
use crate::page_cache::system_memory::SystemMemory;
use crate::page_cache::{
    Entitlements, Handover, Policy, ProtectionController, ReclaimFeatures, UnmanagedReclaim,
    fixture, handover,
};
use crate::status::collect::status;

/// An agent that only observes a tree of plain files, with one cgroup, in `dir`.
fn observer(dir: &std::path::Path) -> Agent {
    observer_with(dir, Config::default())
}

/// The same, with this configuration.
fn observer_with(dir: &std::path::Path, config: Config) -> Agent {
    let path = dir.join("a");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("cgroup.controllers"), "memory\n").unwrap();
    std::fs::write(path.join("memory.stat"), "file 4096\n").unwrap();
    let fs = CgroupFs::open_fixture(dir).unwrap();
    let (features, app_io) = (
        ReclaimFeatures::default(),
        AppIoMonitor::unavailable("a test"),
    );
    Agent::new(config, &fs, features, None, None, app_io).unwrap()
}

/// A kernel with all of `memory.reclaim`.
fn reclaims(multi_gen: bool, lru_gen: bool) -> ReclaimFeatures {
    ReclaimFeatures {
        reclaim: true,
        swappiness: true,
        multi_gen,
        lru_gen,
        bfq: false,
    }
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

/// Docker's `--memory-reservation` below a slice that has no `memory.low`: the kernel gives the container none.
#[test]
fn a_minimum_counts_as_far_as_every_cgroup_above_has_one() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    for (path, low) in [("bare", 0), ("bare/db", 6), ("kept", 4), ("kept/db", 6)] {
        let path = dir.path().join(path);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("cgroup.controllers"), "memory\n").unwrap();
        std::fs::write(path.join("memory.low"), format!("{}\n", low * MIB)).unwrap();
    }
    let mut agent = observer(dir.path());
    for id in agent.monitor.cgroups.breadth_first() {
        agent.monitor.cgroups.read_low(id);
    }
    agent.tick(Instant::now()).unwrap();
    for (path, minimum) in [("bare/db", 0), ("kept", 4), ("kept/db", 4)] {
        let cgroups = &agent.monitor.cgroups;
        let nodes = cgroups.breadth_first().into_iter();
        let node = nodes.filter_map(|id| cgroups.get(id));
        let mut found = node.filter(|node| node.cgroup.path() == Path::new(path));
        let key = Key::Cgroup(found.next().unwrap().cgroup.id());
        let mut tenants = agent.snapshot.tenants.values();
        let tenant = tenants.find(|tenant| tenant.key == key).unwrap();
        assert_eq!(tenant.minimum, minimum * MIB, "{path}");
    }
}

#[test]
fn an_lru_or_a_scheduler_that_is_switched_counts_within_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let (root, sys) = (dir.path().join("cgroup"), dir.path().join("sys"));
    let (lru, disk) = (sys.join("kernel/mm/lru_gen"), sys.join("block/sda/queue"));
    for directory in [&root, &lru, &disk] {
        std::fs::create_dir_all(directory).unwrap();
    }
    let mut agent = observer(&root);
    std::fs::write(root.join("a/io.weight"), "default 200\n").unwrap();
    std::fs::write(root.join("a/io.bfq.weight"), "default 300\n").unwrap();
    let begun = Instant::now();
    agent.switches = Switches::new(&sys, begun);
    let mut seconds = 0;
    for (bits, scheduler, multi_gen, weight) in [
        ("0x0000\n", "none [mq-deadline] bfq\n", false, 200),
        ("0x0007\n", "none mq-deadline [bfq]\n", true, 300),
        ("0x0000\n", "[none] mq-deadline bfq\n", false, 200),
        // What cannot be read stays.
        ("what\n", "[none] mq-deadline bfq\n", false, 200),
    ] {
        std::fs::write(lru.join("enabled"), bits).unwrap();
        std::fs::write(disk.join("scheduler"), scheduler).unwrap();
        seconds += 10;
        agent.tick(begun + Duration::from_secs(seconds)).unwrap();
        let cgroups = &agent.monitor.cgroups;
        let node = cgroups.get(cgroups.breadth_first()[0]).unwrap();
        let found = (agent.features.multi_gen, cgroups.weight(node).0.get());
        assert_eq!(found, (multi_gen, weight), "{bits}{scheduler}");
    }
}

#[test]
fn with_the_other_lru_unmanaged_pages_are_reclaimed_another_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = observer(dir.path());
    let mut way = |multi_gen| {
        let mut changes = Changes::default();
        let features = reclaims(multi_gen, multi_gen);
        agent.monitor.set_features(features, &mut changes);
        agent.monitor.unmanaged.reclaim()
    };
    assert_eq!(way(true), Some(UnmanagedReclaim::RootLruGen));
    assert_eq!(way(false), Some(UnmanagedReclaim::RootMemoryReclaim));
}

/// With the classic LRU the root's `memory.reclaim` takes from every cgroup that is not protected.
#[test]
fn an_excluded_cgroup_loses_nothing_with_unmanaged_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (root, file) = (dir.path().join("cgroup"), dir.path().join("justitia.toml"));
    for (excluded, exempt) in [("none", None), ("backup", Some(())), ("a/backup", Some(()))] {
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("backup")).unwrap();
        let rule = format!("[[tenant]]\nmatch = \"{excluded}\"\nexclude = true\n");
        std::fs::write(&file, rule).unwrap();
        let mut agent = observer_with(&root, Config::load(Some(&file)).unwrap());
        for path in ["backup", "a/backup"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
            let controllers = root.join(path).join("cgroup.controllers");
            std::fs::write(controllers, "memory\n").unwrap();
        }
        let mut exempt_now = |multi_gen| {
            let (now, mut changes) = (Instant::now(), Changes::default());
            let features = reclaims(multi_gen, true);
            agent.monitor.set_features(features, &mut changes);
            agent
                .monitor
                .cgroups
                .rescan(&agent.config.rules, now, &mut changes);
            agent.update_entitlements(now);
            let mut tenants = agent.snapshot.tenants.values();
            let unmanaged = tenants.find(|tenant| tenant.key == Key::Unmanaged).unwrap();
            unmanaged.exempt
        };
        let expected = exempt.map(|()| ReclaimExemption::UnmanagedChild);
        assert_eq!(exempt_now(false), expected, "{excluded}");
        // The multi-gen LRU has a list of the root's own.
        assert_eq!(exempt_now(true), None, "{excluded}");
    }
}

/// The pages of a cgroup were deleted. Beside its old sample its parent seems to have them itself.
#[test]
fn a_plan_that_is_made_anew_leaves_out_whose_sample_is_old() {
    let dir = tempfile::tempdir().unwrap();
    let (root, proc) = (dir.path().join("cgroup"), dir.path().join("proc"));
    let holds = |path: &str, mib: u64| {
        let path = root.join(path);
        std::fs::create_dir_all(&path).unwrap();
        let bytes = mib << 20;
        let stat = format!("anon 0\nfile {bytes}\ninactive_file {bytes}\nactive_file 0\n");
        for (file, text) in [
            ("cgroup.controllers", "memory\n"),
            ("memory.stat", stat.as_str()),
            ("memory.current", "0\n"),
            ("cpu.stat", "usage_usec 0\n"),
        ] {
            std::fs::write(path.join(file), text).unwrap();
        }
    };
    for (path, mib) in [("slice", 200), ("slice/deletes", 100), ("slice/keeps", 100)] {
        holds(path, mib);
    }
    let mut agent = observer(&root);
    let mut changes = Changes::default();
    agent
        .monitor
        .set_features(reclaims(true, false), &mut changes);
    // No free memory is enough.
    std::fs::create_dir(&proc).unwrap();
    for file in ["meminfo", "vmstat"] {
        std::fs::copy(format!("/proc/{file}"), proc.join(file)).unwrap();
    }
    let pages = 1_u64 << 40;
    let zone = format!("min 0\nlow {pages}\nhigh {pages}\nmanaged {}\n", 2 * pages);
    let zone = format!("Node 0, zone Normal\npages free 0\n{zone}");
    std::fs::write(proc.join("zoneinfo"), zone).unwrap();
    agent.monitor.memory = SystemMemory::new(ProcFs::open(&proc).unwrap());
    let now = Instant::now() + 2 * MIN_OBSERVATION;
    agent.monitor.memory.sample(now, 0).unwrap();
    holds("slice/deletes", 0);

    agent.update_entitlements(now);
    agent.reclaim_excess(now, &mut changes);
    let decided = agent.decisions.decisions();
    let from: Vec<&str> = decided.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(from, ["slice/keeps"], "{decided:?}");
}

/// A configuration that is mended after a restart takes another one: the agent between has observed too little.
#[test]
fn an_agent_hands_on_what_it_was_handed() {
    let dir = tempfile::tempdir().unwrap();
    let (root, state) = (dir.path().join("cgroup"), dir.path().join("state"));
    for directory in [&root, &state] {
        std::fs::create_dir(directory).unwrap();
    }
    let mut agent = observer(&root);
    let id = agent.monitor.cgroups.breadth_first()[0];
    let set = WorkingSet {
        bytes: 400 << 20,
        observed_for: Duration::from_secs(300),
        evidence: EstimateBasis::Accesses,
    };
    let gone = (CgroupId(id.0 + 1), set);
    handover::leave(&state, "boot", [(id, set), gone].into_iter()).unwrap();
    let take = || Handover::take(&state, "boot", Instant::now());
    agent.monitor.handover = take();
    agent.monitor.hand_over(&state, "boot").unwrap();
    let next = take();
    assert_eq!(next.known(id, None, false, Instant::now()), Some(set));
    assert_eq!(next.known(gone.0, None, false, Instant::now()), None);
}

/// A container of Docker, from its files beside the tree.
#[test]
fn a_container_is_told_by_name_with_the_weight_that_was_declared() {
    const ID: &str = "46ec00ce0123456789abcdef0123456789abcdef0123456789abcdef01234567";
    let dir = tempfile::tempdir().unwrap();
    let file = |path: String, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let scope = format!("docker-{ID}.scope");
    file(format!("{scope}/cgroup.controllers"), "io memory\n");
    file(format!("{scope}/cgroup.events"), "populated 0\n");
    file(format!("{scope}/io.weight"), "default 910\n");
    let of = |name: &str| format!("var/lib/docker/containers/{ID}/{name}");
    let config = r#"{"Name":"/web","Config":{"Image":"nginx","Labels":{"app":"web"}}}"#;
    file(of("config.v2.json"), config);
    file(of("hostconfig.json"), r#"{"BlkioWeight":100}"#);
    let mut agent = observer(dir.path());
    agent.update_entitlements(Instant::now());
    let told = status(&agent, &[], true);
    let web = told.tenants.iter().find(|t| t.name == "web").unwrap();
    assert_eq!(web.kind, TenantKind::DockerContainer);
    assert_eq!((web.path.as_str(), web.weight), (scope.as_str(), 100));
    assert_eq!(web.weight_source, WeightSource::Runtime);
    assert_eq!((web.image.as_deref(), web.labels.len()), (Some("nginx"), 1));
    assert!(web.no_processes);
    let declared = web.declared.as_ref().unwrap();
    assert_eq!((declared.io_weight, declared.drift), (Some(910), false));
    assert!(declared.file.ends_with("hostconfig.json"), "{declared:?}");
}

/// As many lines as come: `status::dry_log`.
#[test]
fn an_observer_logs_what_it_would_do_and_an_agent_that_acts_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = observer(dir.path());
    let id = agent.monitor.cgroups.breadth_first()[0];
    let mut tenants = Tree::new();
    let mut tenant = fixture::tenant(Key::Cgroup(id), 100, 30 << 20);
    tenant.growing = false;
    tenants.push(None, tenant);
    agent.snapshot = Snapshot {
        memory: Memory {
            total: 1 << 30,
            free: 900 << 20,
            ..Memory::default()
        },
        tenants,
    };
    agent.entitlements = Entitlements::of(&agent.snapshot, &Policy::default());
    let now = Instant::now();
    agent.protect(now);
    let dry = agent.dry.as_mut().unwrap();
    let (would, left_out) = dry.take_due(now + Duration::from_secs(10));
    let would: Vec<String> = would.iter().map(|one| one.what()).collect();
    assert_eq!(would, ["would set memory.low from 0 to 30.0M"]);
    assert_eq!(left_out, 0);

    agent.dry = None;
    agent.last_protection = None;
    agent.protection = ProtectionController::default();
    agent.protect(now);
    assert!(agent.dry.is_none());
    assert_eq!(agent.decisions.decisions().len(), 1);
}
