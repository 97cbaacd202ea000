use super::*;

/// A disk that does so many bytes, whatever the requests.
fn disk(bytes: f64) -> Prices {
    Prices {
        bytes,
        requests: f64::INFINITY,
    }
}

fn can(bytes: f64) -> Capacity {
    Capacity::of(disk(bytes), [bytes, bytes / 262_144.0])
}

/// A second of a disk, in quarters: how busy, what it completed, by how many requests of 256 KiB its queue grew.
fn second(capacity: &mut Capacity, busy: f64, bytes: f64, queued: f64) {
    (0..4).for_each(|_| quarter(capacity, busy, bytes, queued));
}

/// A quarter of it.
fn quarter(capacity: &mut Capacity, busy: f64, bytes: f64, queued: f64) {
    capacity.step(&looked(capacity, busy, bytes, queued), disk(60e6));
}

fn looked(capacity: &Capacity, busy: f64, bytes: f64, queued: f64) -> Interval {
    // Where it is always busy and does less than is handed out, requests wait.
    let waits = busy >= 1.0 && bytes < 0.999e6 * rate(capacity);
    Interval {
        busy,
        used: Some((bytes + 262_144.0 * queued) * 1e-6 / rate(capacity)),
        queued: queued / 4.0,
        under_way: if waits { 16.0 } else { 1.0 },
        ..Interval::busy(bytes, bytes / 262_144.0)
    }
}

/// Quarters in which a disk is always busy, with so many requests there.
fn quarters_with(capacity: &mut Capacity, count: u32, bytes: f64, under_way: f64) {
    for _ in 0..count {
        let seen = Interval {
            under_way,
            ..looked(capacity, 1.0, bytes, 0.0)
        };
        capacity.step(&seen, disk(60e6));
    }
}

fn seconds(capacity: &mut Capacity, count: u32, busy: f64, bytes: f64) {
    for _ in 0..count {
        second(capacity, busy, bytes, 0.0);
    }
}

fn until_raised(capacity: &mut Capacity, bytes: f64) {
    while !matches!(capacity.phase, Phase::Raised(_)) {
        quarter(capacity, 0.5, bytes, 0.0);
    }
}

/// What is handed out to requests of 256 KiB, MB/s.
fn rate(capacity: &Capacity) -> f64 {
    let rate = capacity.rate();
    1e-6 / (1.0 / rate.bytes + 1.0 / (262_144.0 * rate.requests))
}

fn near(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 0.005,
        "{found}, not {expected}"
    );
}

#[test]
fn the_queue_is_emptied_first_but_a_disk_may_always_be_busy() {
    let mut capacity = can(60e6);
    near(rate(&capacity), 0.8 * 59.4);
    second(&mut capacity, 0.5, 59.4e6, 0.0);
    near(rate(&capacity), 59.4);
    let mut always = can(60e6);
    second(&mut always, 1.0, 59.4e6, 0.0);
    near(rate(&always), 59.4);
}

#[test]
fn what_is_missing_while_it_is_busy_it_cannot_do() {
    let mut capacity = can(60e6);
    second(&mut capacity, 0.5, 59.4e6, 0.0);
    // Tenants that pause leave it idle.
    let mut pauses = capacity;
    second(&mut pauses, 0.6, 20e6, 0.0);
    near(rate(&pauses), 59.4);
    seconds(&mut capacity, 1, 1.0, 50e6);
    second(&mut capacity, 0.5, 40e6, 0.0);
    near(rate(&capacity), 0.99 * 50.0);
    seconds(&mut capacity, 1, 1.0, 1e6);
    second(&mut capacity, 0.5, 1e6, 0.0);
    near(rate(&capacity), 0.99);
}

#[test]
fn it_is_raised_now_and_then_and_back_where_nothing_comes_of_it() {
    let mut capacity = can(60e6);
    second(&mut capacity, 0.5, 59.4e6, 0.0);
    until_raised(&mut capacity, 59.4e6);
    near(rate(&capacity), 59.4 * 1.25);
    quarter(&mut capacity, 1.0, 60e6, 0.0);
    near(rate(&capacity), 0.8 * 59.4);
    second(&mut capacity, 0.5, 50e6, 0.0);
    near(rate(&capacity), 59.4);
    let raises_in = |capacity: &mut Capacity| {
        let before = rate(capacity);
        (0..200).find(|_| {
            second(capacity, 0.5, 59.4e6, 0.0);
            rate(capacity) > before
        })
    };
    let first = raises_in(&mut capacity).unwrap();
    seconds(&mut capacity, 1, 1.0, 60e6);
    second(&mut capacity, 0.5, 50e6, 0.0);
    let second = raises_in(&mut capacity).unwrap();
    assert!(second > first + first / 2, "{first} s, then {second} s");
}

/// A disk that is the bottleneck rests for a moment now and then: what it can do shows in between.
#[test]
fn what_a_disk_can_do_is_known_though_it_rests_for_moments() {
    let rests = |part: f64| {
        let mut rate = Rate::default();
        for look in 0..12 {
            let busy = if look % 2 == 0 { 1.0 } else { part };
            let seen = Interval {
                busy,
                ..Interval::busy(60e6 * busy, 1000.0 * busy)
            };
            rate.step(Contention::Engaged, &seen, &Costs::default());
        }
        rate.handed_out().map(|rate| rate.bytes)
    };
    near(rests(0.9).unwrap(), 59.4e6);
    assert_eq!(rests(0.5), None);
}

/// A rate that is too high by a hair fills the disk's queue long before anything is missing.
#[test]
fn a_queue_that_fills_is_emptied() {
    let mut capacity = can(60e6);
    second(&mut capacity, 0.5, 59.4e6, 0.0);
    let mut fills = |under_way: f64| {
        quarters_with(&mut capacity, 3, 59.3e6, under_way);
        rate(&capacity)
    };
    near(fills(2.0), 59.4);
    near(fills(40.0), 0.8 * 0.99 * 59.3);
}

/// Tenants that wait a little, on a disk that could do more, use no more of a higher rate.
#[test]
fn a_rate_that_is_not_used_is_not_raised() {
    let mut capacity = can(60e6);
    seconds(&mut capacity, 3600, 0.5, 20e6);
    near(rate(&capacity), 59.4);
    for _ in 0..100 {
        let given = rate(&capacity) * 1e6;
        second(&mut capacity, 0.5, given.min(90e6), 0.0);
    }
    let raised = rate(&capacity);
    assert!(raised > 80.0, "{raised}");
    assert!(raised < 90.0 / NEEDED, "{raised}");
}

#[test]
fn a_disk_that_got_faster_is_followed() {
    let mut capacity = can(6e6);
    for _ in 0..30 {
        let given = rate(&capacity) * 1e6;
        second(&mut capacity, 0.5, given, 0.0);
    }
    assert!(rate(&capacity) > 60.0, "{}", rate(&capacity));
}

/// What is not done while hardly any requests are there nobody has asked for, as busy as the disk may look.
#[test]
fn what_nobody_waits_for_is_not_missing() {
    let mut capacity = can(60e6);
    second(&mut capacity, 0.5, 59.4e6, 0.0);
    quarters_with(&mut capacity, 400, 42e6, 2.0);
    near(rate(&capacity), 59.4);
}

/// A disk that pauses for a quarter of a second does not do less.
#[test]
fn a_pause_is_no_slower_disk() {
    let mut capacity = can(60e6);
    second(&mut capacity, 0.5, 59.4e6, 0.0);
    quarter(&mut capacity, 1.0, 1e6, 0.0);
    quarters_with(&mut capacity, 3, 60e6, 8.0);
    second(&mut capacity, 0.5, 59.4e6, 0.0);
    near(rate(&capacity), 59.4);
}

/// Requests that come at once after a pause look like a faster disk. Tenants whose pages are written back at their own pace leave the disk time to rest,
/// so that nothing is missing then.
#[test]
fn of_a_raise_what_is_not_used_after_all_is_taken_back() {
    let mut capacity = can(30e6);
    second(&mut capacity, 0.5, 29.7e6, 0.0);
    until_raised(&mut capacity, 29.7e6);
    second(&mut capacity, 0.6, 37e6, 0.0);
    seconds(&mut capacity, 6, 0.6, 29.7e6);
    near(rate(&capacity), 29.7 / NEEDED);
}

/// The kernel is handed no less: a raise of less would have no effect.
#[test]
fn a_rate_that_falls_again_and_again_is_raised_from_what_the_kernel_is_handed() {
    let mut capacity = can(60e6);
    second(&mut capacity, 0.5, 59.4e6, 0.0);
    for _ in 0..4 {
        capacity.phase = capacity.fall(0.0);
    }
    near(capacity.rate * capacity.prices.bytes, LEAST_BYTES);
}

/// By less than a raise: then it is measured what it can do.
#[test]
fn a_disk_that_got_a_little_faster_is_measured_again() {
    let mut capacity = can(54e6);
    second(&mut capacity, 0.5, 53e6, 0.0);
    until_raised(&mut capacity, 53.46e6);
    seconds(&mut capacity, 1, 1.0, 60e6);
    near(rate(&capacity), 0.8 * 59.4);
    // What it takes in advance is nothing that it can do.
    let mut advance = can(60e6);
    second(&mut advance, 0.5, 59.4e6, 0.0);
    until_raised(&mut advance, 59.4e6);
    quarter(&mut advance, 1.0, 74e6, 0.0);
    quarter(&mut advance, 1.0, 68e6, 0.0);
    quarter(&mut advance, 1.0, 60e6, 0.0);
    near(rate(&advance), 0.8 * 59.4);
}

#[test]
fn while_a_disk_stands_still_the_rate_does_not_move() {
    let interval = |busy, bytes| Interval {
        busy,
        used: Some(bytes / 59.4e6),
        ..Interval::busy(bytes, bytes / 262_144.0)
    };
    let (mut rate, mut costs) = (Rate::default(), Costs::default());
    costs.step(true, &interval(1.0, 60e6), false);
    let mut step = |busy, bytes, looks| {
        (0..looks).for_each(|_| rate.step(Contention::Engaged, &interval(busy, bytes), &costs));
        rate.handed_out().unwrap().bytes / 1e6
    };
    step(1.0, 60e6, 4);
    near(step(0.5, 59.4e6, 1), 59.4);
    near(step(1.0, 0.0, 40), 59.4);
    // Ten seconds are as if it had been slow for once.
    let after = step(1.0, 60e6, 1);
    assert!(after > 0.35 * 59.4, "{after}");
}

#[test]
fn once_requests_are_known_to_be_dear_the_rate_is_of_that() {
    let mut capacity = can(60e6);
    second(&mut capacity, 0.5, 59.4e6, 0.0);
    let small = Interval {
        used: Some(2000.0 * 4096.0 / 59.4e6),
        under_way: 16.0,
        ..Interval::busy(2000.0 * 4096.0, 2000.0)
    };
    let learnt = Prices {
        bytes: 60e6,
        requests: 2300.0,
    };
    for _ in 0..4 {
        capacity.step(&small, learnt);
    }
    let rate = capacity.rate().part(1.0 / EMPTYING);
    near(rate.cost(small.bytes, small.requests), 1.0 / BELOW);
    near(rate.bytes / rate.requests, learnt.bytes / learnt.requests);
}

/// Small requests that cost too little fill the disk, however much less is handed out.
#[test]
fn what_requests_cost_is_taken_in_where_the_queue_does_not_get_shorter() {
    let full = Interval {
        used: Some(1.0),
        under_way: 47.0,
        ..Interval::busy(39e6, 870.0)
    };
    let learnt = Prices {
        bytes: 80e6,
        requests: 1600.0,
    };
    let after = |learnt| {
        let mut capacity = can(49e6);
        (0..4).for_each(|_| capacity.step(&full, learnt));
        capacity
    };
    let capacity = after(learnt);
    assert_eq!(capacity.prices, learnt);
    let [bytes, requests] = capacity.throughput;
    near(capacity.rate, BELOW * learnt.cost(bytes, requests));
    // A disk that serves several at a time does not get empty either.
    assert_eq!(after(disk(45e6)).prices, disk(49e6));
}

/// Nothing is known of a disk that has completed nothing.
#[test]
fn tenants_that_rest_do_not_change_the_rate() {
    let rests = Interval {
        busy: 0.0,
        used: Some(0.0),
        under_way: 0.0,
        ..Interval::busy(0.0, 0.0)
    };
    let mut capacity = can(60e6);
    let learnt = Prices {
        bytes: 80e6,
        requests: 2000.0,
    };
    (0..40).for_each(|_| capacity.step(&rests, disk(60e6)));
    near(capacity.handed_out(), BELOW);
    (0..40).for_each(|_| capacity.step(&rests, learnt));
    near(capacity.handed_out(), BELOW);
}
