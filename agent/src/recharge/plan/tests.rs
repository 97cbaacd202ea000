use justitia_kernel::probes::SharedUse;
use justitia_share::Tree;

use super::*;
use crate::model::{Key, Memory, Tenant};
use crate::page_cache::fixture;

const MIB: u64 = 1 << 20;
const ROOT: CgroupId = CgroupId(1);
const LIGHT: CgroupId = CgroupId(10);
const MIDDLE: CgroupId = CgroupId(11);
const HEAVY: CgroupId = CgroupId(12);
const GONE: CgroupId = CgroupId(99);

fn tenant(key: Key, weight: u64, file: u64) -> Tenant {
    fixture::tenant(key, weight, file * MIB)
}

/// Tenants, each with the position of its parent.
fn tree(tenants: Vec<(Option<usize>, Tenant)>) -> Tree<Tenant> {
    fixture::tree(tenants)
}

/// 1000 MiB of cache: `light` holds 300 of them, and its part would be 100.
fn snapshot(free: u64) -> (Snapshot, Entitlements) {
    let snapshot = Snapshot {
        memory: Memory {
            free: free * MIB,
            ..Memory::default()
        },
        tenants: tree(vec![
            (None, tenant(Key::Cgroup(LIGHT), 100, 300)),
            (None, tenant(Key::Cgroup(MIDDLE), 100, 50)),
            (None, tenant(Key::Cgroup(HEAVY), 700, 100)),
            (None, tenant(Key::Unmanaged, 100, 50)),
        ]),
    };
    let entitlements = Entitlements {
        capacity: 1000 * MIB,
        free_headroom: 10 * MIB,
        ..Entitlements::default()
    };
    (snapshot, entitlements)
}

fn used(user: CgroupId, charged: CgroupId, mib: u64) -> SharedUse {
    SharedUse {
        user,
        charged,
        bytes: mib * MIB,
    }
}

fn file(cached: u64, uses: Vec<SharedUse>) -> SharedInode {
    SharedInode {
        device: 8 << 20,
        inode: 7,
        generation: 3,
        mapped: false,
        cached: cached * MIB,
        uses,
    }
}

fn judge(file: &SharedInode) -> Result<(CgroupId, CgroupId), KeepReason> {
    let (snapshot, entitlements) = snapshot(500);
    let tenants = Tenants::of(&snapshot, &entitlements, ROOT);
    let judged = tenants.judge(file, 10.0, |_| false);
    judged.map(|intent| (intent.owner, intent.charged))
}

/// Read by the heavy tenant, charged to the light one.
fn from_light(mib: u64) -> Vec<SharedUse> {
    vec![used(HEAVY, LIGHT, mib)]
}

#[test]
fn files_are_recharged_to_the_heaviest_reader() {
    for (what, file, owner, charged) in [
        (
            "a heavier one reads what a lighter one is charged for",
            file(200, from_light(400)),
            HEAVY,
            LIGHT,
        ),
        (
            "of several users the heaviest",
            file(
                200,
                vec![used(MIDDLE, LIGHT, 4000), used(HEAVY, LIGHT, 400)],
            ),
            HEAVY,
            LIGHT,
        ),
        (
            "a cgroup that is gone is charged",
            file(200, vec![used(MIDDLE, GONE, 100)]),
            MIDDLE,
            GONE,
        ),
        (
            "a heavier one has read a little; the one that reads all of it is heavy enough",
            file(100, vec![used(HEAVY, GONE, 1), used(MIDDLE, GONE, 100)]),
            MIDDLE,
            GONE,
        ),
        (
            "read whole, and charged to several",
            file(200, vec![used(HEAVY, LIGHT, 40), used(HEAVY, GONE, 30)]),
            HEAVY,
            LIGHT,
        ),
    ] {
        assert_eq!(judge(&file), Ok((owner, charged)), "{what}");
    }
}

#[test]
fn files_are_left_where_they_are_charged_for_a_reason() {
    let mapped = SharedInode {
        mapped: true,
        ..file(200, from_light(400))
    };
    for (what, file, reason) in [
        (
            "what no tenant is charged for, and is not exposed",
            file(20, vec![used(HEAVY, ROOT, 400)]),
            KeepReason::SmallGain,
        ),
        (
            "the heavier one is charged",
            file(200, vec![used(LIGHT, HEAVY, 400)]),
            KeepReason::NoHeavierReader,
        ),
        (
            "both weigh the same",
            file(200, vec![used(MIDDLE, LIGHT, 400)]),
            KeepReason::NoHeavierReader,
        ),
        (
            "little of it is read, however often",
            file(200, from_light(49)),
            KeepReason::LittleRead,
        ),
        ("mapped", mapped, KeepReason::Mapped),
        (
            "next to nothing cached",
            file(0, from_light(9)),
            KeepReason::SmallCache,
        ),
        (
            "the user is no tenant",
            file(200, vec![used(GONE, LIGHT, 400)]),
            KeepReason::NoHeavierReader,
        ),
    ] {
        assert_eq!(judge(&file), Err(reason), "{what}");
    }
}

#[test]
fn a_file_that_exceeds_the_owners_share_as_well_is_not_recharged() {
    // 700 MiB are the heavy one's part: with 3000 more it would be more exposed than the light one is.
    let all = file(3000, vec![used(HEAVY, LIGHT, 40_000)]);
    assert_eq!(judge(&all), Err(KeepReason::SmallGain));
}

#[test]
fn nothing_is_recharged_near_the_headroom_or_again_at_once() {
    let files = [file(200, vec![used(HEAVY, LIGHT, 400)])];
    let plan = |free: u64, rests: bool| {
        let (snapshot, entitlements) = snapshot(free);
        plan_recharge(
            &snapshot,
            &entitlements,
            &files,
            10.0,
            ROOT,
            u64::MAX,
            |_| rests,
        )
        .len()
    };
    assert_eq!(plan(500, false), 1);
    assert_eq!(plan(25, false), 0, "10 MiB of headroom and 16 to spare");
    assert_eq!(plan(500, true), 0);
}

#[test]
fn the_greatest_gain_comes_first_and_reports_its_numbers() {
    let (snapshot, entitlements) = snapshot(500);
    let small = file(100, vec![used(HEAVY, LIGHT, 60)]);
    let great = SharedInode {
        inode: 8,
        ..file(100, vec![used(HEAVY, LIGHT, 100)])
    };
    let plan = |most: u64| {
        let files = [small.clone(), great.clone()];
        plan_recharge(&snapshot, &entitlements, &files, 10.0, ROOT, most, |_| {
            false
        })
    };
    assert_eq!(plan(100 * MIB).len(), 1, "one is enough");
    let intents = plan(u64::MAX);
    let inodes: Vec<u64> = intents.iter().map(|i| i.file.inode).collect();
    assert_eq!(inodes, [8, 7]);
    // The second is judged as if the first had gone: 200 MiB are left where 100 are in order.
    assert!((intents[1].reason.exposed - 0.5).abs() < 1e-9);
    // 10 MiB/s over 300 s, two thirds of it exposed.
    assert_eq!(intents[0].reason.gain / MIB, 2000);
    let why = intents[0].reason.to_string();
    for fact in [
        "70 % by weight",
        "100M of it",
        "67 % of",
        "gain: 1.95G not",
        "100M read now",
    ] {
        assert!(why.contains(fact), "{fact}: {why}");
    }
}

#[test]
fn shares_multiply_down_the_tree() {
    let inner = tenant(Key::Cgroup(CgroupId(20)), 100, 0);
    let below = |id, weight| (Some(0), tenant(Key::Cgroup(CgroupId(id)), weight, 10));
    let snapshot = Snapshot {
        tenants: tree(vec![
            (None, inner),
            below(21, 300),
            below(22, 100),
            (None, tenant(Key::Unmanaged, 100, 0)),
        ]),
        ..Snapshot::default()
    };
    let tenants = Tenants::of(&snapshot, &Entitlements::default(), ROOT);
    assert_eq!(tenants.shares, [0.5, 0.375, 0.125, 0.5]);
}
