//! Random sequences of everything that can happen, one after another, checked after every step; reads of the SSD
//! can be slow, so that something happens to their block while they are under way.
//!
//! These mutants of the cache were made by hand, and each is caught: a block read from the SSD counts although the
//! index no longer names its place (`finish_ssd_read` without `find_at`); it counts although its extent was given away
//! and filled anew meanwhile (without `same`); checksums are not compared.

use super::cache_model::CacheModel;
use super::op::{Op, op};
use crate::block_dev::BlockDevice;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use std::cell::Cell;

/// How many sequences, of how many steps. Together a million in the test that CI runs.
const STEPS: usize = 2500;
const SEQUENCES: u32 = 250;

pub(super) fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect(variable))
}

/// The same sequences each time, unless `JUSTITIA_CACHE_SEED` says otherwise.
#[test]
fn every_read_is_what_was_written_last() {
    let seed = number_from("JUSTITIA_CACHE_SEED").unwrap_or(1);
    let sequences = number_from("JUSTITIA_CACHE_SEQUENCES").map(|n| n.try_into().unwrap());
    println!("JUSTITIA_CACHE_SEED={seed}");
    let config = ProptestConfig {
        cases: sequences.unwrap_or(SEQUENCES),
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..ProptestConfig::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let (accepted, moved) = (Cell::new(0), Cell::new([0; 3]));
    let found =
        TestRunner::new_with_rng(config, random).run(&prop::collection::vec(op(), STEPS), |ops| {
            let model = run(&ops);
            accepted.set(accepted.get() + model.accepted);
            let all = moved.get();
            moved.set(std::array::from_fn(|n| all[n] + model.moved[n]));
            Ok(())
        });
    match found {
        Ok(()) => {}
        Err(TestError::Fail(why, ops)) => panic!("{why}\nseed {seed}, after {ops:?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
    println!("{} offered blocks accepted", accepted.get());
    assert!(accepted.get() > 0, "guests put nothing");
    println!("demoted, promoted, reinserted: {:?}", moved.get());
    assert!(
        moved.get().iter().all(|n| *n > 0),
        "hybrid pools moved nothing"
    );
}

fn run(ops: &[Op]) -> CacheModel {
    let mut model = CacheModel::new();
    for (n, op) in ops.iter().enumerate() {
        model.step(op);
        if n % 100 == 0 {
            model.cache.audit();
        }
    }
    model.cache.audit();
    for store in model.cache.stats().stores {
        assert!(store.used_bytes <= store.capacity_bytes);
    }
    for (backing, truth) in model.backing.iter().zip(&model.truth) {
        let mut whole = vec![0; truth.len()];
        backing.ram.read_at(&mut whole, 0).unwrap();
        assert!(whole == *truth, "the disk is not what was written");
    }
    model.count_moves();
    model
}
