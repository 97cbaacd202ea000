//! Hit ratios of the policies, by replaying accesses through the cache.

use justitia_cache::lab::{BLOCK_BYTES, NullDisk, Random, Zipf};
use justitia_cache::{
    BLOCK_SIZE, BlockDevice, Cache, CacheConfig, CacheError, CachedDisk, Mode, Policy,
};
use justitia_share::Weight;
use justitia_share::num::to_f64;
use std::collections::{BTreeMap, HashMap};
use std::io::BufRead;
use std::sync::Arc;

/// One access to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    /// Which block of 4 KiB.
    block: u64,
    /// Is it written?
    write: bool,
}

/// A line of a trace that is none.
#[derive(Debug, thiserror::Error)]
#[error(
    "line {line}: expected version,time,opcode (28 or 2a),bytes,first 512-byte block; found {found:?}"
)]
struct TraceError {
    /// Which line, from 1.
    line: usize,
    /// What stands there.
    found: String,
}

/// Reads a block trace in the CSV form of the CloudPhysics samples (`testdata/README.md`): every block that a
/// request touches is an access. A first line of column names is passed over, and so are requests other than
/// reads and writes.
///
/// # Errors
/// At the first line that is no request.
fn parse_trace(trace: impl BufRead) -> Result<Vec<Access>, TraceError> {
    let mut accesses = Vec::new();
    for (i, line) in trace.lines().enumerate() {
        let wrong = |found: String| TraceError { line: i + 1, found };
        let line = line.map_err(|e| wrong(e.to_string()))?;
        let fields: Vec<_> = line.split(',').map(str::trim).collect();
        if i == 0 && fields.first() == Some(&"version") {
            continue;
        }
        let request = match fields[..] {
            [_, _, op, bytes, sector] => u8::from_str_radix(op, 16)
                .ok()
                .zip(bytes.parse::<u64>().ok())
                .zip(sector.parse::<u64>().ok()),
            _ => None,
        };
        let Some(((op, bytes), sector)) = request else {
            return Err(wrong(line));
        };
        let write = match op {
            0x28 => false,
            0x2a => true,
            _ => continue,
        };
        let blocks = justitia_cache::lab::touching(sector.saturating_mul(512), bytes);
        accesses.extend(blocks.map(|block| Access { block, write }));
    }
    Ok(accesses)
}

/// Reads of `blocks` blocks, drawn with `seed` by Zipf's law (exponent `skew`), with a sequential scan over as many other blocks
/// after every `every` of them.
fn zipf_and_scans(seed: u64, blocks: u64, skew: f64, count: u64, every: u64) -> Vec<Access> {
    let zipf = Zipf::new(blocks, skew);
    let mut random = Random::new(seed);
    let mut accesses = Vec::new();
    let read = |block| Access {
        block,
        write: false,
    };
    for n in 1..=count {
        accesses.push(read(zipf.block(part(&mut random))));
        if n % every == 0 {
            let start = blocks * (1 + n / every);
            accesses.extend((start..start + blocks).map(read));
        }
    }
    accesses
}

/// What a replay found.
#[derive(Clone, Copy, Debug)]
struct Replayed {
    /// Blocks that were looked up.
    lookups: u64,
    /// Of these, found.
    hits: u64,
}

impl Replayed {
    /// Hits of lookups, 0 to 1.
    fn ratio(&self) -> f64 {
        to_f64(self.hits) / to_f64(self.lookups.max(1))
    }
}

fn disk(policy: Policy, blocks: u64, mode: Mode) -> Result<(Arc<Cache>, CachedDisk), CacheError> {
    let cache = Cache::new(CacheConfig::of_memory(blocks * BLOCK_BYTES))?;
    let vm = cache.add_vm("vm", Weight::default(), policy)?;
    let id = cache.add_disk(vm, "disk")?;
    let backing = Arc::new(NullDisk(1 << 50));
    let disk = CachedDisk::new(backing, cache.clone(), id, mode)?;
    Ok((cache, disk))
}

/// An inclusive cache of `blocks` blocks under the accesses.
///
/// # Errors
/// When the memory cannot be had.
fn inclusive(accesses: &[Access], policy: Policy, blocks: u64) -> Result<Replayed, CacheError> {
    let (cache, disk) = disk(policy, blocks, Mode::Inclusive)?;
    let mut buf = [0; BLOCK_SIZE];
    for access in accesses {
        let off = access.block * BLOCK_BYTES;
        // The disk under it does not fail.
        let _ = if access.write {
            disk.write_at(&buf, off, false)
        } else {
            disk.read_at(&mut buf, off)
        };
    }
    Ok(counted(&cache))
}

/// A second-chance cache of `blocks` blocks behind a guest whose page cache holds `guest` blocks (LRU), reads
/// through it and puts what it evicts.
///
/// # Errors
/// When the memory cannot be had.
fn exclusive(
    accesses: &[Access],
    policy: Policy,
    blocks: u64,
    guest: usize,
) -> Result<Replayed, CacheError> {
    let (cache, disk) = disk(policy, blocks, Mode::Exclusive)?;
    let pool = cache.stats().vms[0].pools[0].id;
    let mut pages = Lru::default();
    let mut buf = [0; BLOCK_SIZE];
    for access in accesses {
        let off = access.block * BLOCK_BYTES;
        let known = pages.touch(access.block);
        if access.write {
            let _ = disk.write_at(&buf, off, false);
        } else if !known {
            let _ = disk.read_at(&mut buf, off);
        }
        while pages.len() > guest {
            if let Some(block) = pages.evict() {
                disk.fill(pool, block, &buf);
            }
        }
    }
    Ok(counted(&cache))
}

fn counted(cache: &Cache) -> Replayed {
    let stats = cache.stats();
    let pools = || stats.vms.iter().flat_map(|vm| &vm.pools);
    Replayed {
        lookups: pools().map(|p| p.counts.gets).sum(),
        hits: pools().map(|p| p.counts.memory_hits).sum(),
    }
}

/// A guest's page cache.
#[derive(Default)]
struct Lru {
    time: u64,
    when: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl Lru {
    /// Makes a block the newest; `true` when it was there.
    fn touch(&mut self, block: u64) -> bool {
        self.time += 1;
        let before = self.when.insert(block, self.time);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(self.time, block);
        before.is_some()
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn evict(&mut self) -> Option<u64> {
        let (_, block) = self.order.pop_first()?;
        self.when.remove(&block);
        Some(block)
    }
}

/// A random number from 0 to below 1.
fn part(random: &mut Random) -> f64 {
    to_f64(random.next() >> 12) / to_f64(1 << 52)
}

fn trace() -> Vec<Access> {
    let zipped = include_bytes!("../../../../cache/testdata/cloudphysics-sample.csv.gz");
    let lines = flate2::read::GzDecoder::new(&zipped[..]);
    parse_trace(std::io::BufReader::new(lines)).unwrap()
}

/// The traces of `testdata/lirs`: the number of a block a line.
fn lirs() -> Vec<(&'static str, Vec<Access>)> {
    macro_rules! zipped {
        ($($name:literal),*) => {
            [$(($name, &include_bytes!(concat!("../../../../cache/testdata/lirs/", $name, ".gz"))[..])),*]
        };
    }
    let zipped = zipped!("cpp", "gli", "multi2", "multi3", "ps", "sprite");
    let read = |zipped: &[u8]| {
        let lines = std::io::BufReader::new(flate2::read::GzDecoder::new(zipped)).lines();
        // Lines that are no number are marks of the simulator that the traces were made for.
        let blocks = lines.filter_map(|line| line.unwrap().trim().parse().ok());
        let write = false;
        blocks.map(|block| Access { block, write }).collect()
    };
    zipped.map(|(name, of)| (name, read(of))).into()
}

#[test]
fn what_is_no_request_is_refused_with_its_line() {
    let good = "version,time,op,size,lbn\n1,5,28,8192,7\n1,5,35,0,0\n1,6,2a,512,8\n";
    let accesses = parse_trace(good.as_bytes()).unwrap();
    let read = |block| Access {
        block,
        write: false,
    };
    let write = Access {
        block: 1,
        write: true,
    };
    assert_eq!(accesses, [read(0), read(1), read(2), write]);
    let error = parse_trace("1,5,28,512,1\n1,5,28\n".as_bytes()).unwrap_err();
    assert_eq!(error.line, 2);
    assert!(error.to_string().contains("\"1,5,28\""));
}

/// The better policies must be better on what they are for.
#[test]
fn policies_keep_what_is_used_again() {
    let accesses = zipf_and_scans(11, 10_000, 0.9, 200_000, 25_000);
    let ratio = |policy| inclusive(&accesses, policy, 2500).unwrap().ratio();
    let fifo = ratio(Policy::Fifo);
    for policy in [Policy::Sieve, Policy::S3Fifo] {
        let found = ratio(policy);
        assert!(found > fifo + 0.02, "{policy:?} {found}, fifo {fifo}");
    }
    let accesses = zipf_and_scans(11, 4000, 0.9, 80_000, 10_000);
    let second = |policy| exclusive(&accesses, policy, 3600, 1800).unwrap().ratio();
    let (ghost, fifo) = (second(Policy::Ghost), second(Policy::Fifo));
    assert!(ghost > fifo + 0.02, "ghost {ghost}, fifo {fifo}");
}

/// Different blocks of a trace.
fn touched(accesses: &[Access]) -> u64 {
    let blocks: std::collections::HashSet<_> = accesses.iter().map(|a| a.block).collect();
    u64::try_from(blocks.len()).unwrap()
}

#[test]
fn the_default_keeps_what_real_programs_use_again() {
    let path = std::path::Path::new("image");
    let default = justitia_cache::serve::Config::of_image(path, "vm", path).vms[0].policy;
    let mut sums = [0.0; 2];
    let (mut sizes, small) = (0.0, |name: &str| name != "sprite");
    for (name, accesses) in lirs().into_iter().filter(|(name, _)| small(name)) {
        for percent in [5, 10, 20, 40] {
            let blocks = touched(&accesses) * percent / 100;
            let mut lru = Lru::default();
            let mut hits = 0;
            for access in &accesses {
                hits += u64::from(lru.touch(access.block));
                if lru.len() > usize::try_from(blocks).unwrap() {
                    lru.evict();
                }
            }
            let lru = to_f64(hits) / to_f64(u64::try_from(accesses.len()).unwrap());
            let found = [default, Policy::Sieve].map(|p| inclusive(&accesses, p, blocks).unwrap());
            let found = found.map(|replayed| replayed.ratio());
            println!("{name:8} {blocks:6} blocks: {found:.3?}, LRU {lru:.3}");
            assert!(found[0] > lru - 0.03, "{name}: {found:?}, LRU {lru}");
            for (sum, ratio) in sums.iter_mut().zip(found) {
                *sum += ratio;
            }
            sizes += 1.0;
        }
    }
    let [default, sieve] = sums.map(|sum| sum / sizes);
    println!("mean: default {default:.4}, sieve {sieve:.4}");
    assert!(default > sieve + 0.04, "{default}, sieve {sieve}");
}

/// The hit ratio of every policy, mean over cache sizes of 2 to 40 % of the blocks touched, in per cent.
fn means(accesses: &[Access]) -> [String; 2] {
    let blocks = touched(accesses);
    let sizes = [2, 5, 10, 20, 40].map(|p| blocks * p / 100);
    let line = |ratio: &dyn Fn(Policy, u64) -> f64| {
        Policy::ALL
            .map(|p| {
                let sum: f64 = sizes.iter().map(|size| ratio(p, *size)).sum();
                format!("{:5.1}", sum * 20.0)
            })
            .join(" ")
    };
    [
        line(&|p, size| inclusive(accesses, p, size).unwrap().ratio()),
        line(&|p, size| {
            let guest = usize::try_from(size / 2).unwrap();
            exclusive(accesses, p, size, guest).unwrap().ratio()
        }),
    ]
}

/// The table of the crate's README: `cargo test policies_on_traces -- --ignored --nocapture`. The first
/// half of each trace is what a default may be chosen on, the second is what it then does.
#[test]
#[ignore = "takes a minute and prints a table"]
fn policies_on_traces() {
    let mut traces = vec![
        ("cloudphysics", trace()),
        (
            "Zipf 0.7",
            zipf_and_scans(1, 20_000, 0.7, 400_000, u64::MAX),
        ),
        (
            "Zipf 1.1",
            zipf_and_scans(2, 20_000, 1.1, 400_000, u64::MAX),
        ),
        (
            "Zipf 0.9, scans",
            zipf_and_scans(3, 20_000, 0.9, 400_000, 50_000),
        ),
        (
            "Zipf 0.9, rare scans",
            zipf_and_scans(4, 20_000, 0.9, 400_000, 180_000),
        ),
        (
            "Zipf 0.7, scans",
            zipf_and_scans(5, 10_000, 0.7, 400_000, 25_000),
        ),
    ];
    traces.extend(lirs());
    println!("fifo ghost sieve s3-fifo; inclusive | exclusive");
    for (name, accesses) in traces {
        let (first, second) = accesses.split_at(accesses.len() / 2);
        for (part, accesses) in [("first", first), ("second", second)] {
            let [inclusive, exclusive] = means(accesses);
            println!("{name:22} {part:7} {inclusive} | {exclusive}");
        }
    }
}
