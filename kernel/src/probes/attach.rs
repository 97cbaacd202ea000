//! The probes: attaching them, and reading their counters.

use std::hash::BuildHasher as _;
use std::hash::Hasher as _;
use std::hash::RandomState;
use std::time::{Duration, Instant};

use libbpf_rs::Btf;
use rustix::time::ClockId;

use super::counters::{
    COUNTED_BY_FALLBACK, CPU_CACHE_WORDS, CPU_CACHES, Counters, DROP_EVENT, DROP_MAP_BUSY,
    DROP_MAP_FULL, DROPS, FILE_OPS_WORD, ProbeSample,
};
use super::curves::{Curves, ReuseHistogram, size};
use super::limits::{Limits, ProbeError};
use super::mapped::MappedArray;
use super::object::{ObjectSpec, ProbeObject, kernel_types};
use super::probe::{self, DENIED, Probe, ProbeStatus};
use super::shared_inodes::{SharedInode, SharedInodeProbe};
use super::slots::SlotTable;
use crate::capabilities::State;
use crate::cgroup::CgroupId;

/// How often the kernel is asked how many programs it skipped: a system call per program.
const SKIPPED_PERIOD: Duration = Duration::from_secs(1);

/// The map of that name.
const CPU_CACHES_MAP: &str = ".bss.cpu_caches";

/// The probes, attached until this is dropped.
#[derive(Debug)]
pub struct IoProbes {
    accounting: ProbeObject,
    slots: SlotTable,
    drops: MappedArray,
    cpu_caches: MappedArray,
    /// How many CPUs have a cache.
    cached_cpus: usize,
    /// When the kernel was last asked how often it skipped programs, and its answer.
    skipped: (Option<Instant>, u64),
    /// The curves, or why accesses are not sampled.
    curves: Result<Curves, String>,
    shared: SharedInodeProbe,
}

impl IoProbes {
    /// Loads and attaches every probe that this kernel supports.
    ///
    /// # Errors
    /// When a limit is out of range, or not even the basic probes can be loaded: no type information, no privilege.
    pub fn attach(limits: &Limits) -> Result<Self, ProbeError> {
        limits.check()?;
        let types = kernel_types()?;
        let processors = libbpf_rs::num_possible_cpus().map_err(|error| ProbeError::Refused {
            reason: format!("count processors: {error}"),
        })?;
        let (accounting, sampling) = load(limits, processors, &types)?;
        let curves =
            sampling.and_then(|()| Curves::map(&accounting, limits).map_err(|e| e.to_string()));
        let cache_words = CPU_CACHES * CPU_CACHE_WORDS;
        let caches = accounting.map(CPU_CACHES_MAP)?;
        let mut probes = Self {
            // Slot 0 is shared by all cgroups without a slot.
            slots: SlotTable::map(&accounting, size(limits.max_cgroups + 1), processors)?,
            drops: MappedArray::map("drops", &accounting.map("drops")?, DROPS)?,
            cpu_caches: MappedArray::map(CPU_CACHES_MAP, &caches, cache_words)?,
            cached_cpus: processors.min(CPU_CACHES),
            accounting,
            skipped: (None, 0),
            curves,
            shared: SharedInodeProbe::new(limits, &types)?,
        };
        // Before anything is counted: attaching takes a while, and cgroups need slots meanwhile.
        probes.slots.free_all(&probes.accounting)?;
        probes.accounting.attach();
        match none_attached(probes.accounting.status()) {
            Some(reason) => Err(ProbeError::Refused { reason }),
            None => Ok(probes),
        }
    }

    /// Every probe, in the order of [`Probe::ALL`]: attached, or why not.
    #[must_use]
    pub fn status(&self) -> Vec<ProbeStatus> {
        let mut all = self.accounting.status().to_vec();
        if let Err(why) = &self.curves
            && let Some(reuse) = all.iter_mut().find(|one| one.probe == Probe::Reuse)
        {
            (reuse.state, reuse.reason) = (State::No, why.clone());
        }
        let mut shared = self.shared.status().to_vec();
        // This probe is not tried before it is needed, but the kernel treats it as the others.
        if all.iter().any(|one| one.reason == DENIED) {
            for one in shared.iter_mut().filter(|one| one.state == State::Yes) {
                one.state = State::No;
                DENIED.clone_into(&mut one.reason);
            }
        }
        all.append(&mut shared);
        all.sort_unstable_by_key(|one| one.probe);
        all
    }

    /// Everything counted up to now. Costs no system call per cgroup.
    ///
    /// # Errors
    /// When the kernel refuses an operation on a map.
    pub fn sample(&mut self) -> Result<ProbeSample, ProbeError> {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let mut sample = ProbeSample {
            at: Duration::new(
                now.tv_sec.try_into().unwrap_or_default(),
                now.tv_nsec.try_into().unwrap_or_default(),
            ),
            overflow: self.slots.overflow(),
            dropped_events: self.drops.get(DROP_EVENT) + self.skipped(),
            map_full: self.drops.get(DROP_MAP_FULL),
            map_busy: self.drops.get(DROP_MAP_BUSY),
            ..ProbeSample::default()
        };
        self.slots.sample(&self.accounting, &mut sample)?;
        // A file system's module may be unloaded and another one loaded in its place.
        for cpu in 0..self.cached_cpus {
            self.cpu_caches
                .set(cpu * CPU_CACHE_WORDS + FILE_OPS_WORD, 0);
        }
        Ok(sample)
    }

    /// One cgroup's counters up to now, for callers that cannot wait for the next sample; `None` before its first call and
    /// after its removal. Costs one system call.
    #[must_use]
    pub fn counters_of(&self, id: CgroupId) -> Option<Counters> {
        self.slots.counters_of(&self.accounting, id)
    }

    /// Forgets cgroups that are not known any more: what was counted in slots that they no longer have.
    pub fn retain(&mut self, known: impl Fn(CgroupId) -> bool) {
        self.slots.retain(known);
    }

    /// Frees the slots of cgroups that are known to be removed. The probe [`Probe::CgroupRemoval`] does so by itself; this
    /// is for kernels without it.
    ///
    /// # Errors
    /// When the kernel refuses an operation on a map.
    pub fn forget_removed(&mut self, removed: &[CgroupId]) -> Result<(), ProbeError> {
        self.slots.mark_removed(&self.accounting, removed)
    }

    /// Samples what cgroups access through the page cache, and what their descendants access that are not sampled by
    /// themselves. Each change says to which curve a cgroup's accesses count, and the sampling rate as a power of two: of
    /// the blocks, one in `2^shift` is sampled, with a shift of at most 31. `None` ends it. What a curve has counted stays
    /// in it.
    ///
    /// # Errors
    /// When accesses are not sampled here, and why; when a curve is beyond [`Limits::max_curves`]; when the kernel refuses
    /// an operation on a map.
    pub fn sample_reuse(
        &mut self,
        changes: &[(CgroupId, Option<(usize, u32)>)],
    ) -> Result<(), ProbeError> {
        let done = self.curves()?.choose(&self.accounting, changes);
        // Any cgroup may be below one of these.
        self.slots.clear_cgroup_ptrs();
        done
    }

    /// A curve's counts since it was cleared.
    ///
    /// # Errors
    /// As [`sample_reuse`](Self::sample_reuse).
    pub fn reuse(&self, curve: usize) -> Result<ReuseHistogram<'_>, ProbeError> {
        self.curves()?.get(curve)
    }

    /// Clears a curve's counts.
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

    /// Begins or ends tracing which files are used by other cgroups than those charged for their pages.
    ///
    /// # Errors
    /// When the kernel does not support the probe.
    pub fn trace_shared_inodes(&mut self, on: bool) -> Result<(), ProbeError> {
        self.shared.switch(on)
    }

    /// The `most` files of which other cgroups than those charged have used the most different bytes since tracing began;
    /// empty while it is off.
    ///
    /// # Errors
    /// When the kernel refuses an operation on a map.
    pub fn shared_inodes(&self, most: usize) -> Result<Vec<SharedInode>, ProbeError> {
        self.shared.files(most)
    }

    /// How many uses of files were replaced by later ones or never stored, because there are more than
    /// [`Limits::max_shared_files`]; over all times that tracing was on.
    ///
    /// # Errors
    /// When the kernel refuses an operation on a map.
    pub fn dropped_uses(&self) -> Result<u64, ProbeError> {
        self.shared.dropped()
    }

    /// How often the kernel skipped programs whose fallback did not count either, as of at most a second ago.
    fn skipped(&mut self) -> u64 {
        let (asked, count) = self.skipped;
        if asked.is_none_or(|asked| asked.elapsed() >= SKIPPED_PERIOD) {
            let skipped = self.accounting.skipped();
            let counted = self.drops.get(COUNTED_BY_FALLBACK);
            let now = skipped.saturating_sub(counted).max(count);
            self.skipped = (Some(Instant::now()), now);
        }
        self.skipped.1
    }
}

/// Why nothing is counted, if every program was refused.
fn none_attached(status: &[ProbeStatus]) -> Option<String> {
    let attached = status.iter().any(|one| one.state == State::Yes);
    (!attached).then(|| {
        let first = status.first();
        first.map_or_else(String::new, |one| one.reason.clone())
    })
}

/// Loads the accounting programs, with sampling of accesses if the kernel takes it; otherwise without, and why.
fn load(
    limits: &Limits,
    processors: usize,
    types: &Btf<'_>,
) -> Result<(ProbeObject, Result<(), String>), ProbeError> {
    let slots = limits.max_cgroups + 1;
    let counters = u32::try_from(processors)
        .ok()
        .and_then(|processors| slots.checked_mul(processors))
        .ok_or_else(|| ProbeError::Refused {
            reason: format!("{slots} slots of counters for each of {processors} processors"),
        })?;
    let load = |sampling: bool| {
        ProbeObject::load(
            &ObjectSpec {
                object: include_bytes!(concat!(env!("OUT_DIR"), "/account.bpf.o")),
                programs: probe::ACCOUNT,
                map_sizes: &[
                    ("cgroup_counters", counters),
                    ("slots", slots),
                    ("slot_of_cgroup", slots),
                    ("free_slots", slots),
                    ("curves", if sampling { limits.max_curves } else { 1 }),
                    ("curve_of", limits.max_curves),
                    ("aio_submitters", limits.max_inflight),
                    ("throttled_bios", limits.max_inflight),
                ],
                config: &config(slots, counters / slots, sampling),
            },
            types,
        )
    };
    // Whatever the kernel refuses about sampling, everything else works without it.
    match load(true) {
        Ok(object) => match object.refused().map(str::to_owned) {
            None => Ok((object, Ok(()))),
            Some(why) => Ok((load(false)?, Err(why))),
        },
        Err(error) => Ok((load(false)?, Err(error.to_string()))),
    }
}

/// The content of `struct config` in `bpf/cgroups.h`. The secrets are hashes of the operating system's randomness.
fn config(slots: u32, processors: u32, sampling: bool) -> Vec<u8> {
    let secret = || RandomState::new().build_hasher().finish() | 1;
    let mut config = [slots.to_ne_bytes(), processors.to_ne_bytes()].concat();
    for word in [u64::from(sampling), secret(), secret(), secret()] {
        config.extend(word.to_ne_bytes());
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_of_which_none_is_attached_are_none() {
        let one = |probe, state, reason: &str| ProbeStatus {
            probe,
            state,
            reason: reason.to_owned(),
            details: Vec::new(),
        };
        let refused = |probe| one(probe, State::No, DENIED);
        let all = Probe::ALL.map(refused);
        assert_eq!(none_attached(&all).as_deref(), Some(DENIED));
        let mut some = all;
        some[1] = one(Probe::ALL[1], State::Yes, "kprobe");
        assert_eq!(none_attached(&some), None);
    }
}
