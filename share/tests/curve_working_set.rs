//! The working set that follows from the accesses of some minutes.

mod curves;

use std::time::Duration;

use curves::{Random, View, zipf};

/// Blocks that there are at all: 700 MiB.
const CAPACITY: f64 = 11_200.0;
const SECOND: Duration = Duration::from_secs(1);

/// The working set after `seconds` seconds with the accesses of `second`: lowest, median and highest of 21 seeds.
fn after(seconds: u64, mut second: impl FnMut(u64, &mut Random) -> Vec<u64>) -> [f64; 3] {
    let mut sizes: Vec<f64> = (0..21)
        .map(|seed| {
            let (mut view, mut random) = (View::new(seed, 11_200), Random(seed << 40));
            (0..seconds)
                .map(|at| {
                    view.take(second(at, &mut random), SECOND);
                    view.curve().working_set(CAPACITY)
                })
                .last()
                .unwrap_or(0.0)
        })
        .collect();
    sizes.sort_by(f64::total_cmp);
    [sizes[0], sizes[10], sizes[20]]
}

fn check(name: &str, found: [f64; 3], expected: std::ops::RangeInclusive<f64>) {
    println!("{name}: {found:.0?}");
    assert!(
        expected.contains(&found[0]) && expected.contains(&found[2]),
        "{name}: {found:?}, expected {expected:?}"
    );
}

fn random(blocks: u64, each_second: u64) -> impl FnMut(u64, &mut Random) -> Vec<u64> {
    move |_, random| (0..each_second).map(|_| random.below(blocks)).collect()
}

#[test]
fn what_is_used_again_and_again_is_the_working_set() {
    check(
        "400 MB at random",
        after(60, random(6400, 3000)),
        6100.0..=7800.0,
    );
    check(
        "400 MB at random, five seconds",
        after(5, random(6400, 3000)),
        5400.0..=7800.0,
    );
    check(
        "400 MB, a read a minute of each block",
        after(180, random(6400, 107)),
        4800.0..=7800.0,
    );
    check(
        "10 MB now and then",
        after(60, random(160, 5)),
        110.0..=180.0,
    );
    let round = |at: u64, _: &mut Random| (at * 960..at * 960 + 960).map(|i| i % 6000).collect();
    check("a loop that fits", after(60, round), 5500.0..=6700.0);
}

#[test]
fn what_is_not_used_again_is_not() {
    let stream = |at: u64, _: &mut Random| (at * 960..at * 960 + 960).collect();
    check("a stream", after(60, stream), 0.0..=0.0);
    // One block in a thousand is read again, some 600 MB later.
    let strays = |at: u64, random: &mut Random| -> Vec<u64> {
        let again = (at * 960)
            .checked_sub(9600)
            .map(|start| start + random.below(960));
        (at * 960..at * 960 + 960).chain(again).collect()
    };
    check("a stream with strays", after(60, strays), 0.0..=16.0);
    let large = |at: u64, _: &mut Random| (at * 960..at * 960 + 960).map(|i| i % 40_000).collect();
    check("a loop that does not fit", after(120, large), 0.0..=16.0);
}

#[test]
fn of_a_skewed_use_the_tail_is_not() {
    let blocks = zipf(200_000, 100_000, 1.1, &mut Random(5));
    let skewed = |at: u64, _: &mut Random| {
        let start = usize::try_from(at * 500).unwrap_or(0);
        blocks[start..start + 500].to_vec()
    };
    check("zipf 1.1", after(200, skewed), 1500.0..=11_200.0);
}

/// 400 MB at random, `each_second` reads a second until `end`, and nothing from then on.
fn idle_from(end: u64, each_second: u64) -> impl FnMut(u64, &mut Random) -> Vec<u64> {
    let mut busy = random(6400, each_second);
    move |at, random| {
        if at < end {
            busy(at, random)
        } else {
            Vec::new()
        }
    }
}

/// While its counts decay, a busy tenant that falls idle is remembered for some minutes, a slow one for a few, none for long.
#[test]
fn who_falls_idle_has_no_use_of_it_in_the_end() {
    let two_minutes = after(180, idle_from(60, 3000));
    check("two minutes later", two_minutes, 6100.0..=7800.0);
    let ten_minutes = after(660, idle_from(60, 3000));
    check("ten minutes later", ten_minutes, 0.0..=16.0);
    let slow = after(480, idle_from(180, 107));
    check("a slow one five minutes later", slow, 0.0..=16.0);
}
