//! The eyes themselves.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags};
use rustix::time::ClockId;

use super::curves::{Curves, Reuse};
use super::load::{self, Loaded, Spec};
use super::on_demand::OnDemand;
use super::region::Region;
use super::rows::{
    BUSY, BY_TWIN, KIND_WORD, LOSSES, MISSED, NO_ROOM, ROW_WORDS, SHORT_CUT_COUNT, SHORT_CUT_WORDS,
    SLOT_WORDS, row,
};
use super::slots::Uses;
use super::{
    Contention, Counters, Latencies, Limits, Probe, ProbeError, ProbeStatus, Sample, SharedInode,
    programs,
};
use crate::capabilities::State;
use crate::cgroup::CgroupId;

/// How often the kernel is asked what it skipped: a system call per program.
const ASK_SKIPPED: Duration = Duration::from_secs(1);

/// How long a program runs at the most, from where it looks up a slot to where it counts.
const PROGRAM: Duration = Duration::from_millis(100);

/// The map of that name.
const SHORT_CUTS: &str = ".data.short_cuts";

/// The probes, attached as long as this lives.
#[derive(Debug)]
pub struct IoProbes {
    account: Loaded,
    rows: Region,
    slots: Region,
    losses: Region,
    short_cuts: Region,
    /// How many slots, and how many processors have a row in each.
    slot_count: usize,
    processors: usize,
    /// Slots of removed cgroups, told in the sample before: free from the next one on.
    leaving: Vec<usize>,
    uses: Uses,
    /// Slots that were taken from cgroups which are there.
    taken: Vec<Taken>,
    /// What cgroups had counted in slots that others have now.
    kept: HashMap<CgroupId, Counters>,
    skipped: (Option<Instant>, u64),
    /// Why there are none, if so.
    curves: Result<Curves, String>,
    on_demand: OnDemand,
}

/// A slot on its way from one cgroup to another.
#[derive(Debug)]
struct Taken {
    slot: usize,
    /// Whose its counts are; `None` when that was removed, and they have been told.
    cgroup: Option<CgroupId>,
    since: Instant,
    /// Whether no program can find it any more.
    hidden: bool,
}

impl IoProbes {
    /// Attaches every probe that this kernel has a place for.
    ///
    /// # Errors
    /// When not even the basic ones can be: no type information, no privilege.
    pub fn attach(limits: &Limits) -> Result<Self, ProbeError> {
        limits.check()?;
        let types = load::kernel_types()?;
        let processors = libbpf_rs::num_possible_cpus().map_err(|error| ProbeError::Refused {
            reason: format!("count processors: {error}"),
        })?;
        // Slot 0 is everybody's who has none.
        let slots = limits.max_cgroups + 1;
        let rows = u32::try_from(processors)
            .ok()
            .and_then(|processors| slots.checked_mul(processors))
            .ok_or_else(|| ProbeError::Refused {
                reason: format!("{slots} rows of counters for each of {processors} processors"),
            })?;
        let load = |sampling: bool| {
            Loaded::load(
                &Spec {
                    object: include_bytes!(concat!(env!("OUT_DIR"), "/account.bpf.o")),
                    programs: programs::ACCOUNT,
                    sizes: &[
                        ("rows", rows),
                        ("slots", slots),
                        ("slot_of", slots),
                        ("free_slots", slots),
                        ("curves", if sampling { limits.max_curves } else { 1 }),
                        ("curve_of", limits.max_curves),
                        ("aio_submitters", limits.max_inflight),
                        ("held_back", limits.max_inflight),
                    ],
                    config: &config(slots, rows / slots, sampling),
                },
                &types,
            )
        };
        // Whatever the kernel dislikes about sampling, everything else goes on without it.
        let (account, sampling) = match load(true) {
            Ok(account) if account.refused().is_none() => (account, Ok(())),
            Ok(account) => {
                let why = account.refused().unwrap_or_default().to_owned();
                (load(false)?, Err(why))
            }
            Err(error) => (load(false)?, Err(error.to_string())),
        };
        let slot_count = size(slots);
        let curves =
            sampling.and_then(|()| Curves::map(&account, limits).map_err(|e| e.to_string()));
        let mut eyes = Self {
            rows: Region::map("rows", &account.map("rows")?, size(rows) * ROW_WORDS)?,
            slots: Region::map("slots", &account.map("slots")?, slot_count * SLOT_WORDS)?,
            losses: Region::map("losses", &account.map("losses")?, LOSSES)?,
            short_cuts: Region::map(
                SHORT_CUTS,
                &account.map(SHORT_CUTS)?,
                SHORT_CUT_COUNT * SHORT_CUT_WORDS,
            )?,
            account,
            slot_count,
            processors,
            leaving: Vec::new(),
            uses: Uses::of(slot_count),
            taken: Vec::new(),
            kept: HashMap::new(),
            skipped: (None, 0),
            curves,
            on_demand: OnDemand::new(limits, &types)?,
        };
        // Before anything counts: attaching takes a while, and who comes meanwhile needs a slot.
        eyes.free(1..slot_count)?;
        eyes.account.attach();
        Ok(eyes)
    }

    /// Every probe, in the order of [`Probe::ALL`]: attached, or why not.
    #[must_use]
    pub fn status(&self) -> Vec<ProbeStatus> {
        let mut facts = self.account.facts.clone();
        if let Err(why) = &self.curves
            && let Some(reuse) = facts.iter_mut().find(|f| f.probe == Probe::Reuse)
        {
            (reuse.state, reuse.reason) = (State::No, why.clone());
        }
        let mut on_demand = self.on_demand.facts().to_vec();
        // They are not tried before they are wanted, but they are of the same kind.
        if facts.iter().any(|fact| fact.reason == load::DENIED) {
            for fact in on_demand.iter_mut().filter(|f| f.state == State::Yes) {
                fact.state = State::No;
                load::DENIED.clone_into(&mut fact.reason);
            }
        }
        facts.append(&mut on_demand);
        facts.sort_by_key(|fact| fact.probe);
        facts
    }

    /// Everything counted up to now. Costs no system call per tenant.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn sample(&mut self) -> Result<Sample, ProbeError> {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let mut sample = Sample {
            at: Duration::new(
                now.tv_sec.try_into().unwrap_or_default(),
                now.tv_nsec.try_into().unwrap_or_default(),
            ),
            overflow: self.counters(0),
            dropped_events: self.losses.get(MISSED) + self.skipped(),
            map_full: self.losses.get(NO_ROOM),
            map_busy: self.losses.get(BUSY),
            ..Sample::default()
        };
        // Nothing has been written to these since the sample before last.
        let mut unused = std::mem::take(&mut self.leaving);
        unused.extend(self.hand_over(Instant::now()));
        for &slot in &unused {
            self.clear(slot);
        }
        self.free(unused)?;
        sample.cgroups.clone_from(&self.kept);
        let mut under_way = vec![false; self.slot_count];
        for taken in &self.taken {
            under_way[taken.slot] = true;
            if let Some(cgroup) = taken.cgroup {
                *sample.cgroups.entry(cgroup).or_default() += self.counters(taken.slot);
            }
        }
        let mut counted = vec![None; self.slot_count];
        let mut free = 0;
        for slot in 1..self.slot_count {
            let cgroup = CgroupId(self.slots.get(slot * SLOT_WORDS));
            if cgroup.0 == 0 {
                free += 1;
            } else if self.slots.get(slot * SLOT_WORDS + 1) != 0 {
                let mut counters = self.forget_taken(cgroup);
                if under_way[slot] {
                    // Removed just as the slot was taken, which is free soon in any case.
                    self.slots.set(slot * SLOT_WORDS + 1, 0);
                } else {
                    self.leaving.push(slot);
                    counters += self.counters(slot);
                }
                sample.cgroups.remove(&cgroup);
                sample.removed.push((cgroup, counters));
            } else if !under_way[slot] {
                let counters = self.counters(slot);
                *sample.cgroups.entry(cgroup).or_default() += counters;
                counted[slot] = Some(counters);
            }
        }
        self.take_from_least(&counted, free)?;
        // A filesystem's module may be unloaded and another one loaded in its place.
        for processor in 0..self.processors.min(SHORT_CUT_COUNT) {
            self.short_cuts
                .set(processor * SHORT_CUT_WORDS + KIND_WORD, 0);
        }
        self.on_demand
            .forget(sample.removed.iter().map(|(cgroup, _)| *cgroup));
        Ok(sample)
    }

    /// One cgroup's counters up to now, for who cannot wait for the next sample; `None` before its first call,
    /// and after it was removed. Costs one system call.
    #[must_use]
    pub fn counters_of(&self, id: CgroupId) -> Option<Counters> {
        let slot_of = self.account.map("slot_of").ok()?;
        let found = slot_of.lookup(&id.0.to_ne_bytes(), MapFlags::ANY).ok()?;
        let slot = found.and_then(|slot| slot.try_into().map(u32::from_ne_bytes).ok());
        let slot = slot
            .map(size)
            .filter(|slot| (1..self.slot_count).contains(slot));
        let before = self.taken.iter().filter(|taken| taken.cgroup == Some(id));
        let slots = slot.into_iter().chain(before.map(|taken| taken.slot));
        slots
            .map(|slot| self.counters(slot))
            .chain(self.kept.get(&id).copied())
            .reduce(|mut sum, one| {
                sum += one;
                sum
            })
    }

    /// Forgets what was counted for cgroups that are not known any more, beyond those that have counters of their own.
    pub fn retain(&mut self, known: impl Fn(CgroupId) -> bool) {
        self.kept.retain(|id, _| known(*id));
    }

    /// Gives the room of cgroups that are known to be removed to others. The probe for
    /// [`Probe::CgroupRemoval`] does so by itself; this is for kernels without it.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn forget_removed(&mut self, removed: &[CgroupId]) -> Result<(), ProbeError> {
        // One that has no slot may have an entry there.
        self.on_demand.forget(removed.iter().copied());
        for cgroup in removed {
            self.forget_taken(*cgroup);
        }
        let slot_of = self.account.map("slot_of")?;
        for slot in 1..self.slot_count {
            let cgroup = self.slots.get(slot * SLOT_WORDS);
            let under_way = || self.taken.iter().any(|taken| taken.slot == slot);
            if cgroup == 0 || !removed.contains(&CgroupId(cgroup)) || under_way() {
                continue;
            }
            // Not there when the probe was faster: then the slot is already marked.
            if slot_of.delete(&cgroup.to_ne_bytes()).is_ok() {
                self.forget_address(slot);
                self.slots.set(slot * SLOT_WORDS + 1, 1);
            }
        }
        Ok(())
    }

    /// Where few slots are free, takes some from the cgroups that use theirs least: `counted` is what each slot of a
    /// cgroup that is there has counted. What they do from now on is counted in another slot, if there is one.
    fn take_from_least(
        &mut self,
        counted: &[Option<Counters>],
        free: usize,
    ) -> Result<(), ProbeError> {
        let now = Instant::now();
        self.uses.take(counted.iter().copied(), now);
        let least = self
            .uses
            .least(free + self.taken.len() + self.leaving.len(), now);
        if least.is_empty() {
            return Ok(());
        }
        let slot_of = self.account.map("slot_of")?;
        for slot in least {
            let cgroup = CgroupId(self.slots.get(slot * SLOT_WORDS));
            // Not there when it was removed meanwhile.
            if slot_of.delete(&cgroup.0.to_ne_bytes()).is_ok() {
                self.forget_address(slot);
                // Its entries in the probes on demand: they have as much room.
                self.on_demand.forget(std::iter::once(cgroup));
                self.taken.push(Taken {
                    slot,
                    cgroup: Some(cgroup),
                    since: now,
                    hidden: false,
                });
            }
        }
        Ok(())
    }

    /// Slots that were taken and that no program counts in any more; what stands in them is kept.
    fn hand_over(&mut self, now: Instant) -> Vec<usize> {
        let (over, mut under_way): (Vec<_>, Vec<_>) = std::mem::take(&mut self.taken)
            .into_iter()
            .partition(|taken| taken.hidden && now - taken.since >= PROGRAM);
        for taken in &mut under_way {
            // A program that had looked the slot up before may have left the address there.
            if !taken.hidden && now - taken.since >= PROGRAM {
                self.forget_address(taken.slot);
                (taken.since, taken.hidden) = (now, true);
            }
        }
        self.taken = under_way;
        for taken in &over {
            if let Some(cgroup) = taken.cgroup {
                let counters = self.counters(taken.slot);
                *self.kept.entry(cgroup).or_default() += counters;
            }
        }
        over.into_iter().map(|taken| taken.slot).collect()
    }

    /// What a cgroup that was removed had counted in slots that others have, or will have.
    fn forget_taken(&mut self, removed: CgroupId) -> Counters {
        let mut sum = self.kept.remove(&removed).unwrap_or_default();
        let of_removed = |taken: &Taken| taken.cgroup == Some(removed);
        for taken in self.taken.iter().filter(|taken| of_removed(taken)) {
            sum += self.counters(taken.slot);
        }
        for taken in self.taken.iter_mut().filter(|taken| of_removed(taken)) {
            taken.cgroup = None;
        }
        sum
    }

    /// Programs find a slot's row by the address of its cgroup: not any more.
    fn forget_address(&self, slot: usize) {
        for processor in 0..self.processors {
            self.rows
                .set((processor * self.slot_count + slot) * ROW_WORDS, 0);
        }
    }

    /// Samples what cgroups access through the page cache, and what those below them access that are not sampled by
    /// themselves: which curve it counts for, and as a power of two which part of the blocks is looked at (at most 31).
    /// `None` ends it. What a curve has counted stays in it.
    ///
    /// # Errors
    /// When accesses are not sampled here, and why; when a curve is beyond [`Limits::max_curves`]; when the kernel refuses a map
    /// that it gave before.
    pub fn sample_reuse(
        &mut self,
        changes: &[(CgroupId, Option<(usize, u32)>)],
    ) -> Result<(), ProbeError> {
        let curves = self.curves()?;
        let done = curves.choose(&self.account, changes);
        // Programs look again: any cgroup may be below one of these.
        for slot in 1..self.slot_count {
            self.forget_address(slot);
        }
        done
    }

    /// What a curve has counted since it was cleared.
    ///
    /// # Errors
    /// As [`sample_reuse`](Self::sample_reuse).
    pub fn reuse(&self, curve: usize) -> Result<Reuse<'_>, ProbeError> {
        self.curves()?.get(curve)
    }

    /// Forgets what a curve has counted.
    ///
    /// # Errors
    /// As [`sample_reuse`](Self::sample_reuse).
    pub fn clear_reuse(&mut self, curve: usize) -> Result<(), ProbeError> {
        self.curves()?.clear(curve)
    }

    /// How many curves there are; 0 where accesses are not sampled.
    #[must_use]
    pub fn curve_count(&self) -> usize {
        self.curves.as_ref().map_or(0, Curves::count)
    }

    fn curves(&self) -> Result<&Curves, ProbeError> {
        self.curves.as_ref().map_err(|why| ProbeError::Map {
            map: "curves",
            reason: why.clone(),
        })
    }

    /// Begins or ends timing calls. Begun anew, it counts from zero.
    ///
    /// # Errors
    /// When the kernel has no place for the probe, or refuses it.
    pub fn trace_latency(&mut self, on: bool) -> Result<(), ProbeError> {
        self.on_demand.switch(Probe::Latency, on)
    }

    /// How long calls took, per cgroup, since timing began, or since it last lost its slot to another; empty
    /// while it is off.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn latencies(&self) -> Result<HashMap<CgroupId, Latencies>, ProbeError> {
        self.on_demand.latencies()
    }

    /// Begins or ends watching which files several tenants use.
    ///
    /// # Errors
    /// When the kernel has no place for the probe, or refuses it.
    pub fn trace_shared_inodes(&mut self, on: bool) -> Result<(), ProbeError> {
        self.on_demand.switch(Probe::SharedInodes, on)
    }

    /// The `most` files with the most different bytes used by others than those who are charged for them,
    /// since watching began; empty while it is off.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn shared_inodes(&self, most: usize) -> Result<Vec<SharedInode>, ProbeError> {
        self.on_demand.shared_inodes(most)
    }

    /// Begins or ends counting contended locks.
    ///
    /// # Errors
    /// When the kernel has no place for the probe, or refuses it.
    pub fn trace_locks(&mut self, on: bool) -> Result<(), ProbeError> {
        self.on_demand.switch(Probe::LockContention, on)
    }

    /// Contended locks per cgroup, since the same moment as [`latencies`](Self::latencies); empty while watching is off.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn lock_contention(&self) -> Result<HashMap<CgroupId, Contention>, ProbeError> {
        self.on_demand.lock_contention()
    }

    /// What found no room in a probe on demand, each time it was on: only ever growing, 0 for every
    /// other probe. For [`Probe::Latency`] calls and for [`Probe::LockContention`] waits that were not
    /// counted because there is room for [`Limits::max_cgroups`] cgroups; for [`Probe::SharedInodes`] uses
    /// of files that gave way to later ones or were never remembered, because there is room for
    /// [`Limits::max_shared_files`].
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn dropped(&self, probe: Probe) -> Result<u64, ProbeError> {
        self.on_demand.lost(probe)
    }

    /// A slot's counters, over all processors.
    fn counters(&self, slot: usize) -> Counters {
        let mut sum = Counters::default();
        for processor in 0..self.processors {
            sum += row(&self.rows, processor * self.slot_count + slot);
        }
        sum
    }

    fn clear(&self, slot: usize) {
        for processor in 0..self.processors {
            let start = (processor * self.slot_count + slot) * ROW_WORDS;
            self.rows.clear(start..start + ROW_WORDS);
        }
        self.slots.clear(slot * SLOT_WORDS..(slot + 1) * SLOT_WORDS);
    }

    fn free(&self, slots: impl IntoIterator<Item = usize>) -> Result<(), ProbeError> {
        let queue = self.account.map("free_slots")?;
        for slot in slots {
            let value = u32::try_from(slot).unwrap_or_default().to_ne_bytes();
            queue
                .update(&[], &value, MapFlags::ANY)
                .map_err(|error| ProbeError::Map {
                    map: "free_slots",
                    reason: error.to_string(),
                })?;
        }
        Ok(())
    }

    fn skipped(&mut self) -> u64 {
        let (asked, count) = self.skipped;
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_SKIPPED) {
            let skipped = self.account.skipped();
            let now = skipped.saturating_sub(self.losses.get(BY_TWIN)).max(count);
            self.skipped = (Some(Instant::now()), now);
        }
        self.skipped.1
    }
}

/// The content of `struct config` in `bpf/tenants.h`. The secrets are the operating system's randomness, hashed.
fn config(slots: u32, processors: u32, sampling: bool) -> Vec<u8> {
    let secret = || RandomState::new().build_hasher().finish() | 1;
    let mut config = [slots.to_ne_bytes(), processors.to_ne_bytes()].concat();
    for word in [u64::from(sampling), secret(), secret(), secret()] {
        config.extend(word.to_ne_bytes());
    }
    config
}

/// `number` as a size; on no machine that runs eBPF is one narrower.
pub(super) fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
