//! A machine of one disk and some page cache, in simulation: tenants that read blocks, the kernel's reclaim, and the
//! agent's plans. Time in steps of 100 ms; blocks of 64 KiB.

pub(crate) mod loads;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_agent::monitor::{RECENT_ACCESSES, Reuse, ReuseCounts};
use justitia_agent::plan::{
    Entitlements, Key, Memory, Policy, Snapshot, Tenant, plan_protection, plan_reclaim,
};
use justitia_kernel::cgroup::CgroupId;
use justitia_share::curve::{BLOCK, Sampler};
use justitia_share::{Tree, Weight};

const STEP: Duration = Duration::from_millis(100);
/// Seconds to read a block from the cache: 250 MB/s.
const CACHED: f64 = 65_536.0 / 250e6;
/// Seconds to read a block from the idle disk: 60 MB/s.
const READ: f64 = 65_536.0 / 60e6;
/// A tenant counts as growing for this many steps after it last grew.
const GROWING: u64 = 30;

/// A pseudo-random sequence (SplitMix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn mixed(mut h: u64) -> u64 {
    h = (h ^ h >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    h = (h ^ h >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    h ^ h >> 31
}

/// The next block that a tenant reads at a time in seconds; `None` while it reads nothing.
pub(crate) type Load = Box<dyn FnMut(f64, &mut Random) -> Option<u64>>;

/// A tenant's cache, by the time of use.
#[derive(Default)]
struct Lru {
    /// Blocks with the time of their last use; entries of blocks that were used again since are stale. A block that was
    /// used twice while cached is in `again` (the kernel's active list), and is evicted after those used once.
    once: std::collections::VecDeque<(u64, u64)>,
    again: std::collections::VecDeque<(u64, u64)>,
    used: HashMap<u64, (u64, bool)>,
}

impl Lru {
    fn len(&self) -> u64 {
        self.used.len() as u64
    }

    fn touch(&mut self, block: u64, now: u64) -> bool {
        let hit = self.used.contains_key(&block);
        self.used.insert(block, (now, hit));
        let list = if hit { &mut self.again } else { &mut self.once };
        list.push_back((block, now));
        hit
    }

    /// The block to evict next, and its last use. Those used once go first.
    fn oldest(&mut self) -> Option<(u64, u64, bool)> {
        for again in [false, true] {
            let list = if again {
                &mut self.again
            } else {
                &mut self.once
            };
            while let Some(&(block, at)) = list.front() {
                if self.used.get(&block) == Some(&(at, again)) {
                    break;
                }
                list.pop_front();
            }
        }
        let (once, again) = (self.once.front().copied(), self.again.front().copied());
        match (once, again) {
            (Some((block, at)), _) => Some((block, at, false)),
            (None, Some((block, at))) => Some((block, at, true)),
            (None, None) => None,
        }
    }

    fn evict(&mut self) -> bool {
        let Some((block, ..)) = self.oldest() else {
            return false;
        };
        self.used.remove(&block);
        true
    }
}

pub(crate) struct Reader {
    pub weight: u64,
    load: Load,
    cache: Lru,
    low: u64,
    grew: Option<u64>,
    /// The step of its last read.
    read_at: u64,
    sampler: Sampler,
    reuse: Reuse,
    /// Blocks read so far, and how many of them from the disk.
    pub reads: u64,
    pub misses: u64,
    /// The same, second by second.
    pub seconds: Vec<(u64, u64)>,
}

pub(crate) struct Machine {
    /// Blocks of page cache.
    size: u64,
    begun: Instant,
    step: u64,
    clock: u64,
    seed: u64,
    random: Random,
    pub readers: Vec<Reader>,
    policy: Option<Policy>,
}

impl Machine {
    /// `policy`: the agent's; without one the kernel is alone.
    pub(crate) fn new(megabytes: u64, policy: Option<Policy>, seed: u64) -> Self {
        Self {
            size: megabytes * 16,
            begun: Instant::now(),
            step: 0,
            clock: 0,
            seed,
            random: Random(seed),
            readers: Vec::new(),
            policy,
        }
    }

    pub(crate) fn add(
        &mut self,
        weight: u64,
        load: impl FnMut(f64, &mut Random) -> Option<u64> + 'static,
    ) {
        self.readers.push(Reader {
            weight,
            load: Box::new(load),
            cache: Lru::default(),
            low: 0,
            grew: None,
            read_at: 0,
            sampler: Sampler::new(0),
            reuse: Reuse::new(self.begun, 0, 0),
            reads: 0,
            misses: 0,
            seconds: Vec::new(),
        });
    }

    pub(crate) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.tenants_read();
            self.step += 1;
            if self.policy.is_some() {
                self.agent();
            }
            if self.step.is_multiple_of(10) {
                for reader in &mut self.readers {
                    reader.seconds.push((reader.reads, reader.misses));
                }
            }
        }
    }

    /// Each tenant's cache, MB.
    pub(crate) fn cached(&self) -> Vec<u64> {
        self.readers.iter().map(|r| r.cache.len() / 16).collect()
    }

    /// Each tenant's estimated working set, MB.
    pub(crate) fn working_sets(&self) -> Vec<u64> {
        self.readers
            .iter()
            .map(|r| r.reuse.working_set().bytes >> 20)
            .collect()
    }

    fn free(&self) -> u64 {
        self.size - self.readers.iter().map(|r| r.cache.len()).sum::<u64>()
    }

    /// All tenants read for a step, in slices of a millisecond, so that they compete for the disk.
    fn tenants_read(&mut self) {
        let begin = self.step as f64 / 10.0;
        let mut left = vec![0.0; self.readers.len()];
        let mut missing = self.readers.len() as f64;
        for slice in 0..100 {
            let mut missed = 0.0;
            for (i, left) in left.iter_mut().enumerate() {
                *left += 0.001;
                let mut any = false;
                while *left > 0.0 {
                    let reader = &mut self.readers[i];
                    let Some(block) =
                        (reader.load)(begin + f64::from(slice) / 1000.0, &mut self.random)
                    else {
                        *left = 0.0;
                        break;
                    };
                    self.clock += 1;
                    let hit = reader.cache.touch(block, self.clock);
                    reader
                        .sampler
                        .access(mixed(block ^ self.seed.rotate_left(40)));
                    reader.reads += 1;
                    reader.read_at = self.step;
                    if hit {
                        *left -= CACHED;
                    } else {
                        reader.misses += 1;
                        reader.grew = Some(self.step);
                        *left -= READ * missing.max(1.0);
                        any = true;
                        self.kernel();
                    }
                }
                missed += f64::from(u8::from(any));
            }
            missing = 0.9 * missing + 0.1 * missed;
        }
    }

    /// The kernel's own reclaim: below its watermark it evicts the least recently used block, of tenants above their
    /// protection if there are any.
    fn kernel(&mut self) {
        let low = self.size / 100;
        while self.free() < low {
            let oldest = |readers: &mut [Reader], protect: bool| {
                let mut found: Option<(bool, u64, usize)> = None;
                for (i, reader) in readers.iter_mut().enumerate() {
                    if protect && reader.cache.len() <= reader.low {
                        continue;
                    }
                    if let Some((_, at, again)) = reader.cache.oldest()
                        && found.is_none_or(|best| (again, at) < (best.0, best.1))
                    {
                        found = Some((again, at, i));
                    }
                }
                found.map(|found| found.2)
            };
            let reader =
                oldest(&mut self.readers, true).or_else(|| oldest(&mut self.readers, false));
            match reader {
                Some(i) => self.readers[i].cache.evict(),
                None => return,
            };
        }
    }

    fn agent(&mut self) {
        let Some(policy) = self.policy else { return };
        let now = self.begun + STEP * u32::try_from(self.step).unwrap();
        if self.step.is_multiple_of(10) {
            let capacity = self.size * BLOCK;
            for reader in &mut self.readers {
                let counted = ReuseCounts {
                    reuse: reader.sampler.counted().clone(),
                    evicted: reader.sampler.evicted(),
                    live: reader.sampler.live(RECENT_ACCESSES),
                    lookbacks: reader.sampler.lookbacks().collect(),
                };
                reader.reuse.record(counted, capacity, now);
                reader.sampler.set_shift(reader.reuse.shift());
            }
        }
        let snapshot = self.snapshot();
        let entitlements = Entitlements::of(&snapshot, &policy);
        for intent in plan_reclaim(&snapshot, &entitlements) {
            let Key::Cgroup(CgroupId(id)) = intent.key else {
                continue;
            };
            for _ in 0..intent.bytes / BLOCK {
                self.readers[id as usize].cache.evict();
            }
        }
        if self.step.is_multiple_of(10) {
            let standing: Vec<Option<u64>> =
                self.readers.iter().map(|r| Some(r.low * BLOCK)).collect();
            for intent in plan_protection(&snapshot, &entitlements, &standing) {
                let Key::Cgroup(CgroupId(id)) = intent.key else {
                    continue;
                };
                self.readers[id as usize].low = intent.low / BLOCK;
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let mut tenants = Tree::new();
        for (reader, id) in self.readers.iter().zip(0..) {
            let file = reader.cache.len() * BLOCK;
            let tenant = Tenant {
                key: Key::Cgroup(CgroupId(id)),
                weight: Weight::try_from(reader.weight).unwrap(),
                minimum: 0,
                requested_protection: 0,
                file,
                own: file,
                orphaned: 0,
                untargetable: 0,
                other: 0,
                unreclaimable: 0,
                populated: true,
                growing: reader.grew.is_some_and(|at| self.step - at < GROWING),
                idle_for: STEP * u32::try_from(self.step - reader.read_at).unwrap(),
                mapped: 0,
                working_set: reader.reuse.working_set(),
                exempt: None,
            };
            tenants.push(None, tenant);
        }
        let memory = Memory {
            total: self.size * BLOCK * 10 / 7,
            free: self.free() * BLOCK,
            reclaim_in_flight: 0,
            high_watermark: self.size / 100 * BLOCK,
            consumption_rate: 60_000_000,
        };
        Snapshot { memory, tenants }
    }
}
