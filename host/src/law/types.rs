//! The input and output of the law.

use justitia_guest_protocol::memory::State;
use justitia_share::{PAGE_SIZE, Weight};

/// The largest step of a VM, bytes: a guest reclaims it in a fraction of a second, so that the next decision is not late.
pub const STEP_MOST: u64 = 64 << 20;
/// The largest step of a VM as a part of its memory: a wrong step leaves a small guest seven eighths.
pub(super) const STEP_PART: u64 = 8;
/// The smallest step, bytes: two of the blocks in which free pages are reported. Less is not worth a request.
pub const STEP_LEAST: u64 = 4 << 20;
/// A guest has at least this part of its memory available; with less it is in distress. The kernel's own watermarks are
/// at about 1/100, and a program that starts takes a few per cent at once.
const RESERVE_PART: u64 = 32;
/// How long a guest may take for a request, milliseconds.
pub const WITHIN_MS: u64 = 1000;

/// Identifies a VM while it runs.
pub type VmId = u64;

/// The host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// `MemAvailable`.
    pub available: u64,
    /// The memory that stays available.
    pub headroom: u64,
    /// How much VMs hold beyond the configured maximum for all, if there is one: then nothing is available.
    pub over: u64,
}

/// The state of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Its id.
    pub id: VmId,
    /// Its weight among the VMs.
    pub weight: Weight,
    /// The memory that it keeps before the rest is divided.
    pub minimum: u64,
    /// The memory that its guest has without a balloon.
    pub ram: u64,
    /// The most that it can hold: `ram`, or the limit of its cgroup, if that is less.
    pub most: u64,
    /// The memory of the host that it holds.
    pub resident: u64,
    /// Whether the host gets none of its memory back: it is in hugepages (not in `resident`), locked, or pinned for a device.
    pub is_pinned: bool,
    /// QEMU's own part of `resident`, if known: it is no memory of the guest.
    pub own: Option<u64>,
    /// Its balloon, if it has one and the monitor answers.
    pub balloon: Option<Balloon>,
    /// The last report of its agent, if it is recent and plausible. `None` for silence and lies.
    pub guest: Option<Report>,
}

/// A balloon, as QEMU shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balloon {
    /// The memory that it leaves to the guest.
    pub actual: u64,
    /// The target for `actual`.
    pub target: u64,
    /// Whether the guest takes memory back rather than kill a process (`deflate-on-oom`).
    pub deflates_on_oom: bool,
    /// `stat-available-memory` of the balloon's statistics, if they are recent.
    pub available: Option<u64>,
    /// `stat-free-memory`, of the same statistics.
    pub free: u64,
}

/// The part of a guest's report that the law uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// When it was made: each report is judged once.
    pub at: u64,
    /// `MemAvailable` of the guest.
    pub available: u64,
    /// Its `MemTotal` without its `MemFree`, and without its balloon.
    pub used: u64,
    /// Memory that cannot be given back without swapping.
    pub unreclaimable: u64,
    /// Cache that is worth having.
    pub worth: u64,
    /// Bytes of cache that were evicted and soon read again, since its boot.
    pub refaulted: u64,
    /// The time in which a task waited for memory (PSI, some), since its boot, microseconds.
    pub stalled_us: u64,
}

/// An order to a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Its agent gives this much cache back, within [`WITHIN_MS`].
    Reclaim(u64),
    /// The balloon leaves this much to the guest.
    Balloon(u64),
}

/// The reason for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The host lacks memory, and the VM holds cache beyond its entitlement that is not worth having.
    Idle,
    /// The host lacks memory, and the VM holds more than its entitlement.
    Excess,
    /// As `Excess`; its guest has no agent, or the agent did not heed.
    Unheeded,
    /// The guest lacks memory: its balloon is deflated.
    Distress,
    /// The VM is entitled to more, or the host has memory to spare: its balloon is deflated.
    Spare,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Which VM.
    pub vm: VmId,
    /// The order.
    pub order: Order,
    /// The reason.
    pub why: Why,
}

/// The entitlement of a VM, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which VM.
    pub vm: VmId,
    /// Its share by weight if all VMs wanted everything.
    pub share: u64,
    /// Its entitlement now.
    pub entitled: u64,
    /// Memory that counts as in use.
    pub in_use: u64,
    /// Memory that counts as its working set, memory in use included.
    pub working_set: u64,
    /// The memory that it needs, as a harmful step has shown; 0: none is known.
    pub floor: u64,
    /// How long it is asked for nothing after distress or a step that made its tasks wait, milliseconds.
    pub paused_ms: u64,
    /// Whether it gives memory when it is asked.
    pub heeds: bool,
    /// Whether its guest lacks memory.
    pub distress: bool,
}

/// The decisions, and their basis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// At most one for each VM.
    pub decisions: Vec<Decision>,
    /// In the order of the given VMs.
    pub places: Vec<Place>,
    /// The divided memory.
    pub capacity: u64,
    /// Whether the host is about to swap: half of its headroom would be gone within seconds. Then pauses and the smaller
    /// bound of steps do not apply.
    pub urgent: bool,
    /// The memory that the host lacks, with growth in the next seconds and without memory on its way.
    pub shortage: u64,
    /// A shortage up to this does not inflate the balloon of a guest that answers.
    pub bearable: u64,
}

impl Report {
    /// A guest's report. `balloon`: bytes in its balloon, which its kernel counts as used with `deflate-on-oom`
    /// (`fill_balloon` in drivers/virtio/virtio_balloon.c).
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
    /// The largest step.
    #[must_use]
    pub fn step(&self) -> u64 {
        (self.ram / STEP_PART).min(STEP_MOST)
    }

    /// The memory that a guest keeps available: with less it is in distress.
    pub(super) const fn reserve(&self) -> u64 {
        self.ram / RESERVE_PART
    }

    /// Whether the guest lacks memory. The balloon's statistics decide, if there are any: the guest's kernel makes them.
    pub(super) fn distress(&self) -> bool {
        let statistics = self.balloon.and_then(|balloon| balloon.available);
        let reported = self.guest.map(|guest| guest.available);
        statistics
            .or(reported)
            .is_some_and(|available| available < self.reserve())
    }
}
