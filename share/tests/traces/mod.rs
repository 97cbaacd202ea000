//! A recorded trace, and what an LRU cache makes of a trace, exactly. Tests of curves measure their error by it, those of
//! the hypervisor cache too.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};

use flate2::read::GzDecoder;

/// A real virtual machine's requests, in blocks of `bytes` bytes.
pub(crate) fn cloudphysics(bytes: u64) -> Vec<u64> {
    let zipped = include_bytes!("../../../cache/testdata/cloudphysics-sample.csv.gz");
    let lines = BufReader::new(GzDecoder::new(zipped.as_slice())).lines();
    let mut trace = Vec::new();
    for line in lines.map(Result::unwrap) {
        let words: Vec<&str> = line.split(',').collect();
        if let (Ok(size), Ok(sector)) = (words[3].parse::<u64>(), words[4].parse::<u64>()) {
            trace.extend(sector * 512 / bytes..=(sector * 512 + size.max(512) - 1) / bytes);
        }
    }
    trace
}

/// Counts over a range of positions (Fenwick).
struct Counts(Vec<i64>);

impl Counts {
    fn add(&mut self, at: usize, by: i64) {
        let mut at = at + 1;
        while at < self.0.len() {
            self.0[at] += by;
            at += at & at.wrapping_neg();
        }
    }

    fn sum(&self, mut end: usize) -> i64 {
        let mut sum = 0;
        while end > 0 {
            sum += self.0[end];
            end -= end & end.wrapping_neg();
        }
        sum
    }
}

/// For each access the size of the smallest LRU cache that would hit (Bennett and Kruskal); `None` for a first one.
pub(crate) fn stack_distances(trace: &[u64]) -> Vec<Option<usize>> {
    let mut counts = Counts(vec![0; trace.len() + 1]);
    let mut last: HashMap<u64, usize> = HashMap::new();
    let mut distances = Vec::with_capacity(trace.len());
    for (at, block) in trace.iter().enumerate() {
        let before = last.insert(*block, at);
        distances.push(before.map(|before| {
            counts.add(before, -1);
            usize::try_from(counts.sum(at) - counts.sum(before + 1) + 1).unwrap()
        }));
        counts.add(at, 1);
    }
    distances
}

/// Different blocks of a trace.
pub(crate) fn blocks(distances: &[Option<usize>]) -> usize {
    distances.iter().filter(|d| d.is_none()).count()
}

/// The absolute errors of a curve at 40 sizes up to all blocks there are, in the last half of the trace.
pub(crate) fn errors(distances: &[Option<usize>], miss_ratio: impl Fn(usize) -> f64) -> Vec<f64> {
    let largest = blocks(distances);
    let late = &distances[distances.len() / 2..];
    let mut sorted: Vec<usize> = late.iter().flatten().copied().collect();
    sorted.sort_unstable();
    let errors = (1..=40).map(|part| {
        let size = (largest * part / 40).max(1);
        let hits = sorted.partition_point(|distance| *distance <= size);
        let exact = 1.0 - number(hits) / number(late.len());
        (miss_ratio(size) - exact).abs()
    });
    errors.collect()
}

/// A number of accesses or blocks: fewer than 2^32.
pub(crate) fn number(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap())
}
