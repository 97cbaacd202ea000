//! A seeded fuzz: real texts, mutilated, and every parser on every one of them.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its tests do")]

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

#[path = "hostile/checks.rs"]
mod checks;

/// The texts of the stock kernels, and some that are wrong by hand.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut todo = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(
                std::fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            seeds.push((path.clone(), std::fs::read(path).unwrap()));
        }
    }
    seeds.sort();
    assert!(seeds.len() > 40, "the fixtures are where they should be");
    let mut seeds: Vec<_> = seeds.into_iter().map(|(_, text)| text).collect();
    for text in [
        "7:7 7:6 8:0 rbytes=1 wbytes=2\n7:5\n",
        "8:0 \n",
        "100\n",
        "max\n",
        "-1\n",
        "18446744073709551616\n",
        "domain threaded\n",
        "memcg     1 /\n node     0\n          0      10940        162          0 \n          1  1  2  3 \n",
    ] {
        seeds.push(text.as_bytes().to_vec());
    }
    seeds
}

/// What happens to a text: at a position, of so many bytes, and what takes their place.
type Mutation = (usize, usize, Vec<u8>);

fn apply((position, removed, inserted): &Mutation, text: &mut Vec<u8>) {
    let start = position % (text.len() + 1);
    let end = text.len().min(start.saturating_add(*removed));
    text.splice(start..end, inserted.iter().copied());
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let words = [
        "\0",
        "\n",
        " ",
        "=",
        ":",
        "-",
        "0",
        "max",
        "\u{e4}",
        "default ",
        "8:0 ",
        "anon ",
        ".00",
        "99999999999999999999",
        "18446744073709551615",
        "4294967296:0",
        "\\040",
        "%s",
        "avg10=",
    ];
    let removed = prop_oneof![2 => 0_usize..2, 2 => 0_usize..64, 1 => Just(usize::MAX)];
    let part = prop_oneof![
        proptest::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        proptest::collection::vec(any::<u8>(), 1..16),
    ];
    let inserted = (part, prop_oneof![0_usize..2, 0_usize..64]);
    let inserted = inserted.prop_map(|(part, times)| part.repeat(times));
    (any::<usize>(), removed, inserted)
}

#[test]
fn mutilated_texts_keep_the_properties() {
    let config = Config {
        cases: 3000,
        failure_persistence: None,
        ..Config::default()
    };
    let seed = TestRng::from_seed(RngAlgorithm::ChaCha, &[29; 32]);
    let text = (
        proptest::sample::select(seeds()),
        proptest::collection::vec(mutation(), 0..6),
    );
    TestRunner::new_with_rng(config, seed)
        .run(&text, |(mut text, mutations)| {
            for mutation in &mutations {
                apply(mutation, &mut text);
            }
            for (_, check) in checks::ALL {
                check(&text);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn huge_texts_keep_the_properties() {
    for part in [
        "8:0 rbytes=1\n",
        "anon 1\n",
        "Node 0, zone Normal\n",
        "9",
        "a b\n",
        "\n",
        " ",
        "\0",
    ] {
        let text = part.repeat((256 << 10) / part.len());
        for (_, check) in checks::ALL {
            check(text.as_bytes());
        }
    }
}
