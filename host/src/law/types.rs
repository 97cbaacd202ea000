//! What the law sees, and what it says.

use justitia_guest_protocol::memory::State;
use justitia_share::{PAGE_SIZE, Weight};

/// The largest step of a VM, bytes: a guest reclaims it in a fraction of a second, so that the next decision is not late.
pub const STEP_MOST: u64 = 64 << 20;
/// The largest step of a VM as a part of its memory: one step in error leaves a small guest seven eighths.
pub(super) const STEP_PART: u64 = 8;
/// The smallest step, bytes: two of the blocks in which free pages are reported. Less is not worth a request.
pub const STEP_LEAST: u64 = 4 << 20;
/// A guest has at least this part of its memory available; with less it is in distress. The kernel's own watermarks are
/// at about 1/100, and a program that starts takes a few per cent at once.
const RESERVE_PART: u64 = 32;
/// How long a guest may take for a request, milliseconds.
pub const WITHIN_MS: u64 = 1000;

/// Names a VM for as long as it runs.
pub type VmId = u64;

/// The host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// `MemAvailable`.
    pub available: u64,
    /// What is to stay available.
    pub headroom: u64,
    /// What VMs hold beyond what they may hold together, if that is bounded: then nothing is available.
    pub over: u64,
}

/// What is known of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Its name here.
    pub id: VmId,
    /// Its weight among the VMs.
    pub weight: Weight,
    /// What it may keep before anything is divided.
    pub minimum: u64,
    /// The memory that its guest has without a balloon.
    pub ram: u64,
    /// The most that it can hold: that memory, or what its cgroup lets it have, if that is less.
    pub most: u64,
    /// What it holds of the host's memory.
    pub resident: u64,
    /// The host gets nothing of its memory back, whatever its guest gives: that is in hugepages, which are not among what it holds here, or
    /// locked, or pinned for a device.
    pub is_pinned: bool,
    /// What QEMU holds itself of what it holds, where that is known: it is no memory of the guest.
    pub own: Option<u64>,
    /// Its balloon, if it has one that can be asked.
    pub balloon: Option<Balloon>,
    /// The last report of its agent, if that is young and plausible. `None` for silence and lies.
    pub guest: Option<Report>,
}

/// A balloon, as QEMU shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balloon {
    /// The memory that it leaves to the guest.
    pub actual: u64,
    /// What it was asked to leave.
    pub target: u64,
    /// The guest takes back from it what it needs rather than kill a process (`deflate-on-oom`).
    pub deflates_on_oom: bool,
    /// `stat-available-memory` of the balloon's statistics, if they are young.
    pub available: Option<u64>,
    /// `stat-free-memory`, of the same statistics.
    pub free: u64,
}

/// A guest's report: what the law uses of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// When it was made: a report is looked at once.
    pub at: u64,
    /// `MemAvailable` of the guest.
    pub available: u64,
    /// Its `MemTotal` without its `MemFree`, and without its balloon.
    pub used: u64,
    /// What cannot be given back without swapping.
    pub unreclaimable: u64,
    /// Cache that is worth having.
    pub worth: u64,
    /// Bytes of cache that were evicted and soon read again, since its boot.
    pub refaulted: u64,
    /// The time in which a task waited for memory (PSI, some), since its boot, microseconds.
    pub stalled_us: u64,
}

/// What a VM is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Its agent is to give cache back, within [`WITHIN_MS`].
    Reclaim(u64),
    /// The balloon is to leave the guest so much.
    Balloon(u64),
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The host lacks memory, and the VM holds cache beyond its entitlement that is not worth having.
    Idle,
    /// The host lacks memory, and the VM holds more than its entitlement.
    Excess,
    /// As `Excess`; its guest has no agent, or did not heed it.
    Unheeded,
    /// The guest lacks memory: everything is given back.
    Distress,
    /// The host has memory again, or the VM is below its share: it is given back.
    Spare,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Which VM.
    pub vm: VmId,
    /// What it is to do.
    pub order: Order,
    /// Why.
    pub why: Why,
}

/// Where a VM stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which VM.
    pub vm: VmId,
    /// Its share if all VMs wanted everything.
    pub share: u64,
    /// What it may have now.
    pub entitled: u64,
    /// What counts as in use.
    pub in_use: u64,
    /// What counts as its working set, what is in use included.
    pub working_set: u64,
    /// What a step that hurt has shown that it needs; 0: nothing, yet or any more.
    pub floor: u64,
    /// For how long it is asked for nothing, because it was in distress or did not give.
    pub paused_ms: u64,
    /// It gives when it is asked.
    pub heeds: bool,
    /// Its guest lacks memory.
    pub distress: bool,
}

/// What was decided, and from what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Orders, at most one a VM.
    pub decisions: Vec<Decision>,
    /// In the order of the VMs that were given.
    pub places: Vec<Place>,
    /// What was divided.
    pub capacity: u64,
    /// The host is about to swap: within seconds half of its headroom is gone. Then pauses do not count, nor the smaller bound
    /// of steps.
    pub urgent: bool,
    /// What the host lacks, growth of the next seconds included, and without what is on its way.
    pub shortage: u64,
    /// So much of it is no reason to inflate the balloon of a guest that answers.
    pub bearable: u64,
}

impl Report {
    /// What a guest said at this moment, while so much of its memory was in its balloon: with `deflate-on-oom` its kernel counts that
    /// as used (`fill_balloon` in drivers/virtio/virtio_balloon.c).
    #[must_use]
    pub const fn new(at: u64, state: &State, balloon: u64) -> Self {
        let used = state.total.saturating_sub(state.free);
        Self {
            at,
            available: state.available,
            used: used.saturating_sub(balloon),
            unreclaimable: state.unreclaimable.saturating_sub(balloon),
            worth: state.worth,
            refaulted: state.refaults.saturating_mul(PAGE_SIZE),
            stalled_us: state.psi_some_us,
        }
    }
}

impl Vm {
    /// The most that one step may take of it.
    #[must_use]
    pub fn step(&self) -> u64 {
        (self.ram / STEP_PART).min(STEP_MOST)
    }

    /// What its guest keeps available, or is in distress.
    pub(super) const fn reserve(&self) -> u64 {
        self.ram / RESERVE_PART
    }

    /// Whether the guest lacks memory. Where the balloon has statistics they decide: the guest's kernel makes them.
    pub(super) fn distress(&self) -> bool {
        let statistics = self.balloon.and_then(|balloon| balloon.available);
        let reported = self.guest.map(|guest| guest.available);
        statistics
            .or(reported)
            .is_some_and(|available| available < self.reserve())
    }
}
