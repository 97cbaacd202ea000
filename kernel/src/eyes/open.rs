//! The eyes themselves.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags};
use rustix::time::ClockId;

use super::load::{self, Loaded, Spec};
use super::on_demand::OnDemand;
use super::region::Region;
use super::rows::{
    BUSY, BY_TWIN, KIND_WORD, LOSSES, MISSED, NO_ROOM, ROW_WORDS, SHORT_CUT_COUNT, SHORT_CUT_WORDS,
    SLOT_WORDS, row,
};
use super::{
    Contention, Counters, EyesError, Latencies, Limits, Probe, ProbeFact, Sample, SharedInode,
    programs,
};
use crate::cgroup::CgroupId;
use crate::support::State;

/// How often the kernel is asked what it skipped: a system call per program.
const ASK_SKIPPED: Duration = Duration::from_secs(1);

/// The map of that name.
const SHORT_CUTS: &str = ".data.short_cuts";

/// The probes, attached as long as this lives.
#[derive(Debug)]
pub struct Eyes {
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
    skipped: (Option<Instant>, u64),
    on_demand: OnDemand,
}

impl Eyes {
    /// Attaches every probe that this kernel has a place for.
    ///
    /// # Errors
    /// When not even the basic ones can be: no type information, no privilege.
    pub fn open(limits: &Limits) -> Result<Self, EyesError> {
        limits.check()?;
        let types = load::kernel_types()?;
        let processors = libbpf_rs::num_possible_cpus().map_err(|error| EyesError::Refused {
            reason: format!("count processors: {error}"),
        })?;
        // Slot 0 is everybody's who has none.
        let slots = limits.tenants + 1;
        let rows = u32::try_from(processors)
            .ok()
            .and_then(|processors| slots.checked_mul(processors))
            .ok_or_else(|| EyesError::Refused {
                reason: format!("{slots} rows of counters for each of {processors} processors"),
            })?;
        let in_entry = u32::from(load::uring_result_in_entry(&types));
        let config = [
            slots.to_ne_bytes(),
            (rows / slots).to_ne_bytes(),
            in_entry.to_ne_bytes(),
        ]
        .concat();
        let account = Loaded::load(
            &Spec {
                object: include_bytes!(concat!(env!("OUT_DIR"), "/account.bpf.o")),
                programs: programs::ACCOUNT,
                sizes: &[
                    ("rows", rows),
                    ("slots", slots),
                    ("slot_of", slots),
                    ("free_slots", slots),
                    ("aio_submitters", limits.in_flight),
                    ("held_back", limits.in_flight),
                ],
                config: &config,
            },
            &types,
        )?;
        let slot_count = size(slots);
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
            skipped: (None, 0),
            on_demand: OnDemand::new(limits, &types)?,
        };
        // Before anything counts: attaching takes a while, and who comes meanwhile needs a slot.
        eyes.free(1..slot_count)?;
        eyes.account.attach();
        Ok(eyes)
    }

    /// Every probe, in the order of [`Probe::ALL`]: attached, or why not.
    #[must_use]
    pub fn facts(&self) -> Vec<ProbeFact> {
        let mut facts = self.account.facts.clone();
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
    pub fn sample(&mut self) -> Result<Sample, EyesError> {
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let mut sample = Sample {
            at: Duration::new(
                now.tv_sec.try_into().unwrap_or_default(),
                now.tv_nsec.try_into().unwrap_or_default(),
            ),
            overflow: self.counters(0),
            missed: self.losses.get(MISSED) + self.skipped(),
            no_room: self.losses.get(NO_ROOM),
            busy: self.losses.get(BUSY),
            ..Sample::default()
        };
        // Nothing has been written to these since the sample before last.
        let leaving = std::mem::take(&mut self.leaving);
        for &slot in &leaving {
            self.clear(slot);
        }
        self.free(leaving)?;
        for slot in 1..self.slot_count {
            let cgroup = self.slots.get(slot * SLOT_WORDS);
            if cgroup == 0 {
                continue;
            }
            let counters = self.counters(slot);
            if self.slots.get(slot * SLOT_WORDS + 1) == 0 {
                sample.tenants.insert(CgroupId(cgroup), counters);
            } else {
                sample.removed.push((CgroupId(cgroup), counters));
                self.leaving.push(slot);
            }
        }
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
        let slot = slot_of
            .lookup(&id.0.to_ne_bytes(), MapFlags::ANY)
            .ok()??
            .try_into()
            .map(u32::from_ne_bytes)
            .ok()?;
        (0 < slot && size(slot) < self.slot_count).then(|| self.counters(size(slot)))
    }

    /// Gives the room of cgroups that are known to be removed to others. The probe for
    /// [`Probe::Removal`] does so by itself; this is for kernels without it.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn forget(&mut self, removed: &[CgroupId]) -> Result<(), EyesError> {
        // One that has no slot may have an entry there.
        self.on_demand.forget(removed.iter().copied());
        let slot_of = self.account.map("slot_of")?;
        for slot in 1..self.slot_count {
            let cgroup = self.slots.get(slot * SLOT_WORDS);
            if cgroup == 0 || !removed.contains(&CgroupId(cgroup)) {
                continue;
            }
            // Not there when the probe was faster: then the slot is already marked.
            if slot_of.delete(&cgroup.to_ne_bytes()).is_ok() {
                for processor in 0..self.processors {
                    self.rows
                        .set((processor * self.slot_count + slot) * ROW_WORDS, 0);
                }
                self.slots.set(slot * SLOT_WORDS + 1, 1);
            }
        }
        Ok(())
    }

    /// Begins or ends timing calls. Begun anew, it counts from zero.
    ///
    /// # Errors
    /// When the kernel has no place for the probe, or refuses it.
    pub fn time_calls(&mut self, on: bool) -> Result<(), EyesError> {
        self.on_demand.switch(Probe::Latency, on)
    }

    /// How long calls took, per cgroup, since timing began; empty while it is off.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn latencies(&self) -> Result<HashMap<CgroupId, Latencies>, EyesError> {
        self.on_demand.latencies()
    }

    /// Begins or ends watching which files several tenants use.
    ///
    /// # Errors
    /// When the kernel has no place for the probe, or refuses it.
    pub fn watch_shared_inodes(&mut self, on: bool) -> Result<(), EyesError> {
        self.on_demand.switch(Probe::SharedInodes, on)
    }

    /// The `most` files with the most bytes used by others than those who are charged for them,
    /// since watching began; empty while it is off.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn shared_inodes(&self, most: usize) -> Result<Vec<SharedInode>, EyesError> {
        self.on_demand.shared_inodes(most)
    }

    /// Begins or ends counting contended locks.
    ///
    /// # Errors
    /// When the kernel has no place for the probe, or refuses it.
    pub fn watch_locks(&mut self, on: bool) -> Result<(), EyesError> {
        self.on_demand.switch(Probe::LockContention, on)
    }

    /// Contended locks per cgroup since watching began; empty while it is off.
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn lock_contention(&self) -> Result<HashMap<CgroupId, Contention>, EyesError> {
        self.on_demand.lock_contention()
    }

    /// What found no room in a probe on demand, each time it was on: only ever growing, 0 for every
    /// other probe. For [`Probe::Latency`] calls and for [`Probe::LockContention`] waits that were not
    /// counted because there is room for [`Limits::tenants`] cgroups; for [`Probe::SharedInodes`] uses
    /// of files that gave way to later ones or were never remembered, because there is room for
    /// [`Limits::shared_inodes`].
    ///
    /// # Errors
    /// When the kernel refuses a map that it gave before.
    pub fn lost(&self, probe: Probe) -> Result<u64, EyesError> {
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

    fn free(&self, slots: impl IntoIterator<Item = usize>) -> Result<(), EyesError> {
        let queue = self.account.map("free_slots")?;
        for slot in slots {
            let value = u32::try_from(slot).unwrap_or_default().to_ne_bytes();
            queue
                .update(&[], &value, MapFlags::ANY)
                .map_err(|error| EyesError::Map {
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

/// `number` as a size; on no machine that runs eBPF is one narrower.
fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
