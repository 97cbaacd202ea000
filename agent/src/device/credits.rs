//! Applies device bandwidth: samples the disks, runs the law of weights, and writes the disks' lines of weights, `memory.high`
//! and `vm.dirty_background_ratio` through the knob store.
//!
//! Safety: a disk without contention has no value of ours. Every write goes through the knob store, so that it is restored at
//! the end and after a kill. A value from before our first write is its operator's, and stays.

mod disks;
mod divide;
mod fresh;
mod io_cost;
mod knobs;
mod late;
mod tree;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_api::escape;
use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::knob::Knob;
use justitia_kernel::release::{KernelVersion, release};

use self::disks::Following;
use self::divide::{DiskCredits, Turn};
use self::fresh::Fresh;
use self::knobs::{Guarded, LetGo};
use self::late::Late;
use super::active_set::ActiveSet;
use super::disk_sampler::{Interval, LOOKED_AT};
use super::ours::{ours_to_write, told};
use super::rooms::{Writer, plan_rooms};
use super::tenant_io::TenantIo;
use crate::config::Config;
use crate::knobs::KnobStore;
use crate::knobs::watchdog::Watchdog;
use crate::monitor::Monitor;
use crate::page_cache::CgroupTree;

pub use self::disks::{DiskSupport, disk_support};
pub use self::knobs::Moved;

#[cfg(test)]
mod tests;

/// The period of sampling disks,
const PERIOD: Duration = Duration::from_millis(250);
/// and the period while no tenant's weight has changed for [`CALM`] and no tenant writes behind dirty pages. A sample, and each
/// line that follows random changes, is the agent's largest cost. The law takes no longer intervals.
const SELDOM: Duration = Duration::from_secs(1);
const CALM: Duration = Duration::from_secs(3);
/// The period of reading our knobs again, changed or not: another writer may have written them.
const AUDIT: Duration = Duration::from_secs(1);
/// The least time between two changes of `memory.high`.
const ROOMS: Duration = Duration::from_millis(500);
/// If setting `memory.high` delays the agent for this long once, that knob is left alone.
const HELD_UP: Duration = Duration::from_secs(1);
/// A buffered writer counts as one for this long after it last contended.
const WRITER: Duration = Duration::from_secs(3);
/// Why values that depend on contention are restored.
const IDLE: &str = "nobody contends for a disk any more";
/// Why a dirty budget is restored.
const ALONE: &str = "it does not wait for the disk together with other buffered writers any more";
/// Why a dirty budget that was not restored is gone.
const LOST: &str = "another writer has set it, or it could not be set";

/// The division of all disks.
#[derive(Debug)]
pub struct Credits {
    root: Cgroup,
    disks: Vec<DiskCredits>,
    /// Finds the disks; `None` if none is divided.
    following: Option<Following>,
    users: ActiveSet,
    writers: HashMap<CgroupId, (Instant, f64)>,
    highs: HashMap<CgroupId, u64>,
    late: Late,
    fresh: Fresh,
    roomed: Option<Instant>,
    audited: Option<Instant>,
    turned: Option<Instant>,
    /// When a tenant's weight last changed, a disk appeared or was removed, or one that is not divided became busy.
    restless: Option<Instant>,
    limits: Vec<String>,
    /// Restores the values if the agent is stopped; started before the first `memory.high`.
    watchdog: Guarded,
    /// The reason of the value of each knob of ours.
    why: HashMap<(CgroupId, Knob), String>,
    /// Changes that are not logged yet.
    moved: Vec<Moved>,
    /// File pages that must still be reclaimed.
    surpluses: Vec<Surplus>,
}

/// File pages of a writer beyond its room, to be reclaimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surplus {
    /// The writer.
    pub id: CgroupId,
    /// Bytes in this step.
    pub bytes: u64,
    /// The reason.
    pub why: String,
}

impl Credits {
    /// Divides this machine's disks, if configured.
    #[must_use]
    pub fn open(config: &Config, cgroup_root: &Cgroup) -> Self {
        let release = release(Path::new("/proc")).unwrap_or_default();
        let mut credits = Self {
            root: cgroup_root.clone(),
            disks: Vec::new(),
            following: None,
            users: ActiveSet::default(),
            writers: HashMap::new(),
            highs: HashMap::new(),
            late: Late::new(cgroup_root.clone()),
            fresh: Fresh::new(KernelVersion::parse(&release)),
            roomed: None,
            audited: None,
            turned: None,
            restless: None,
            limits: Vec::new(),
            watchdog: Guarded::new(Watchdog::start),
            why: HashMap::new(),
            moved: Vec::new(),
            surpluses: Vec::new(),
        };
        if !config.io.enabled {
            return credits;
        }
        let io_cost = cgroup_root.full_path().join("io.cost.qos");
        if !io_cost.exists() {
            credits.limits.push(format!(
                "Device bandwidth: expected io.cost (CONFIG_BLK_CGROUP_IOCOST, and the real root of the hierarchy), found no {}: \
                 only disks that BFQ schedules are divided",
                io_cost.display()
            ));
        }
        credits.following = Some(Following::new(PathBuf::from("/sys"), io_cost));
        credits.follow_disks(None, Instant::now());
        credits
    }

    /// The limitations, and their reasons. The targets of `io.latency` are read now: nothing else reads them while disks are
    /// idle.
    pub fn limits(&self, cgroups: &CgroupTree) -> impl Iterator<Item = String> {
        let targets = cgroups.latency_targets();
        let of_disks = self.disks.iter();
        let of_disks = of_disks.filter(move |disk| targets.contains(&disk.disk.id));
        let of_disks = of_disks.map(DiskCredits::left_to_latency);
        let fixed = self.limits.iter().cloned();
        fixed.chain(self.late.limit()).chain(of_disks)
    }

    /// The operator has the agent take `vm.dirty_background_ratio`.
    ///
    /// # Errors
    /// Why the agent still does not write it.
    pub fn take_dirty_background(&mut self) -> Result<(), String> {
        self.late.take()
    }

    /// The reason of our value in a knob; `None` if the knob is not ours.
    #[must_use]
    pub fn why(&self, id: CgroupId, knob: Knob) -> Option<String> {
        self.why.get(&(id, knob)).cloned()
    }

    /// The changes since the last call.
    pub fn moved(&mut self) -> Vec<Moved> {
        let moved = std::mem::take(&mut self.moved);
        for one in &moved {
            match &one.to {
                Some(_) => self.why.insert((one.id, one.knob), one.why.clone()),
                None => self.why.remove(&(one.id, one.knob)),
            };
        }
        moved
    }

    /// The file pages to reclaim since the last call.
    pub fn surpluses(&mut self) -> Vec<Surplus> {
        std::mem::take(&mut self.surpluses)
    }

    /// The agent ends with unrestored knobs: the watchdog retries them afterwards.
    pub const fn leave_to_watchdog(&mut self) {
        self.watchdog.take_over();
    }

    /// Whether any disk is divided now.
    fn engaged(&self) -> bool {
        self.disks.iter().any(DiskCredits::engaged)
    }

    fn follow_disks(&mut self, store: Option<&mut KnobStore>, now: Instant) {
        let Some(following) = &mut self.following else {
            return;
        };
        let followed = following.follow(&mut self.disks, store, now);
        self.moved.extend(followed.moved);
        if followed.changed {
            // A number's counters are not those of another disk that has the number now.
            let disks = self.disks.iter().map(|disk| disk.disk.id);
            self.users.of_disks(disks.collect());
            self.audited = None;
            self.stir(now);
        }
    }

    /// How long the loop may wait for the next turn.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let turned = self.turned.filter(|_| !self.disks.is_empty())?;
        let period = self.period(now);
        Some(period.saturating_sub(now.saturating_duration_since(turned)))
    }

    /// The period of sampling.
    fn period(&self, now: Instant) -> Duration {
        let restless = self.restless.map(|at| now - at);
        period(self.engaged() && self.writers.is_empty(), restless)
    }

    /// A weight has changed: sample soon, and often for a while.
    pub const fn stir(&mut self, now: Instant) {
        self.restless = Some(now);
    }

    /// A cgroup was removed.
    pub fn gone(&mut self, id: CgroupId) {
        self.users.remove(id);
        self.writers.remove(&id);
        self.highs.remove(&id);
        self.why.retain(|(of, _), _| *of != id);
        for disk in &mut self.disks {
            if let Some(weighted) = &mut disk.weighted {
                weighted.gone(id);
            }
        }
    }

    /// One turn, if due. Without a knob store nothing is written.
    pub fn turn(
        &mut self,
        config: &Config,
        monitor: &Monitor,
        mut store: Option<&mut KnobStore>,
        now: Instant,
    ) {
        self.follow_disks(store.as_deref_mut(), now);
        let waited = self.turned.map(|at| now - at);
        let early = waited.is_some_and(|w| w + Duration::from_millis(10) < self.period(now));
        if self.following.is_none() || early {
            return;
        }
        self.turned = Some(now);
        let done = self.act(config, monitor, store.as_deref_mut(), now);
        let Some(store) = store else { return };
        if let Err(why) = done {
            self.let_go(store, why);
            self.watchdog.heartbeat(Instant::now());
        }
        let cgroup = |id| Some(&monitor.cgroups.get(id)?.cgroup);
        self.fresh.keep(self.writers.keys().copied(), cgroup);
    }

    /// Starts a watchdog if limits of ours are in force: without one none stays.
    fn keep_guarded(&mut self, config: &Config, store: &KnobStore) -> Result<(), LetGo> {
        let limits = |knob| {
            matches!(
                knob,
                Knob::MemoryHigh
                    | Knob::DirtyBackground
                    | Knob::IoCostQos(_)
                    | Knob::IoCostModel(_)
            )
        };
        let stands = !self.watchdog.watches() && store.owned().any(|(_, knob, ..)| limits(knob));
        if stands && !self.watchdog.ready(&config.state_dir) {
            return Err(LetGo::NoWatchdog);
        }
        Ok(())
    }

    /// The disks' intervals since the last turn.
    fn look(&mut self, now: Instant) -> Vec<Option<Interval>> {
        let of_root = match self.disks.iter().any(DiskCredits::has_io_cost) {
            true => self.root.io_stat().unwrap_or_default(),
            false => Vec::new(),
        };
        let disks = self.disks.iter_mut();
        let intervals: Vec<_> = disks.map(|disk| disk.look(now, &of_root)).collect();
        // Beginning contention is noticed as soon as if no other disk were divided steadily.
        let begins = |(disk, interval): (&DiskCredits, &Option<Interval>)| {
            !disk.engaged() && interval.is_some_and(|i| i.occupied() >= LOOKED_AT / 2.0)
        };
        if self.disks.iter().zip(&intervals).any(begins) {
            self.restless = Some(now);
        }
        intervals
    }

    /// The tenants with I/O since the last turn.
    fn see(
        &mut self,
        monitor: &Monitor,
        intervals: &[Option<Interval>],
        now: Instant,
    ) -> Vec<(CgroupId, TenantIo)> {
        let seen = self.users.sample(&monitor.cgroups, &monitor.app_io, now);
        let flow = |disk: &DiskCredits, io: &TenantIo| io.flow(disk.disk.id).bytes();
        let flows = |disk| -> f64 { seen.iter().map(|(_, io)| flow(disk, io)).sum() };
        let known = self.disks.iter().map(flows).sum();
        let moved = intervals.iter().flatten().map(|i| i.bytes).sum();
        self.users.note_throughput(moved, known);
        seen
    }

    /// Whether no disk is divided, none is busy enough to sample tenants, and no value has to be restored.
    fn is_idle(&self, intervals: &[Option<Interval>]) -> bool {
        let busy = |interval: &Interval| interval.occupied() >= LOOKED_AT;
        !self.engaged()
            && !intervals.iter().flatten().any(busy)
            && !self.disks.iter().any(DiskCredits::has_own_io_cost)
    }

    /// The steps of a turn, until it is delayed for too long.
    fn act(
        &mut self,
        config: &Config,
        monitor: &Monitor,
        mut store: Option<&mut KnobStore>,
        now: Instant,
    ) -> Result<(), LetGo> {
        // The turn may have begun long ago. One time for both: a stop between check and heartbeat shows in the next.
        let moment = Instant::now();
        self.watchdog.check_lease(moment)?;
        self.watchdog.heartbeat(moment);
        if let Some(store) = store.as_deref() {
            self.keep_guarded(config, store)?;
        }
        let intervals = self.look(now);
        if self.is_idle(&intervals) {
            // Disks without contention are not divided; the next samples begin anew.
            self.users.reset();
            if let Some(store) = store {
                self.release_rooms(store, now);
                self.write_back_as_usual(store, IDLE);
            }
            return Ok(());
        }
        let seen = self.see(monitor, &intervals, now);
        let audit = self.audited.is_none_or(|at| now - at >= AUDIT);
        if audit {
            self.audited = Some(now);
            self.follow_latency(&monitor.cgroups);
        }
        let turn = Turn {
            config,
            root: &self.root,
            monitor,
            seen: &seen,
            audit,
        };
        let mut parts: HashMap<CgroupId, f64> = HashMap::new();
        for (disk, interval) in self.disks.iter_mut().zip(&intervals) {
            let Some(interval) = interval else { continue };
            let store = store.as_deref_mut();
            let parts_here =
                disk.divide(interval, &turn, store, &mut self.watchdog, &mut self.moved)?;
            for (id, part) in parts_here {
                let io = seen.iter().find(|(seen, _)| *seen == id).map(|(_, io)| io);
                let did = self.writers.contains_key(&id);
                if io.is_some_and(|io| io.is_buffered_writer(did)) {
                    *parts.entry(id).or_default() += part;
                }
            }
        }
        // Dirty budgets are never in force without a watchdog.
        if store.is_some() && !parts.is_empty() {
            self.watchdog.ready(&config.state_dir);
        }
        for (id, part) in parts {
            self.writers.insert(id, (now, part));
        }
        if let Some(store) = store {
            self.release_rooms(store, now);
            self.write_back_late(store, audit)?;
            if audit {
                self.doubt_rooms(store);
            }
            self.give_room(monitor, store, &seen, now)?;
        }
        Ok(())
    }

    /// Finds the disks with an administrator's target in `io.latency`.
    fn follow_latency(&mut self, cgroups: &CgroupTree) {
        let targets = cgroups.latency_targets();
        for disk in &mut self.disks {
            disk.set_latency(targets.contains(&disk.disk.id));
        }
    }

    /// Starts background writeback late while writers are among the contending tenants. It lasts from the first writer until no
    /// tenant contends: otherwise the kernel would begin again and again.
    fn write_back_late(&mut self, store: &mut KnobStore, audit: bool) -> Result<(), LetGo> {
        if !self.watchdog.watches() {
            self.write_back_as_usual(store, "there is no watchdog");
            return Ok(());
        }
        if !self.engaged() {
            self.write_back_as_usual(store, IDLE);
            return Ok(());
        }
        self.watchdog.check_lease(Instant::now())?;
        if audit {
            self.moved.extend(self.late.audit(store));
        }
        if !self.writers.is_empty() {
            self.moved.extend(self.late.hold(store));
        }
        Ok(())
    }

    fn write_back_as_usual(&mut self, store: &mut KnobStore, why: &str) {
        self.moved.extend(self.late.release(store, why));
    }

    /// Removes the dirty budgets of tenants that do not contend any more, at once: without contention there is no value of
    /// ours.
    fn release_rooms(&mut self, store: &mut KnobStore, now: Instant) {
        let engaged = self.watchdog.watches() && self.engaged();
        self.writers
            .retain(|_, (at, _)| engaged && now - *at < WRITER);
        let writers: HashSet<CgroupId> = self
            .writers
            .keys()
            .filter(|id| store.may_write(**id, Knob::MemoryHigh))
            .copied()
            .collect();
        for id in over(self.highs.keys().copied().collect(), &writers) {
            self.take_room(store, id, ALONE);
        }
    }

    fn take_room(&mut self, store: &mut KnobStore, id: CgroupId, why: &str) {
        store.restore(id, Knob::MemoryHigh);
        self.note_high(id, None, why.to_owned());
    }

    /// Records the dirty budget in a `memory.high` now; `None` for none.
    fn note_high(&mut self, id: CgroupId, to: Option<u64>, why: String) {
        match to {
            Some(high) => self.highs.insert(id, high),
            None => self.highs.remove(&id),
        };
        self.moved.push(Moved {
            id,
            knob: Knob::MemoryHigh,
            to: to.map(|high| high.to_string()),
            why,
        });
    }

    /// A dirty budget that another program has reset, as systemd does, is planned anew: by now its writer may hold more than
    /// that value.
    fn doubt_rooms(&mut self, store: &KnobStore) {
        for (id, high) in &mut self.highs {
            if !store.stands(*id, Knob::MemoryHigh) {
                *high = 0;
            }
        }
    }

    /// Sets the dirty budgets of contending writers.
    fn give_room(
        &mut self,
        monitor: &Monitor,
        store: &mut KnobStore,
        seen: &[(CgroupId, TenantIo)],
        now: Instant,
    ) -> Result<(), LetGo> {
        if self.roomed.is_some_and(|at| now - at < ROOMS) {
            return Ok(());
        }
        self.roomed = Some(now);
        let writers: Vec<Writer> = seen
            .iter()
            .filter_map(|(id, io)| {
                let (_, part) = self.writers.get(id)?;
                let cgroup = &monitor.cgroups.get(*id)?.cgroup;
                ours_to_write(store, cgroup, Knob::MemoryHigh, "max").then_some(Writer {
                    id: *id,
                    part: *part,
                    file: io.file,
                    dirty: io.dirty,
                    other: io.other,
                    standing: self.highs.get(id).copied(),
                })
            })
            .collect();
        for intent in plan_rooms(&writers, monitor.memory.memory(now).free) {
            let Some(node) = monitor.cgroups.get(intent.id) else {
                continue;
            };
            tracing::debug!(tenant = escape::encode(node.cgroup.path().as_os_str()), high = intent.high, why = %intent, "memory.high");
            if intent.surplus > 0 {
                self.surpluses.push(Surplus {
                    id: intent.id,
                    bytes: intent.surplus,
                    why: intent.to_string(),
                });
            }
            self.watchdog.check_lease(Instant::now())?;
            let begun = Instant::now();
            let written = store.hold(&node.cgroup, Knob::MemoryHigh, &intent.high.to_string());
            if let Some(why) = held_up(begun.elapsed()) {
                let tenant = escape::encode(node.cgroup.path().as_os_str());
                tracing::warn!(tenant, why, "memory.high is left alone");
                store.give_up(intent.id, Knob::MemoryHigh, &why);
                self.note_high(intent.id, None, why);
                continue;
            }
            if told(&node.cgroup, Knob::MemoryHigh, written, store) {
                self.note_high(intent.id, Some(intent.high), intent.to_string());
            } else if self.highs.contains_key(&intent.id) {
                self.note_high(intent.id, None, LOST.to_owned());
            }
        }
        Ok(())
    }

    /// Restores everything: disks are not divided any more. [`Credits::moved`] returns the changes.
    pub fn switch_off(&mut self, store: &mut KnobStore) {
        self.let_go(store, LetGo::SwitchedOff);
    }

    /// Restores everything, as after a pause in which the watchdog may have done so.
    fn let_go(&mut self, store: &mut KnobStore, why: LetGo) {
        let why = why.to_string();
        self.write_back_as_usual(store, &why);
        for disk in &mut self.disks {
            self.moved.extend(disk.let_go(Some(store), &why));
        }
        for id in self.highs.keys().copied().collect::<Vec<_>>() {
            self.take_room(store, id, &why);
        }
        self.writers.clear();
        self.users.reset();
    }
}

/// The period of sampling. `direct`: disks are divided, without buffered writers. `restless`: the time since the last change.
/// Disks without contention are sampled often, so that contention is noticed soon.
fn period(direct: bool, restless: Option<Duration>) -> Duration {
    if direct && restless.is_some_and(|ago| ago >= CALM) {
        SELDOM
    } else {
        PERIOD
    }
}

/// Why a `memory.high` that took this long to set is left alone from now on, if it is.
fn held_up(took: Duration) -> Option<String> {
    (took >= HELD_UP).then(|| {
        format!(
            "setting it took {:.1} s: the kernel reclaims for whoever sets it while the tenant takes as fast, and \
             all others wait for that",
            took.as_secs_f64()
        )
    })
}

/// Those of `held` that are not contending writers, or the only one.
fn over(mut held: HashSet<CgroupId>, writers: &HashSet<CgroupId>) -> HashSet<CgroupId> {
    held.retain(|id| writers.len() < 2 || !writers.contains(id));
    held
}
