use std::path::Path;
use std::time::Instant;

use justitia_api::{Action, ProtectionReason};
use justitia_cgroup_tree::Changes;
use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::knob::Knob;
use justitia_share::Tree;

use super::{LowIntent, ProtectionController};
use crate::knobs::KnobStore;
use crate::knobs::journal::{FILE_NAME, Journal, JournalEntry};
use crate::model::{Key, Memory, Snapshot, Tenant, WorkingSet};
use crate::page_cache::entitlements::{Entitlements, Policy};
use crate::page_cache::fixture;
use crate::page_cache::memory_sampler::{CgroupTree, MemorySampler};

/// A cgroup with the memory controller.
fn make(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    for (file, text) in [
        ("cgroup.controllers", "io memory\n"),
        ("cgroup.events", "populated 1\nfrozen 0\n"),
        ("memory.low", "0\n"),
    ] {
        std::fs::write(path.join(file), text).unwrap();
    }
}

/// The cgroups that are found in `dir/cgroup`, and a controller with a store that keeps its journal in `dir/state`.
fn start(dir: &Path) -> (CgroupTree, Changes, KnobStore, ProtectionController) {
    let fs = CgroupFs::open_fixture(&dir.join("cgroup")).unwrap();
    let mut cgroups = CgroupTree::new(&fs, false, MemorySampler::new);
    let mut changes = Changes::default();
    cgroups.rescan(&[], Instant::now(), &mut changes);
    let (store, _) = KnobStore::open(&fs, &dir.join("state")).unwrap();
    (cgroups, changes, store, ProtectionController::default())
}

/// A tenant that uses its own pages, and holds so many with those below it.
fn tenant(id: CgroupId, own: u64, held: u64) -> Tenant {
    Tenant {
        own,
        growing: false,
        working_set: WorkingSet {
            bytes: own,
            ..WorkingSet::default()
        },
        ..fixture::tenant(Key::Cgroup(id), 100, held)
    }
}

#[test]
fn a_value_set_before_our_first_write_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cgroup");
    make(&root.join("a"));
    make(&root.join("b"));
    let (mut cgroups, changes, mut store, mut controller) = start(dir.path());
    for id in &changes.added {
        ProtectionController::on_cgroup_added(&mut store, &mut cgroups, *id);
    }
    // No event has reported it yet.
    let low = |name: &str| std::fs::read_to_string(root.join(name).join("memory.low")).unwrap();
    std::fs::write(root.join("a/memory.low"), "5242880\n").unwrap();
    let mut write = |name: &str, low| {
        let of = |id: &CgroupId| cgroups.get(*id).unwrap().cgroup.path() == Path::new(name);
        let id = *changes.added.iter().find(|id| of(id)).unwrap();
        let (protected, other) = (low, 0);
        let intent = LowIntent {
            key: Key::Cgroup(id),
            low,
            reason: ProtectionReason { protected, other },
        };
        controller.write(Some(&mut store), &cgroups, intent)
    };
    for _ in 0..2 {
        let outcome = write("a", 4096);
        let action = outcome.map(|event| event.action);
        assert!(
            matches!(action, Some(Action::MarkExternal { .. })),
            "{action:?}"
        );
        assert_eq!(low("a").trim(), "5242880");
    }
    for bytes in [4096, 8192] {
        let outcome = write("b", bytes);
        let action = outcome.map(|event| event.action);
        assert!(matches!(action, Some(Action::Set { .. })), "{action:?}");
        assert_eq!(low("b").trim(), bytes.to_string());
    }
}

/// It could not be restored at the start.
#[test]
fn a_value_that_a_killed_agent_has_left_is_no_operators() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cgroup/a/memory.low");
    make(&dir.path().join("cgroup/a"));
    std::fs::write(&file, "5242880\n").unwrap();
    let (cgroups, _, store, _) = start(dir.path());
    drop(store);
    let (id, knob) = (cgroups.top_level()[0], Knob::MemoryLow);
    let entry = JournalEntry {
        cgroup: id.0,
        path: "a".into(),
        knob,
        // As long as ours: a plain file is not cut.
        original: "0000000".into(),
        applied: "5242880".into(),
    };
    Journal::create(&dir.path().join("state").join(FILE_NAME), &[entry], &[]).unwrap();
    let allow = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, mode).unwrap();
    };
    // Of this thread, so that the file's mode counts.
    let now = capabilities(None).unwrap();
    let effective = now.effective.difference(CapabilitySet::DAC_OVERRIDE);
    set_capabilities(None, CapabilitySets { effective, ..now }).unwrap();
    allow(0o444);

    let (mut cgroups, _, mut store, mut controller) = start(dir.path());
    assert_eq!(
        (store.len(), cgroups.get(id).unwrap().external_low),
        (1, 5 << 20)
    );
    ProtectionController::on_cgroup_added(&mut store, &mut cgroups, id);
    // As after an event, or a rescan.
    let found = controller.on_knob_written(Some(&mut store), &cgroups, id, knob);
    cgroups.record_low(id, found);
    assert_eq!(cgroups.get(id).unwrap().external_low, 0);
    let mut write = |store: &mut KnobStore| {
        let (low, protected, other) = (8 << 20, 8 << 20, 0);
        let intent = LowIntent {
            key: Key::Cgroup(id),
            low,
            reason: ProtectionReason { protected, other },
        };
        controller.write(Some(store), &cgroups, intent)
    };
    assert_eq!(write(&mut store).map(|event| event.action), None);
    assert!(store.may_write(id, knob), "it is tried again");
    allow(0o644);
    let action = write(&mut store).map(|event| event.action);
    assert!(matches!(action, Some(Action::Set { .. })), "{action:?}");
    drop(store);
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), "0000000");
}

/// It stands again where ours could not be written.
#[test]
fn a_value_that_was_taken_is_no_operators() {
    let dir = tempfile::tempdir().unwrap();
    make(&dir.path().join("cgroup/a"));
    let file = dir.path().join("cgroup/a/memory.low");
    std::fs::write(&file, "5242880\n").unwrap();
    let (cgroups, _, mut store, mut controller) = start(dir.path());
    store.write_knob = |cgroup, knob, value| {
        std::fs::write(cgroup.full_path().join(knob.file()), value).unwrap();
        Ok(())
    };
    let (id, knob) = (cgroups.top_level()[0], Knob::MemoryLow);
    let cgroup = cgroups.get(id).unwrap().cgroup.clone();
    assert!(store.take(&cgroup, knob).unwrap());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "0");
    // As when the journal cannot grow.
    store.restore(id, knob);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "5242880");
    let found = controller.on_knob_written(Some(&mut store), &cgroups, id, knob);
    assert_eq!(found.unwrap(), None);
    let (low, protected, other) = (8 << 20, 8 << 20, 0);
    let intent = LowIntent {
        key: Key::Cgroup(id),
        low,
        reason: ProtectionReason { protected, other },
    };
    let action = controller.write(Some(&mut store), &cgroups, intent);
    let action = action.map(|event| event.action);
    assert!(matches!(action, Some(Action::Set { .. })), "{action:?}");
}

/// More move in each tick than are written in one.
#[test]
fn the_last_of_many_is_written_too() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cgroup");
    for n in 0..200 {
        make(&root.join(format!("t{n}")));
    }
    let (cgroups, _, _, mut controller) = start(dir.path());
    let ids = cgroups.top_level();
    for tick in 0..4 {
        let mut tenants = Tree::new();
        for (n, id) in ids.iter().enumerate() {
            let held = if n < 100 && tick % 2 == 0 {
                3 << 20
            } else {
                6 << 20
            };
            tenants.push(None, tenant(*id, held, held));
        }
        let memory = Memory {
            total: 4 << 30,
            free: 512 << 20,
            ..Memory::default()
        };
        let snapshot = Snapshot { memory, tenants };
        let entitlements = Entitlements::of(&snapshot, &Policy::default());
        let done = controller.tick(None, &cgroups, &snapshot, &entitlements);
        assert_eq!(done.len(), super::MAX_WRITES);
    }
    assert_eq!(controller.would_apply().count(), 200);
}

/// The kernel caps what the children have by it.
#[test]
fn an_operators_value_that_caps_children_is_raised_once() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cgroup");
    make(&root.join("slice"));
    make(&root.join("slice/a"));
    let file = root.join("slice/memory.low");
    let low = || std::fs::read_to_string(&file).unwrap();
    // As long as what will be written: a plain file is not cut.
    std::fs::write(&file, "05242880\n").unwrap();
    let (mut cgroups, changes, mut store, mut controller) = start(dir.path());
    for id in &changes.added {
        ProtectionController::on_cgroup_added(&mut store, &mut cgroups, *id);
    }
    let slice = cgroups.top_level()[0];
    let tick = |store: &mut KnobStore,
                controller: &mut ProtectionController,
                cgroups: &CgroupTree,
                held| {
        let mut tenants = Tree::new();
        let child = cgroups.get(slice).unwrap().children[0];
        let top = tenants.push(None, tenant(slice, 0, held));
        tenants.push(Some(top), tenant(child, held, held));
        let memory = Memory {
            total: 1 << 30,
            free: 512 << 20,
            ..Memory::default()
        };
        let snapshot = Snapshot { memory, tenants };
        let entitlements = Entitlements::of(&snapshot, &Policy::default());
        let done = controller.tick(Some(store), cgroups, &snapshot, &entitlements);
        done.iter().any(|d| d.key == Key::Cgroup(slice))
    };
    assert!(!tick(&mut store, &mut controller, &cgroups, 2 << 20));
    assert_eq!(low().trim(), "05242880", "it is enough");
    assert!(tick(&mut store, &mut controller, &cgroups, 64 << 20));
    assert_eq!(low().trim(), (64 << 20).to_string());
    assert!(tick(&mut store, &mut controller, &cgroups, 1 << 20));
    assert!(low().starts_with("5242880"), "never below: {}", low());
    // Another writer decides.
    std::fs::write(&file, "06291456\n").unwrap();
    let found = controller.on_knob_written(Some(&mut store), &cgroups, slice, Knob::MemoryLow);
    cgroups.record_low(slice, found);
    assert!(!tick(&mut store, &mut controller, &cgroups, 128 << 20));
    assert_eq!(low().trim(), "06291456", "no fight");
}

/// They are no tenants any more, but exist.
#[test]
fn cgroups_of_a_collapsed_subtree_are_restored() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cgroup");
    make(&root.join("user"));
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(root.join("user"), everybody).unwrap();
    for n in 0..10 {
        make(&root.join(format!("user/{n}")));
    }
    let (mut cgroups, changes, mut store, mut controller) = start(dir.path());
    for id in &changes.added {
        ProtectionController::on_cgroup_added(&mut store, &mut cgroups, *id);
        let (low, protected, other) = (4096, 4096, 0);
        let intent = LowIntent {
            key: Key::Cgroup(*id),
            low,
            reason: ProtectionReason { protected, other },
        };
        let outcome = controller.write(Some(&mut store), &cgroups, intent);
        let action = outcome.map(|event| event.action);
        assert!(matches!(action, Some(Action::Set { .. })), "{action:?}");
    }
    for n in 10..=500 {
        make(&root.join(format!("user/{n}")));
    }
    let mut collapsed = Changes::default();
    cgroups.rescan(&[], Instant::now(), &mut collapsed);
    assert!(collapsed.removed.len() >= 10 && cgroups.len() == 1);
    for id in collapsed.removed {
        store.on_cgroup_removed(id);
        controller.on_cgroup_removed(id);
    }
    for n in 0..10 {
        let low = std::fs::read_to_string(root.join(format!("user/{n}/memory.low"))).unwrap();
        // 0 where 4096 stood: a plain file is not cut.
        assert_eq!(low.trim(), "0096", "user/{n}");
    }
}

/// As an acting agent leaves it.
#[test]
fn an_observer_does_not_propose_what_its_operator_has_set() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cgroup");
    make(&root.join("a"));
    let (mut cgroups, ..) = start(dir.path());
    let id = cgroups.top_level()[0];
    let mut observer = ProtectionController::default();
    let mut tenants = Tree::new();
    tenants.push(None, fixture::tenant(Key::Cgroup(id), 100, 64 << 20));
    let memory = Memory::default();
    let snapshot = Snapshot { memory, tenants };
    let entitlements = Entitlements::of(&snapshot, &Policy::default());
    let events = observer.tick(None, &cgroups, &snapshot, &entitlements);
    assert_eq!((events.len(), observer.would_apply().count()), (1, 1));
    std::fs::write(root.join("a/memory.low"), "5242880\n").unwrap();
    let low = observer.on_knob_written(None, &cgroups, id, Knob::MemoryLow);
    cgroups.record_low(id, low);
    assert_eq!(observer.would_apply().count(), 0);
    let events = observer.tick(None, &cgroups, &snapshot, &entitlements);
    assert_eq!((events.len(), observer.would_apply().count()), (0, 0));
}
