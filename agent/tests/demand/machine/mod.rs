//! A machine of one disk, some memory and perhaps swap, in simulation: tenants that read blocks, touch anonymous memory
//! and fill slab; the kernel's reclaim; and the agent's samplers and plans. Time in steps of 100 ms; memory in pages of
//! 4 KiB, and mostly in blocks of 64 KiB.

mod kernel;
pub(crate) mod loads;
mod lru;
mod tenant;

use std::time::{Duration, Instant};

use justitia_agent::model::{Key, Memory, Snapshot};
use justitia_agent::page_cache::reclaim::{plan_anonymous, plan_reclaim};
use justitia_agent::page_cache::{Entitlements, Low, Policy, plan_protection};
use justitia_kernel::PAGE_SIZE;
use justitia_kernel::cgroup::CgroupId;
use justitia_share::{Tree, Weight};
use loads::Op;
use tenant::SimTenant;

pub(crate) const STEP: Duration = Duration::from_millis(100);
/// Pages of a megabyte.
pub(crate) const MB: u64 = 256;
/// Seconds to use a block that is in memory: 250 MB/s.
const CACHED: f64 = 65_536.0 / 250e6;
/// Seconds to read a block from the idle disk: 60 MB/s.
const READ: f64 = 65_536.0 / 60e6;
/// Anonymous memory that was used within so many steps is not swapped out: the kernel gives it a second chance.
const REFERENCED: u64 = 10;
/// kswapd wakes below this part of memory: one in so many ...
const LOW: u64 = 100;
/// ... and reclaims up to this part, in about the relation of a machine of 1 GiB.
const HIGH: u64 = 80;
/// The default of `vm.swappiness`.
const SWAPPINESS: u8 = 60;

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
    /// From 0 to 1.
    fn unit(&mut self) -> f64 {
        self.below(1 << 32) as f64 / f64::from(u32::MAX)
    }
}

fn mixed(mut h: u64) -> u64 {
    h = (h ^ h >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    h = (h ^ h >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    h ^ h >> 31
}

/// A cgroup with others below it.
pub(crate) struct Group {
    pub(crate) weight: u64,
    /// `memory.low` and `memory.min`, pages.
    low: u64,
    pub(crate) min: u64,
}

pub(crate) struct Machine {
    /// Pages of memory.
    size: u64,
    /// Pages of swap.
    swap: u64,
    begun: Instant,
    step: u64,
    /// The time of use: it grows with each operation.
    clock: u64,
    /// Its value at the start of each of the last steps.
    clocks: std::collections::VecDeque<u64>,
    seed: u64,
    random: Random,
    /// The kernel's choices, apart from the loads'.
    chance: Random,
    pub(crate) groups: Vec<Group>,
    pub(crate) tenants: Vec<SimTenant>,
    policy: Option<Policy>,
    /// The step at which the agent starts.
    pub(crate) agent_from: u64,
    /// The kernel's costs, pages: what came back, and what was swapped out; they fade.
    file_cost: f64,
    anon_cost: f64,
    /// File pages that came back; they fade.
    refaulted: f64,
}

impl Machine {
    /// `policy`: the agent's; without one the kernel is alone.
    pub(crate) fn new(megabytes: u64, policy: Option<Policy>, seed: u64) -> Self {
        Self {
            size: megabytes * MB,
            swap: 0,
            begun: Instant::now(),
            step: 0,
            clock: 0,
            clocks: std::collections::VecDeque::new(),
            seed,
            random: Random(seed),
            chance: Random(!seed),
            groups: Vec::new(),
            tenants: Vec::new(),
            policy,
            agent_from: 0,
            file_cost: 0.0,
            anon_cost: 0.0,
            refaulted: 0.0,
        }
    }

    pub(crate) fn swap_on(&mut self, megabytes: u64) {
        self.swap = megabytes * MB;
    }

    /// Adds a tenant that reads blocks of 64 KiB.
    pub(crate) fn add(
        &mut self,
        weight: u64,
        mut load: impl FnMut(f64, &mut Random) -> Option<u64> + 'static,
    ) {
        self.run_ops(weight, move |now, random| {
            load(now, random).map(|block| Op::Read { block, pages: 16 })
        });
    }

    /// Adds a tenant.
    pub(crate) fn run_ops(
        &mut self,
        weight: u64,
        load: impl FnMut(f64, &mut Random) -> Option<Op> + 'static,
    ) -> &mut SimTenant {
        let tenant = SimTenant::new(weight, None, Box::new(load), self.begun);
        self.tenants.push(tenant);
        self.tenants.last_mut().unwrap()
    }

    /// Adds a group; returns its number.
    pub(crate) fn group(&mut self, weight: u64) -> usize {
        let (low, min) = (0, 0);
        self.groups.push(Group { weight, low, min });
        self.groups.len() - 1
    }

    pub(crate) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.clocks.push_back(self.clock);
            if self.clocks.len() > usize::try_from(REFERENCED).unwrap() {
                self.clocks.pop_front();
            }
            self.file_cost *= 0.99;
            self.refaulted *= 0.99;
            self.anon_cost *= 0.99;
            self.tenants_work();
            self.step += 1;
            if self.policy.is_some() && self.step > self.agent_from {
                self.agent();
            }
        }
    }

    /// Each tenant's file pages, MB.
    pub(crate) fn cached(&self) -> Vec<u64> {
        self.tenants.iter().map(|t| t.file.pages() / MB).collect()
    }

    /// What each tenant has in swap, MB.
    pub(crate) fn swapped(&self) -> Vec<u64> {
        self.tenants
            .iter()
            .map(|t| t.swapped.len() as u64 / 16)
            .collect()
    }

    /// Each tenant's estimated working set, MB.
    pub(crate) fn working_sets(&self) -> Vec<u64> {
        let sets = self.tenants.iter().map(|t| t.reuse.working_set());
        sets.map(|set| set.bytes >> 20).collect()
    }

    /// File pages that nobody has mapped.
    pub(crate) fn unmapped(&self) -> u64 {
        self.tenants.iter().map(|t| t.file.pages()).sum()
    }

    /// File pages and slab.
    fn cache(&self) -> u64 {
        let held = |t: &SimTenant| t.file.pages() + t.mapped.pages() + t.slab.pages();
        self.tenants.iter().map(held).sum()
    }

    fn free(&self) -> u64 {
        let used = self.tenants.iter().map(SimTenant::usage).sum();
        self.size.saturating_sub(used)
    }

    fn swap_free(&self) -> u64 {
        let used: u64 = self
            .tenants
            .iter()
            .map(|t| t.swapped.len() as u64 * 16)
            .sum();
        self.swap.saturating_sub(used)
    }

    /// All tenants work for a step, in slices of a millisecond, so that they compete for the disk.
    fn tenants_work(&mut self) {
        let begin = self.step as f64 / 10.0;
        let mut left = vec![0.0; self.tenants.len()];
        let mut missing = self.tenants.len() as f64;
        for slice in 0..100 {
            let now = begin + f64::from(slice) / 1000.0;
            let mut missed = 0.0;
            for (i, left) in left.iter_mut().enumerate() {
                *left += 0.001;
                let mut any = false;
                while *left > 0.0 {
                    let Some(op) = (self.tenants[i].load)(now, &mut self.random) else {
                        *left = 0.0;
                        break;
                    };
                    if self.execute(i, op) {
                        *left -= READ * missing.max(1.0);
                        any = true;
                    } else {
                        *left -= CACHED;
                    }
                    self.kernel();
                }
                missed += f64::from(u8::from(any));
            }
            missing = 0.9 * missing + 0.1 * missed;
        }
    }

    /// Whether the operation has to wait for the disk.
    fn execute(&mut self, i: usize, op: Op) -> bool {
        self.clock += 1;
        let seed = self.seed.rotate_left(40);
        // What could have stayed, had the tenant's active list and its anonymous memory made room.
        let swap = self.swap_free() > 0;
        let tenant = &mut self.tenants[i];
        let anon = if swap { tenant.anon.pages() } else { 0 };
        let recent = tenant.file.active_pages() + anon;
        let before = (tenant.refaulted(), tenant.refault_recent);
        let missed = tenant.execute(op, self.clock, self.step, recent, |block| {
            mixed(block ^ seed)
        });
        self.refaulted += (tenant.refaulted() - before.0) as f64;
        self.file_cost += (tenant.refault_recent - before.1) as f64;
        if missed && matches!(op, Op::Touch(_)) {
            self.anon_cost += 16.0;
        }
        missed
    }

    fn agent(&mut self) {
        let Some(policy) = self.policy else { return };
        let now = self.begun + STEP * u32::try_from(self.step).unwrap();
        for tenant in &mut self.tenants {
            tenant.sample(now);
            if self.step.is_multiple_of(10) {
                tenant.record_reuse(self.size * PAGE_SIZE, now);
            }
        }
        let snapshot = self.snapshot(now);
        let entitlements = Entitlements::of(&snapshot, &policy);
        let anonymous = plan_anonymous(&snapshot, &entitlements);
        let swapped_out = anonymous.as_ref().map_or(0, |intent| intent.bytes);
        for intent in plan_reclaim(&snapshot, &entitlements, swapped_out) {
            if let Some(tenant) = self.tenant_of(intent.key) {
                reclaim(&mut self.tenants[tenant], intent.bytes / PAGE_SIZE);
            }
        }
        if let Some(intent) = anonymous
            && let Some(tenant) = self.tenant_of(intent.key)
        {
            // In the worst case the kernel does not look at what is in use.
            let mut left = intent.bytes / PAGE_SIZE;
            while left > 0
                && let Some(pages) = self.tenants[tenant].swap_out()
            {
                left = left.saturating_sub(pages);
            }
        }
        if self.step.is_multiple_of(10) {
            self.protect(&snapshot, &entitlements);
        }
    }

    fn protect(&mut self, snapshot: &Snapshot, entitlements: &Entitlements) {
        let groups = self.groups.iter().map(|group| group.low);
        let leaves = self.tenants.iter().map(|tenant| tenant.low);
        let of = |pages: u64| {
            let (now, least) = (pages * PAGE_SIZE, 0);
            Some(Low { now, least })
        };
        let lows: Vec<_> = groups.chain(leaves).map(of).collect();
        for intent in plan_protection(snapshot, entitlements, &lows) {
            let low = intent.low / PAGE_SIZE;
            match self.tenant_of(intent.key) {
                Some(tenant) => self.tenants[tenant].low = low,
                None => self.groups[index_of(intent.key)].low = low,
            }
        }
    }

    /// The tenant of a key; `None` for a group, whose keys come first.
    fn tenant_of(&self, key: Key) -> Option<usize> {
        index_of(key).checked_sub(self.groups.len())
    }

    fn snapshot(&self, now: Instant) -> Snapshot {
        let mut tree = Tree::new();
        let swap_free = self.swap_free() * PAGE_SIZE;
        let leaves: Vec<_> = (self.groups.len()..)
            .zip(&self.tenants)
            .map(|(id, t)| (t.group, t.tenant(id as u64, self.step, swap_free, now)))
            .collect();
        let mut nodes = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            let members = || leaves.iter().filter(|(of, _)| *of == Some(number));
            let other: u64 = members().map(|(_, t)| t.other).sum();
            let mut inner = leaves[0].1.clone();
            inner.key = Key::Cgroup(CgroupId(number as u64));
            inner.weight = Weight::try_from(group.weight).unwrap();
            inner.minimum = (group.min * PAGE_SIZE).saturating_sub(other);
            inner.cache = members().map(|(_, t)| t.cache).sum();
            (inner.own, inner.slab, inner.anon) = (0, 0, 0);
            (inner.other, inner.limit, inner.growing) = (other, u64::MAX, false);
            nodes.push(tree.push(None, inner));
        }
        for (group, tenant) in leaves {
            tree.push(group.map(|group| nodes[group]), tenant);
        }
        let refaulted = justitia_share::num::to_u64(self.refaulted) * PAGE_SIZE;
        let memory = Memory {
            total: self.size * PAGE_SIZE * 10 / 7,
            cache: self.cache() * PAGE_SIZE,
            free: self.free() * PAGE_SIZE,
            reclaim_in_flight: 0,
            low_watermark: self.size / LOW * PAGE_SIZE,
            high_watermark: self.size / HIGH * PAGE_SIZE,
            fall_rate: 0,
            refill_rate: 60_000_000,
            reaction: STEP,
            refaulted,
            unmapped: self.unmapped() * PAGE_SIZE,
            free_at_sample: self.free() * PAGE_SIZE,
            swappiness: if swap_free > 0 { SWAPPINESS } else { 0 },
        };
        Snapshot {
            memory,
            tenants: tree,
        }
    }
}

fn index_of(key: Key) -> usize {
    match key {
        Key::Cgroup(CgroupId(id)) => usize::try_from(id).unwrap(),
        Key::Unmanaged => unreachable!("the machine has no unmanaged memory"),
    }
}

/// `memory.reclaim` of file pages: slab shrinks by the same part as the file pages.
fn reclaim(tenant: &mut SimTenant, pages: u64) {
    let mut slab = tenant.slab.pages() * pages / tenant.file.pages().max(1);
    let mut left = pages;
    while left > 0
        && let Some(freed) = tenant.evict_file()
    {
        left = left.saturating_sub(freed);
    }
    while slab > 0 && tenant.evict_slab().is_some() {
        slab -= 1;
    }
}
