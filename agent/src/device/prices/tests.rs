use super::*;

/// A window of so much a second.
fn window(costs: &mut Costs, bytes: f64, requests: f64) {
    for _ in 0..8 {
        costs.step(true, &Interval::busy(bytes, requests), false);
    }
}

/// What is learnt of a disk that can do 60 MB/s, or so many requests, of windows with these parts of small requests, of 4 KiB; the others
/// have 256 KiB.
fn learnt(could: f64, small: &[f64]) -> Prices {
    let mut costs = Costs::default();
    for part in small {
        let of = |size: f64| 1.0 / (size / 60e6 + 1.0 / could);
        let (small, large) = (part * of(4096.0), (1.0 - part) * of(262_144.0));
        window(
            &mut costs,
            small * 4096.0 + large * 262_144.0,
            small + large,
        );
    }
    costs.prices().unwrap()
}

fn near(found: f64, expected: f64, by: f64) {
    assert!(
        (found / expected - 1.0).abs() < by,
        "{found}, not {expected}"
    );
}

#[test]
fn mixtures_that_differ_tell_what_a_request_costs() {
    let differ: Vec<f64> = (0..40).map(|i| f64::from(i % 4) / 4.0).collect();
    let prices = learnt(2000.0, &differ);
    near(prices.bytes, 60e6, 0.1);
    near(prices.requests, 2000.0, 0.1);
    // So do two kinds of seconds.
    let kinds: Vec<f64> = (0..40).map(|i| f64::from(i / 20)).collect();
    near(learnt(2000.0, &kinds).requests, 2000.0, 0.1);
}

#[test]
fn where_requests_cost_nothing_or_nothing_differs_bytes_count() {
    let differ: Vec<f64> = (0..40).map(|i| f64::from(i % 4) / 4.0).collect();
    let free = learnt(1e12, &differ);
    near(free.bytes, 60e6, 0.01);
    near(free.times(4096.0, 1.0), 1.0, 0.01);
    let same = learnt(2000.0, &[0.5; 40]);
    near(same.times(4096.0, 1.0), 1.0, 0.01);
    // Nor does a disk that changes its speed say anything.
    let mut costs = Costs::default();
    for speed in [1.0, 0.5, 0.1, 0.7, 0.9] {
        window(&mut costs, 60e6 * speed, 1000.0 * speed);
    }
    near(costs.prices().unwrap().times(4096.0, 1.0), 1.0, 0.01);
}

#[test]
fn where_only_requests_count_they_take_nearly_all() {
    let mut costs = Costs::default();
    for bytes in [10e6, 20e6, 30e6, 40e6, 30e6, 20e6] {
        window(&mut costs, bytes, 2000.0);
    }
    let prices = costs.prices().unwrap();
    near(prices.requests, 2000.0, 0.2);
    assert!(prices.bytes > 60e6, "{prices:?}");
}

#[test]
fn the_second_is_always_spent() {
    let random = [0.1, 0.9, 0.3, 0.4, 0.8, 0.2, 0.6];
    let prices = learnt(500.0, &random);
    for part in random {
        let of = |size: f64| 1.0 / (size / 60e6 + 1.0 / 500.0);
        let (small, large) = (part * of(4096.0), (1.0 - part) * of(262_144.0));
        let cost = prices.cost(small * 4096.0 + large * 262_144.0, small + large);
        near(cost, 1.0, 0.1);
    }
    assert_eq!(Costs::default().prices(), None);
    let rests = Interval {
        busy: 0.9,
        used: Some(1.0),
        ..Interval::busy(60e6, 240.0)
    };
    let of_a_window = |seen: &Interval, ours| {
        let mut costs = Costs::default();
        for _ in 0..48 {
            costs.step(true, seen, ours);
        }
        costs.prices()
    };
    assert_eq!(of_a_window(&rests, true), None, "our own io.cost's");
    assert!(of_a_window(&rests, false).is_some());
    assert_eq!(of_a_window(&Interval::busy(0.0, 0.0), false), None);
}

/// A throttled disk that has rested does more for a while. With about as many requests a second all the time that looked as if
/// requests were what the disk could not do more of.
#[test]
fn a_disk_that_rests_in_between_tells_no_price() {
    let mut costs = Costs::default();
    for i in 0..400_u32 {
        let (busy, bytes) = match i % 5 {
            0 => (0.5, 15e6),
            1 => (1.0, 65e6),
            _ => (1.0, 25e6 + f64::from(i % 7) * 1e6),
        };
        let seen = Interval {
            busy,
            ..Interval::busy(bytes, 300.0 + f64::from(i % 3))
        };
        costs.step(true, &seen, true);
    }
    assert_eq!(costs.prices(), None);
}

#[test]
fn what_was_so_long_ago_is_forgotten() {
    let mut costs = Costs::default();
    // Windows of large requests only, and of so many small ones, so many windows.
    let mut learn = |requests: f64, windows: u32| {
        for i in 0..windows {
            match i % 2 {
                0 => window(&mut costs, 60e6, 229.0),
                _ => window(&mut costs, 4096.0 * requests, requests),
            }
        }
        costs.prices().unwrap().requests
    };
    near(learn(200.0, 50), 200.0, 0.4);
    near(learn(2000.0, 200), 2000.0 / (1.0 - 8.2 / 60.0), 0.1);
}
