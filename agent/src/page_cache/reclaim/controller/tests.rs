use super::*;
use crate::model::Memory;
use crate::page_cache::entitlements::Policy;
use crate::page_cache::fixture;
use crate::page_cache::reclaim::reclaimer::HANG;

#[test]
fn a_request_that_hangs_is_not_expected_and_its_tenant_is_exempt() {
    let mut controller = ReclaimController::new(None, ReclaimFeatures::default());
    let (key, sent) = (Key::Cgroup(CgroupId(1)), Instant::now());
    let of = |bytes, sent| InFlight {
        bytes,
        sent,
        since: None,
        anonymous: false,
    };
    controller.in_flight.insert(key, of(5, sent));
    let late = of(7, sent + HANG);
    controller.in_flight.insert(Key::Unmanaged, late);
    let before = sent + HANG - Duration::from_millis(1);
    assert_eq!(
        (controller.in_flight(before), controller.exempt(key, before)),
        (12, None)
    );
    let after = sent + HANG;
    let exempt = Some(ReclaimExemption::NoProgress);
    assert_eq!(
        (controller.in_flight(after), controller.exempt(key, after)),
        (7, exempt)
    );
    assert_eq!(controller.exempt(Key::Unmanaged, after), None);
}

fn result(freed: u64, exempt: Option<ReclaimExemption>) -> ReclaimResult {
    ReclaimResult {
        freed,
        exempt,
        ..ReclaimResult::new(Key::Unmanaged, 8 << 20)
    }
}

#[test]
fn pauses_double_after_fruitless_requests() {
    let now = Instant::now();
    let mut backoff = ReclaimBackoff::default();
    let mut pauses = Vec::new();
    for n in 0..9 {
        let begins = backoff.update(&result((1 << 20) - 1, None), now);
        assert_eq!(begins, (n >= 2).then_some(ReclaimExemption::NoProgress));
        let pause = (0..60).find(|s| backoff.exempt(now + Duration::from_secs(*s)).is_none());
        pauses.push(pause);
    }
    let expected = [0, 0, 1, 2, 4, 8, 16, 16, 16].map(Some);
    assert_eq!(pauses, expected);
    assert_eq!(backoff.exempt(now), Some(ReclaimExemption::NoProgress));
    // An eighth of the requested bytes ends the pause.
    for freed in [1 << 20, 0] {
        assert_eq!(backoff.update(&result(freed, None), now), None);
        assert_eq!(backoff.exempt(now), None);
    }
}

/// The kernel took files instead.
#[test]
fn that_no_anonymous_memory_was_found_says_nothing_of_files() {
    let mut controller = ReclaimController::new(None, ReclaimFeatures::default());
    let (now, key) = (Instant::now(), Key::Unmanaged);
    let mut told = |freed, anonymous| {
        let decided = controller.update_backoff(&result(freed, None), "-", anonymous, now);
        assert_eq!(decided.count(), 0);
        let paused = controller.anonymous_backoffs.get(&key);
        let paused = paused.is_some_and(|of| of.exempt(now).is_some());
        (paused, controller.exempt(key, now).is_some())
    };
    for _ in 0..5 {
        assert_eq!(told(0, true), (true, false));
    }
    assert_eq!(told(8 << 20, true), (false, false));
    assert_eq!(told(0, true), (true, false), "at once");
    // What was not carried out since it was too old says nothing either.
    let stale = ReclaimResult::new(key, 0);
    for _ in 0..5 {
        drop(controller.update_backoff(&stale, "-", false, now));
        assert_eq!(controller.exempt(key, now), None);
    }
}

/// It has most anonymous memory, and reads data once.
#[test]
fn of_one_that_is_to_give_both_anonymous_memory_and_files_take_turns() {
    const MIB: u64 = 1 << 20;
    let mut controller = ReclaimController::new(None, ReclaimFeatures::default());
    let now = Instant::now();
    let (key, other) = (Key::Cgroup(CgroupId(1)), Key::Cgroup(CgroupId(2)));
    let mut database = fixture::tenant(key, 100, 600 * MIB);
    database.anon = 300 * MIB;
    let stream = fixture::tenant(other, 800, 200 * MIB);
    let memory = Memory {
        total: 1024 * MIB,
        cache: 800 * MIB,
        low_watermark: 20 * MIB,
        refaulted: 100 * MIB,
        swappiness: 60,
        ..Memory::default()
    };
    let snapshot = Snapshot {
        memory,
        tenants: fixture::tree([(None, database), (None, stream)]),
    };
    let entitlements = Entitlements::of(&snapshot, &Policy::default());
    for (anonymous, files) in [(true, false), (false, true), (true, false)] {
        let intents = controller.intents(&snapshot, &entitlements);
        let from = intents.anonymous.map(|intent| intent.key);
        assert_eq!(from, anonymous.then_some(key));
        assert_eq!(intents.excess.iter().any(|one| one.key == key), files);
        let result = ReclaimResult {
            freed: 8 << 20,
            ..ReclaimResult::new(key, 8 << 20)
        };
        drop(controller.update_backoff(&result, "-", anonymous, now));
    }
}

#[test]
fn a_thrashing_tenant_pauses_for_a_second_and_does_not_count_as_fruitless() {
    let now = Instant::now();
    let mut backoff = ReclaimBackoff::default();
    for _ in 0..5 {
        let thrashes = Some(ReclaimExemption::Thrashing { full_avg10: 80.0 });
        assert_eq!(backoff.update(&result(0, thrashes), now), thrashes);
    }
    let soon = now + Duration::from_millis(999);
    assert_eq!(
        backoff.exempt(soon),
        Some(ReclaimExemption::Thrashing { full_avg10: 80.0 })
    );
    assert_eq!(backoff.exempt(now + Duration::from_secs(1)), None);
}
