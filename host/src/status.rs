//! The status of a running `justitia host run`, and how to ask for it.

use std::path::Path;
use std::time::{Duration, Instant};

use justitia_api::client::ask_within;
use justitia_api::units::bytes;
use justitia_guest_protocol::memory::Tenants;
use serde::{Deserialize, Serialize};

use crate::channel::{Agent, Wrong};
use crate::duplicates::{self, Duplicates};
use crate::law::{Decision, Order, Place, Why};
use crate::vm::WantedTenants;

/// The name of the socket in the directory of the journal.
pub const SOCKET: &str = "status.sock";
/// The name of the socket for the status with tenants: each client has the guests asked for theirs.
pub const TENANTS_SOCKET: &str = "tenants.sock";
/// The time limit for the daemon's answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for the cached blocks of VMs and their guests. VMs that are later are shown without.
pub(crate) const DUPLICATES_TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit for guests' tenants. VMs that are later are shown without.
const TENANTS_TIMEOUT: Duration = Duration::from_secs(2);

/// The host, and its VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Whether it changes nothing.
    pub observe: bool,
    /// The host's memory without hugepage pools, or the most that VMs may hold, if that is less: bytes, as all amounts here.
    pub total: u64,
    /// `MemAvailable`, or how much more VMs may hold, if that is less.
    pub available: u64,
    /// The memory that stays available.
    pub headroom: u64,
    /// The memory that is divided among the VMs.
    pub capacity: u64,
    /// The memory that the host lacks, with growth in the next seconds and without memory on its way back.
    pub shortage: u64,
    /// Whether the host would swap within seconds.
    pub urgent: bool,
    /// The VMs.
    pub vms: Vec<VmStatus>,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmStatus {
    /// Its name.
    pub name: String,
    /// Its QEMU process.
    pub pid: u32,
    /// Its weight.
    pub weight: u64,
    /// The memory that it keeps before the rest is divided.
    pub minimum: u64,
    /// The memory that its guest has without a balloon of ours.
    pub ram: u64,
    /// The memory of the host that it holds, swapped-out pages included.
    pub resident: u64,
    /// Its share by weight if all VMs wanted everything.
    pub share: u64,
    /// Its entitlement now.
    pub entitled: u64,
    /// The memory that counts as in use.
    pub in_use: u64,
    /// The memory that counts as its working set.
    pub working_set: u64,
    /// The memory that it needs, as a harmful step has shown.
    pub floor: u64,
    /// How long it is not asked, milliseconds.
    pub paused_ms: u64,
    /// Whether it gives memory when it is asked.
    pub heeds: bool,
    /// Whether its guest lacks memory.
    pub distress: bool,
    /// Whether its memory is in hugepages (not in `resident`), locked, or pinned for a device: it is asked for nothing.
    pub is_pinned: bool,
    /// The state of its agent.
    pub agent: Agent,
    /// Faulty input from its agent.
    pub wrong: Wrong,
    /// Available memory and cache worth having, as its agent says.
    pub reported: Option<(u64, u64)>,
    /// The memory that its balloon leaves to it, and the target of that.
    pub balloon: Option<(u64, u64)>,
    /// Whether the guest takes memory back from the balloon when it needs some.
    pub deflates_on_oom: bool,
    /// Why its monitor does not work.
    pub monitor_error: Option<String>,
    /// The memory that its agent was asked for.
    pub asked: u64,
    /// The memory that its agent gave.
    pub given: u64,
    /// The last decisions, the newest last.
    pub decisions: Vec<Told>,
    /// The tenants that share its guest's page cache, as its agent says; `None` if it says nothing, and from [`ask`].
    pub tenants: Option<Tenants>,
}

impl Status {
    /// With the guests' tenants, as far as they tell them within two seconds.
    pub(crate) fn with_tenants(mut self, wanted: &[WantedTenants]) -> Self {
        let until = Instant::now() + TENANTS_TIMEOUT;
        for of in wanted {
            let tenants = of.wait(until);
            if let Some(vm) = self.vms.iter_mut().find(|vm| vm.pid == of.pid) {
                vm.tenants = tenants;
            }
        }
        self
    }
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Seconds since it was made.
    pub age_s: u64,
    /// In words.
    pub what: String,
}

/// Asks the daemon with this directory for its status.
///
/// # Errors
/// If no daemon runs, or its answer is not understood.
pub fn ask(directory: &Path) -> std::io::Result<Status> {
    ask_within(&directory.join(SOCKET), TIMEOUT)
}

/// The same, with the tenants in the guests. The daemon asks the guests.
///
/// # Errors
/// As [`ask`].
pub fn ask_with_tenants(directory: &Path) -> std::io::Result<Status> {
    ask_within(&directory.join(TENANTS_SOCKET), TIMEOUT)
}

/// Asks the daemon with this directory for the blocks that guests and host cache. All look for them first.
///
/// # Errors
/// As [`ask`].
pub fn ask_duplicates(directory: &Path) -> std::io::Result<Duplicates> {
    ask_within(&directory.join(duplicates::SOCKET), 2 * DUPLICATES_TIMEOUT)
}

/// A decision, in words.
pub(crate) fn words(decision: &Decision, place: &Place) -> String {
    let what = match decision.order {
        Order::Reclaim(amount) => format!("give back {}", bytes(amount)),
        Order::Balloon(left) => format!("balloon: leave {}", bytes(left)),
    };
    let why = match decision.why {
        Why::Idle => {
            "the host lacks memory; it holds cache beyond its entitlement that is not worth having"
        }
        Why::Excess => "the host lacks memory; it holds more than its entitlement",
        Why::Unheeded => {
            "the host lacks memory; it holds more than its entitlement, and its guest gives nothing when it is asked"
        }
        Why::Distress => "its guest lacks memory: all is given back",
        Why::Spare => "it is entitled to more, or the host has memory to spare",
    };
    format!("{what} (entitled to {}): {why}", bytes(place.entitled))
}
