//! Which pages of the sampled blocks are used, against what was accessed.

#![expect(clippy::cast_precision_loss, reason = "small numbers")]

mod curves;

use std::collections::BTreeSet;

use curves::{Random, hash};
use justitia_share::curve::{PAGES, Sampler};
use proptest::prelude::*;

/// An access to pages: block, first page, count.
type Access = (u64, u32, u32);

/// All accesses are recent.
const ALL: u64 = 1 << 40;

fn sampler(accesses: &[Access]) -> Sampler {
    let mut sampler = Sampler::new(0);
    for (block, first, count) in accesses {
        sampler.access_pages(hash(*block, 1), *first, *count);
    }
    sampler
}

/// The fraction of the pages of all accessed blocks that were accessed.
fn accessed(accesses: &[Access]) -> f64 {
    let mut pages = BTreeSet::new();
    for (block, first, count) in accesses {
        pages.extend((*first..(first + count).min(PAGES)).map(|page| (*block, page)));
    }
    let blocks: BTreeSet<u64> = accesses.iter().map(|access| access.0).collect();
    pages.len() as f64 / blocks.len() as f64 / f64::from(PAGES)
}

fn any_accesses() -> impl Strategy<Value = Vec<Access>> {
    // So few that none is forgotten.
    proptest::collection::vec((0..8_u64, 0..PAGES, 1..=PAGES), 1..200)
}

proptest! {
    #[test]
    fn at_least_a_page_and_at_most_the_block_is_needed(accesses in any_accesses()) {
        let found = sampler(&accesses).touched(ALL);
        prop_assert!((1.0 / 16.0..=1.0).contains(&found), "{found}");
    }

    #[test]
    fn what_is_accessed_again_as_before_is_needed_exactly(accesses in any_accesses()) {
        let twice = [accesses.clone(), accesses.clone()].concat();
        let (found, expected) = (sampler(&twice).touched(ALL), accessed(&accesses));
        prop_assert!((found - expected).abs() < 1e-9, "{found}, {expected}");
    }

    #[test]
    fn small_steps_count_as_one_access_to_each_block(accesses in any_accesses()) {
        let steps: Vec<Access> = accesses
            .iter()
            .flat_map(|(block, first, count)| {
                (*first..(first + count).min(PAGES)).map(|page| (*block, page, 1))
            })
            .collect();
        let (small, whole) = (sampler(&steps), sampler(&accesses));
        prop_assert_eq!(small.counted(), whole.counted());
        prop_assert_eq!(small.touched(ALL), whole.touched(ALL));
    }
}

#[test]
fn patterns_of_use_need_what_they_hold() {
    const BLOCKS: u64 = 1000;
    let page = |block: u64, page: u64| (block, u32::try_from(page).unwrap_or(0), 1);
    let mut random = Random(7);
    let sequential: Vec<Access> = (0..BLOCKS * 16).map(|at| page(at / 16, at % 16)).collect();
    let sparse: Vec<Access> = (0..3 * BLOCKS)
        .map(|at| page(at % BLOCKS, at % BLOCKS % 7))
        .collect();
    let mut at_random = |pages: u64, accesses: u64| -> Vec<Access> {
        let mut one = |_| page(random.below(BLOCKS), random.below(pages));
        (0..accesses).map(&mut one).collect()
    };
    // Each page once on average, and five times.
    let (once, five) = (at_random(16, 16_000), at_random(16, 80_000));
    let quarter = at_random(4, 20_000);
    let cases = [
        ("sequential", sequential, 0.999..=1.0),
        ("4 KiB of each block", sparse, 0.0625..=0.066),
        ("at random, once", once, 0.9..=1.0),
        ("at random", five, 0.98..=1.0),
        ("a quarter at random", quarter, 0.24..=0.27),
    ];
    for (name, accesses, expected) in cases {
        let found = sampler(&accesses).touched(ALL);
        println!("{name}: {found:.3}");
        assert!(expected.contains(&found), "{name}: {found}");
    }
}

#[test]
fn a_block_that_takes_anothers_place_begins_without_its_pages() {
    let mut sampler = Sampler::new(0);
    // Nine blocks of one set: whole, and then a page of each, twice.
    let block = |number: u64| number << 40;
    for number in 1..=8 {
        sampler.access(block(number));
    }
    assert!((sampler.touched(ALL) - 1.0).abs() < 1e-9);
    for number in 9..=16 {
        for _ in 0..2 {
            sampler.access_pages(block(number), 5, 1);
            sampler.access_pages(1 << 32, 0, 1);
        }
    }
    // That of the other set is accessed again as well.
    let found = sampler.touched(ALL);
    assert!((found - 1.0 / 16.0).abs() < 1e-9, "{found}");
    assert_eq!((sampler.evicted(), sampler.live(ALL)), (8, 9));
}
