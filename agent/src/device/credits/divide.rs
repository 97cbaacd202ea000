//! One interval of one disk that corrected weights divide.

use std::time::Instant;

use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::io::{DevId, IoStat};
use justitia_kernel::knob::Knob;
use justitia_share::NodeId;
use justitia_share::num::{to_f64, to_u64};

use super::io_cost::OwnIoCost;
use super::knobs::{Guarded, LetGo, Moved, give_back};
use super::tree::weights;
use crate::config::Config;
use crate::device::disk::{Disk, DiskIdentity};
use crate::device::disk_sampler::{DiskSampler, Interval, LOOKED_AT};
use crate::device::prices::Costs;
use crate::device::tenant_io::TenantIo;
use crate::device::weights::{Change, Controller, Corrected, Looked, Used, Weighted};
use crate::knobs::KnobStore;
use crate::monitor::Monitor;

/// One disk.
#[derive(Debug)]
pub(super) struct DiskCredits {
    pub(super) disk: Disk,
    pub(super) meter: DiskSampler,
    /// Whether another program has enabled io.cost on it.
    pub(super) io_cost: bool,
    /// Whether the administrator has set a target for it in `io.latency`: then it is not divided.
    pub(super) latency: bool,
    /// The use of the disk by io.cost's model at the last sample, microseconds of its time.
    pub(super) used: Option<u64>,
    /// The controller whose weights are corrected; `None` until it is known.
    pub(super) weighted: Option<Weighted>,
    /// Our io.cost, if the operator has not chosen a controller.
    pub(super) own: Option<OwnIoCost>,
    /// The costs of its bytes and requests.
    pub(super) costs: Costs,
}

/// The inputs of a turn.
pub(super) struct Turn<'a> {
    pub(super) config: &'a Config,
    /// The cgroup with the lines of io.cost.
    pub(super) root: &'a Cgroup,
    pub(super) monitor: &'a Monitor,
    /// The tenants with I/O, and their I/O.
    pub(super) seen: &'a [(CgroupId, TenantIo)],
    /// Whether our knobs are read again.
    pub(super) audit: bool,
}

impl Turn<'_> {
    fn cgroup(&self, id: CgroupId) -> Option<&Cgroup> {
        Some(&self.monitor.cgroups.get(id)?.cgroup)
    }
}

/// Why weights are restored.
pub(super) const GONE: &str = "the disk is gone";
const UNREADABLE: &str = "the disk's counters cannot be read";
/// Why a disk is not divided. A tenant that io.cost throttles misses its target, and then the kernel throttles its siblings.
const LATENCY: &str = "a cgroup has a target in io.latency, for which the kernel holds back others: the disk is left to that";

impl DiskCredits {
    /// A disk without samples; `None` if it was already removed.
    pub(super) fn new(disk: &Disk) -> Option<Self> {
        let mut meter = DiskSampler::new(&disk.dir);
        // Two disks never have the same name at once: if the disk is the same before and after, it was so in between.
        if DiskIdentity::of(&disk.dir) != Some(disk.identity) || !meter.is_present() {
            return None;
        }
        tracing::info!(disk = disk.name, number = %disk.id, "divided while it is contended");
        Some(Self {
            disk: disk.clone(),
            meter,
            io_cost: false,
            latency: false,
            used: None,
            weighted: None,
            own: None,
            costs: Costs::default(),
        })
    }

    pub(super) fn is(&self, disk: &Disk) -> bool {
        (self.disk.id, self.disk.identity) == (disk.id, disk.identity)
    }

    /// Stops dividing a disk because it was removed or for another reason; returns the restored knobs.
    pub(super) fn leave(&mut self, gone: bool, mut store: Option<&mut KnobStore>) -> Vec<Moved> {
        let why = if gone { GONE } else { UNREADABLE };
        tracing::info!(disk = self.disk.name, number = %self.disk.id, why, "no more divided");
        let moved = self.let_go(store.as_deref_mut(), why);
        if gone && let Some(store) = store {
            for knob in knobs(self.disk.id) {
                store.forget_unwritable(knob);
            }
        }
        moved
    }

    /// The interval since the last sample; `of_root` is the root's `io.stat`.
    pub(super) fn look(&mut self, now: Instant, of_root: &[(DevId, IoStat)]) -> Option<Interval> {
        let here = |(device, _): &&(DevId, IoStat)| *device == self.disk.id;
        let stat = of_root.iter().find(here).filter(|_| self.has_io_cost());
        let used = stat.map(|(_, stat)| stat.cost_usage);
        let before = std::mem::replace(&mut self.used, used);
        let mut interval = self.meter.sample(now)?;
        let since = |(before, used): (u64, u64)| to_f64(used.saturating_sub(before)) / 1e6;
        interval.used = before.zip(used).map(|both| since(both) / interval.seconds);
        Some(interval)
    }

    /// Sets whether the administrator has set a target for it in `io.latency`.
    pub(super) fn set_latency(&mut self, kept: bool) {
        if !std::mem::replace(&mut self.latency, kept) && kept {
            tracing::info!(disk = self.disk.name, number = %self.disk.id, "not divided: {LATENCY}");
        }
    }

    /// For `status`: it is not divided because of a target in `io.latency`.
    pub(super) fn left_to_latency(&self) -> String {
        let Disk { name, id, .. } = &self.disk;
        format!("Device bandwidth: {name} ({id}) is not divided: {LATENCY}")
    }

    /// Whether io.cost is enabled on it, by any program: then the root's `io.stat` has its use.
    pub(super) fn has_io_cost(&self) -> bool {
        self.io_cost || self.has_own_io_cost()
    }

    /// Whether this program has io.cost enabled on it now.
    pub(super) fn has_own_io_cost(&self) -> bool {
        self.own.as_ref().is_some_and(OwnIoCost::stands)
    }

    /// Whether it is divided.
    pub(super) fn engaged(&self) -> bool {
        self.weighted.as_ref().is_some_and(Weighted::engaged)
    }

    /// Chooses the controller whose weights are corrected, BFQ or io.cost; begins anew if it has changed. io.cost precedes the
    /// scheduler, so it counts if both divide. If neither does, we may enable io.cost. With a target in `io.latency` nothing is
    /// corrected.
    pub(super) fn follow_controller(
        &mut self,
        root: &Cgroup,
        store: Option<&mut KnobStore>,
    ) -> Vec<Moved> {
        if self.latency {
            let moved = self.let_go(store, LATENCY);
            (self.weighted, self.own) = (None, None);
            return moved;
        }
        let qos = Knob::IoCostQos(self.disk.id);
        let ours = |store: &&mut KnobStore| store.applied(root.id(), qos).is_some();
        let theirs = self.io_cost && !store.as_ref().is_some_and(ours);
        let bfq = !theirs && self.disk.scheduler().as_deref() == Some("bfq");
        let controller = match bfq {
            true => Controller::Bfq,
            false => Controller::IoCost,
        };
        let own = !theirs && !bfq;
        let stands = self.weighted.as_ref().map(Weighted::controller);
        if (stands, self.own.is_some()) == (Some(controller), own) {
            return Vec::new();
        }
        let enabled = if own {
            ", which is enabled while tenants contend"
        } else {
            ""
        };
        tracing::info!(disk = self.disk.name, by = %format!("{controller}{enabled}"), "divided by weight");
        let moved = self.let_go(store, "the disk is divided in another way");
        self.weighted = Some(Weighted::new(controller, self.disk.id));
        self.own = own.then(|| OwnIoCost::new(self.disk.id));
        moved
    }

    /// Restores our values on the disk, and begins anew. The kernel has dropped the lines of a removed disk.
    pub(super) fn let_go(&mut self, store: Option<&mut KnobStore>, why: &str) -> Vec<Moved> {
        let controller = self.weighted.as_ref().map(Weighted::controller);
        self.weighted = controller.map(|controller| Weighted::new(controller, self.disk.id));
        self.own = self.own.take().map(|_| OwnIoCost::new(self.disk.id));
        let Some(store) = store else {
            return Vec::new();
        };
        let ours = knobs(self.disk.id);
        let held = store.owned().filter(|(_, held, ..)| ours.contains(held));
        let held = held.map(|(id, knob, ..)| (id, knob)).collect();
        give_back(store, held, why)
    }

    /// Handles an interval, and writes the changed weights; returns the part of the disk of every contending tenant. Without a
    /// store nothing is written.
    pub(super) fn divide(
        &mut self,
        interval: &Interval,
        turn: &Turn<'_>,
        mut store: Option<&mut KnobStore>,
        watchdog: &mut Guarded,
        moved: &mut Vec<Moved>,
    ) -> Result<Vec<(CgroupId, f64)>, LetGo> {
        if turn.audit {
            moved.extend(self.follow_controller(turn.root, store.as_deref_mut()));
        }
        let device = self.disk.id;
        // If no tenant waits for a disk, the tenants' use is not needed; the law forgets tenants that are not in the tree.
        let waited_for = self.engaged() || interval.occupied() >= LOOKED_AT;
        let users = if waited_for { turn.seen } else { &[] };
        let Some(weighted) = &mut self.weighted else {
            return Ok(Vec::new());
        };
        let line = weighted.controller().knob(device);
        let is_ours = |id| {
            let store = store.as_deref();
            store.is_some_and(|store| store.is_ours(id, line))
        };
        let tenants = turn.seen.iter().map(|(id, _)| *id);
        let (tree, nodes) = weights(&turn.monitor.cgroups, device, is_ours, tenants);
        if turn.audit
            && let Some(store) = store.as_deref_mut()
        {
            weighted.audit(|id| turn.cgroup(id), store);
            if let Some(own) = &mut self.own {
                moved.extend(own.audit(turn.root, store));
            }
        }
        let looked = Looked {
            seconds: interval.seconds,
            busy: interval.occupied(),
            divided: self.own.as_ref().is_none_or(OwnIoCost::is_used),
        };
        let used = users
            .iter()
            .filter(|(_, io)| io.uses(device))
            .filter_map(|(id, io)| Some(used(*nodes.get(id)?, io, device, &self.costs)));
        let used: Vec<Used> = used.collect();
        let corrected = weighted.step(&tree, &nodes, looked, &used);
        self.costs
            .step(weighted.engaged(), interval, self.own.is_some());
        tracing::trace!(disk = self.disk.name, ?looked, ?used, ?corrected, "weights");
        if let Some(own) = &mut self.own {
            own.step(weighted.contention(), interval, &self.costs);
            tracing::trace!(disk = self.disk.name, ?own, "io.cost");
        }
        // A disk removed since its sample may have left its number to another.
        if let Some(store) = store
            && self.meter.is_present()
        {
            self.write(&corrected, turn, store, watchdog, moved)?;
        }
        let weighted = self.weighted.as_ref();
        let part = |(id, _): &(CgroupId, TenantIo)| Some((*id, weighted?.part(*id)?));
        Ok(users.iter().filter_map(part).collect())
    }

    /// Writes the values of the last interval.
    fn write(
        &mut self,
        corrected: &[Corrected],
        turn: &Turn<'_>,
        store: &mut KnobStore,
        watchdog: &mut Guarded,
        moved: &mut Vec<Moved>,
    ) -> Result<(), LetGo> {
        let Some(weighted) = &mut self.weighted else {
            return Ok(());
        };
        if let Some(own) = &mut self.own {
            // A limit, so never without a watchdog.
            if weighted.engaged() && !watchdog.ready(&turn.config.state_dir) {
                return Ok(());
            }
            watchdog.check_lease(Instant::now())?;
            moved.extend(own.apply(turn.root, store));
        }
        // There are no lines before io.cost has been enabled.
        let takes_lines = self.own.as_ref().is_none_or(OwnIoCost::stands);
        if !takes_lines {
            weighted.forget();
        }
        if takes_lines || corrected.is_empty() {
            let line = weighted.controller().knob(self.disk.id);
            let changes = weighted.apply(corrected, |id| turn.cgroup(id), store);
            moved.extend(changes.into_iter().map(|one| weight_moved(line, one)));
        }
        Ok(())
    }
}

/// The interval of a tenant at this node on a disk, in the equivalent bytes of large requests.
fn used(node: NodeId, io: &TenantIo, device: DevId, costs: &Costs) -> Used {
    let flow = io.flow(device);
    let times = costs.times(flow.bytes(), flow.requests);
    let (application, dirty) = io.part_of(device);
    Used {
        node,
        bytes: flow.bytes() * times,
        written: flow.written,
        stalled: io.stalled,
        application: application * times,
        dirty: to_u64(dirty),
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

/// The knobs that may be ours on a disk.
const fn knobs(device: DevId) -> [Knob; 4] {
    [
        Knob::IoWeightOn(device),
        Knob::IoBfqWeightOn(device),
        Knob::IoCostQos(device),
        Knob::IoCostModel(device),
    ]
}
