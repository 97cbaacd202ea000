//! One interval of one disk: divided by its scheduler's weights, corrected, or by limits.

use std::collections::HashMap;
use std::time::Instant;

use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::io::{DevId, IoStat};
use justitia_kernel::knob::Knob;
use justitia_share::credit::{Allowance, CreditLoop, Interval, Limits, Observed, Settings};
use justitia_share::num::to_f64;

use super::knobs::{Guarded, LetGo, Moved, far, limit, unlimited, yield_foreign};
use super::tree::{Divided, weights};
use crate::config::Config;
use crate::device::disk::{Disk, DiskIdentity};
use crate::device::disk_sampler::DiskSampler;
use crate::device::ours::ours_to_write;
use crate::device::plan::plan_limits;
use crate::device::tenant_io::TenantIo;
use crate::device::weights::{Change, Controller, Looked, Used, Weighted};
use crate::knobs::KnobStore;
use crate::monitor::Monitor;

/// From this part of the time on a disk is busy enough to look at who uses it.
pub(super) const BUSY: f64 = 0.7;

/// One disk.
#[derive(Debug)]
pub(super) struct DiskCredits {
    pub(super) disk: Disk,
    pub(super) meter: DiskSampler,
    pub(super) credits: CreditLoop,
    pub(super) standing: HashMap<CgroupId, Limits>,
    /// Whether io.cost is enabled on it.
    pub(super) io_cost: bool,
    /// What had been used of the disk by io.cost's model at the last look, microseconds of its time.
    pub(super) used: Option<u64>,
    /// BFQ or io.cost divides it: then weights are corrected, and nobody is limited.
    pub(super) weighted: Option<Weighted>,
}

/// What a turn goes by.
pub(super) struct Turn<'a> {
    pub(super) config: &'a Config,
    pub(super) monitor: &'a Monitor,
    /// Who did I/O, and how much.
    pub(super) seen: &'a [(CgroupId, TenantIo)],
    /// Whether knobs of ours are read again.
    pub(super) audit: bool,
}

impl Turn<'_> {
    fn cgroup(&self, id: CgroupId) -> Option<&Cgroup> {
        Some(&self.monitor.cgroups.get(id)?.cgroup)
    }
}

/// What came of it.
#[derive(Default)]
pub(super) struct Outcome {
    /// The part of the disk of everyone who contends for it.
    pub(super) parts: Vec<(CgroupId, f64)>,
    /// Whether a limit has moved [`far`].
    pub(super) moved_far: bool,
}

/// Why limits are given back.
pub(super) const GONE: &str = "the disk is gone";
const UNREADABLE: &str = "the disk's counters cannot be read";

impl DiskCredits {
    /// A disk of which nothing is known yet; `None` if it is gone already.
    pub(super) fn new(disk: &Disk) -> Option<Self> {
        let mut meter = DiskSampler::new(&disk.dir);
        // Two disks do not have one name at the same time: one that is there before and after is the one in between.
        if DiskIdentity::of(&disk.dir) != Some(disk.identity) || !meter.is_present() {
            return None;
        }
        tracing::info!(disk = disk.name, number = %disk.id, "divided while it is contended");
        Some(Self {
            disk: disk.clone(),
            meter,
            credits: CreditLoop::new(Settings::default()),
            standing: HashMap::new(),
            io_cost: false,
            used: None,
            weighted: None,
        })
    }

    pub(super) fn is(&self, disk: &Disk) -> bool {
        (self.disk.id, self.disk.identity) == (disk.id, disk.identity)
    }

    /// It is divided no more, since it is gone or for another reason; returns what was given back.
    pub(super) fn leave(&self, gone: bool, store: Option<&mut KnobStore>) -> Vec<Moved> {
        let why = if gone { GONE } else { UNREADABLE };
        tracing::info!(disk = self.disk.name, number = %self.disk.id, why, "no more divided");
        let Some(store) = store else {
            return Vec::new();
        };
        let moved = release(self.disk.id, store, why);
        if gone {
            for knob in knobs(self.disk.id) {
                store.forget_unwritable(knob);
            }
        }
        moved
    }

    /// What it did since the last look; `of_root` is the root's `io.stat`. With io.cost a disk is as busy as its model is used: what
    /// exceeds the model waits before it.
    pub(super) fn look(&mut self, now: Instant, of_root: &[(DevId, IoStat)]) -> Option<Interval> {
        let here = |(device, _): &&(DevId, IoStat)| *device == self.disk.id;
        let stat = of_root.iter().find(here).filter(|_| self.io_cost);
        let used = stat.map(|(_, stat)| stat.cost_usage);
        let before = std::mem::replace(&mut self.used, used);
        let mut interval = self.meter.sample(now)?;
        if let (Some(before), Some(used)) = (before, used) {
            let part = to_f64(used.saturating_sub(before)) / 1e6 / interval.seconds;
            interval.busy = interval.busy.max(part.min(1.0));
        }
        Some(interval)
    }

    /// Whether it is divided.
    pub(super) fn engaged(&self) -> bool {
        match &self.weighted {
            Some(weighted) => weighted.engaged(),
            None => self.credits.engaged(),
        }
    }

    /// Has weights corrected where BFQ or io.cost divides the disk; begins anew where that has changed. io.cost comes before the
    /// scheduler, so it counts where both divide.
    pub(super) fn follow_controller(&mut self, store: Option<&mut KnobStore>) -> Vec<Moved> {
        let bfq = || self.disk.scheduler().as_deref() == Some("bfq");
        let controller = match self.io_cost {
            true => Some(Controller::IoCost),
            false => bfq().then_some(Controller::Bfq),
        };
        if controller == self.weighted.as_ref().map(Weighted::controller) {
            return Vec::new();
        }
        let by = controller.map_or("limits".to_owned(), |c| {
            format!("the weights of {c}, corrected")
        });
        tracing::info!(disk = self.disk.name, by, "divided");
        let moved = store.map(|store| self.let_go(store, "the disk is divided in another way"));
        self.weighted = controller.map(|controller| Weighted::new(controller, self.disk.id));
        moved.unwrap_or_default()
    }

    /// The knob of weights on this disk; ours only where they are corrected.
    fn line(&self) -> Knob {
        let controller = self.weighted.as_ref().map(Weighted::controller);
        controller.unwrap_or(Controller::Bfq).knob(self.disk.id)
    }

    /// Gives everything back, and begins anew.
    pub(super) fn let_go(&mut self, store: &mut KnobStore, why: &str) -> Vec<Moved> {
        let (device, line) = (self.disk.id, self.line());
        let changes = match &mut self.weighted {
            Some(weighted) => weighted.let_go(store, why),
            None => Vec::new(),
        };
        let mut moved: Vec<Moved> = changes
            .into_iter()
            .map(|change| weight_moved(line, change))
            .collect();
        for (id, _) in self.standing.drain() {
            store.restore(id, Knob::IoMax(device));
            moved.push(Moved {
                id,
                knob: Knob::IoMax(device),
                to: None,
                why: why.to_owned(),
            });
        }
        self.credits = CreditLoop::new(Settings::default());
        moved
    }

    /// Takes in an interval, and moves what it moves. Without a store nothing is written.
    pub(super) fn divide(
        &mut self,
        interval: &Interval,
        turn: &Turn<'_>,
        mut store: Option<&mut KnobStore>,
        watchdog: &mut Guarded,
        moved: &mut Vec<Moved>,
    ) -> Result<Outcome, LetGo> {
        if turn.audit {
            moved.extend(self.follow_controller(store.as_deref_mut()));
        }
        // Of a disk that no tenant waits for, no tenant's use is needed.
        let waited_for = self.engaged() || interval.busy >= BUSY;
        let users = if waited_for { turn.seen } else { &[] };
        // A tree costs time; the law of weights forgets a tenant that is not in it.
        let here = if self.weighted.is_some() {
            turn.seen
        } else {
            users
        };
        let device = self.disk.id;
        let line = self.line();
        let is_ours = |id| {
            let store = store.as_deref();
            store.is_some_and(|store| store.applied(id, line).is_some())
        };
        let tenants = here.iter().map(|(id, _)| *id);
        let divided = weights(&turn.monitor.cgroups, device, is_ours, tenants);
        if self.weighted.is_some() {
            let parts = self.weigh(interval, &divided, users, turn, store, moved);
            return Ok(Outcome {
                parts,
                moved_far: false,
            });
        }
        let allowances = self.allow(interval, &divided, users, turn, store.as_deref_mut());
        let moved_far = match store {
            Some(store) => self.limit(&allowances, turn, store, watchdog, moved)?,
            None => false,
        };
        let parts = allowances.iter().map(|a| (CgroupId(a.id), a.part));
        Ok(Outcome {
            parts: parts.collect(),
            moved_far,
        })
    }

    /// The weights of a disk that is divided by weight; returns the parts of who contends.
    fn weigh(
        &mut self,
        interval: &Interval,
        (tree, nodes): &Divided,
        users: &[(CgroupId, TenantIo)],
        turn: &Turn<'_>,
        mut store: Option<&mut KnobStore>,
        moved: &mut Vec<Moved>,
    ) -> Vec<(CgroupId, f64)> {
        let (device, throughput, line) = (self.disk.id, self.meter.throughput(), self.line());
        let Some(weighted) = &mut self.weighted else {
            return Vec::new();
        };
        if turn.audit
            && let Some(store) = store.as_deref_mut()
        {
            weighted.audit(|id| turn.cgroup(id), store);
        }
        let looked = Looked {
            seconds: interval.seconds,
            busy: interval.busy,
            throughput,
        };
        let used = users.iter().filter_map(|(id, io)| {
            let flow = io.flow(device);
            Some(Used {
                node: *nodes.get(id)?,
                bytes: flow.bytes(),
                written: flow.wbytes,
                stalled: io.stalled,
                application: io.application,
                dirty: io.dirty,
            })
        });
        let used: Vec<Used> = used.collect();
        let corrected = weighted.step(tree, nodes, looked, &used);
        tracing::trace!(disk = self.disk.name, ?looked, ?used, ?corrected, "weights");
        if let Some(store) = store
            && self.meter.is_present()
        {
            let changes = weighted.apply(&corrected, |id| turn.cgroup(id), store);
            moved.extend(changes.into_iter().map(|one| weight_moved(line, one)));
        }
        let part = |(id, _): &(CgroupId, TenantIo)| {
            let node = nodes.get(id)?;
            let one = corrected.iter().find(|one| one.node == *node)?;
            Some((*id, one.part))
        };
        users.iter().filter_map(part).collect()
    }

    /// What everyone who contends for the disk may have of it, by the law of limits.
    fn allow(
        &mut self,
        interval: &Interval,
        (tree, nodes): &Divided,
        users: &[(CgroupId, TenantIo)],
        turn: &Turn<'_>,
        mut store: Option<&mut KnobStore>,
    ) -> Vec<Allowance> {
        let device = self.disk.id;
        let observed = users.iter().filter_map(|(id, io)| {
            let cgroup = turn.cgroup(*id)?;
            let limitable = store.as_deref_mut().is_some_and(|store| {
                ours_to_write(store, cgroup, Knob::IoMax(device), &unlimited(device))
            });
            Some(Observed {
                id: id.0,
                node: *nodes.get(id)?,
                flow: io.flow(device),
                stalled: io.stalled,
                application: Some(io.application),
                written: io.written,
                reached: io.device_write_rate(),
                dirty: io.dirty,
                writeback: io.writeback,
                limitable,
            })
        });
        let observed: Vec<Observed> = observed.collect();
        let allowances = self.credits.step(tree, *interval, &observed);
        trace(&self.disk, interval, &self.credits, &observed, &allowances);
        allowances
    }

    /// Moves the limits to where they are allowed; returns whether one has moved [`far`].
    fn limit(
        &mut self,
        allowances: &[Allowance],
        turn: &Turn<'_>,
        store: &mut KnobStore,
        watchdog: &mut Guarded,
        moved: &mut Vec<Moved>,
    ) -> Result<bool, LetGo> {
        // One that has gone since it was measured may have left its number to another.
        let guarded = allowances.is_empty() || watchdog.ready(&turn.config.state_dir);
        if !self.meter.is_present() || !guarded {
            return Ok(false);
        }
        if turn.audit {
            yield_foreign(self.disk.id, &mut self.standing, store, watchdog)?;
        }
        let intents = plan_limits(self.disk.id, allowances, &self.standing);
        let moved_far = intents.iter().any(|intent| far(intent, &self.standing));
        limit(
            &mut self.standing,
            intents,
            turn.monitor,
            store,
            watchdog,
            moved,
        )?;
        Ok(moved_far)
    }
}

fn weight_moved(knob: Knob, change: Change) -> Moved {
    Moved {
        id: change.id,
        knob,
        to: change.to,
        why: change.why,
    }
}

/// What may be ours on a disk.
const fn knobs(device: DevId) -> [Knob; 3] {
    [
        Knob::IoMax(device),
        Knob::IoWeightOn(device),
        Knob::IoBfqWeightOn(device),
    ]
}

/// Gives back every limit on a disk. The kernel has dropped those of one that is gone.
fn release(device: DevId, store: &mut KnobStore, why: &str) -> Vec<Moved> {
    let ours = knobs(device);
    let held = store.owned().filter(|(_, held, _, _)| ours.contains(held));
    let held: Vec<_> = held.map(|(id, knob, ..)| (id, knob)).collect();
    let mut moved = Vec::new();
    for (id, knob) in held {
        store.restore(id, knob);
        moved.push(Moved {
            id,
            knob,
            to: None,
            why: why.to_owned(),
        });
    }
    moved
}

fn trace(
    disk: &Disk,
    interval: &Interval,
    credits: &CreditLoop,
    observed: &[Observed],
    allowances: &[Allowance],
) {
    if !tracing::enabled!(tracing::Level::TRACE) {
        return;
    }
    tracing::trace!(disk = disk.name, busy = interval.busy, kept_up = interval.kept_up, delay = interval.delay, verdict = ?credits.verdict(), engaged = credits.engaged(), "disk");
    for tenant in observed {
        let allowance = allowances.iter().find(|a| a.id == tenant.id);
        tracing::trace!(
            tenant = tenant.id,
            mb = tenant.flow.bytes() / 1e6,
            ios = tenant.flow.rios + tenant.flow.wios,
            stalled = tenant.stalled,
            app = tenant.application.unwrap_or(0.0) / 1e6,
            dirty = tenant.dirty >> 20,
            writeback = tenant.writeback >> 10,
            ?allowance,
            "tenant"
        );
    }
}
