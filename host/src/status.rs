//! What is told of a running `justitia host run`, and how it is asked.

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
/// The name of the socket that tells the same with tenants: who connects has guests asked for them.
pub const TENANTS_SOCKET: &str = "tenants.sock";
/// A daemon that does not answer is given up.
const TIMEOUT: Duration = Duration::from_secs(5);
/// VMs of which it is not known by then what they and their guests cache are told without.
pub(crate) const DUPLICATES_TIMEOUT: Duration = Duration::from_secs(20);
/// VMs whose guests have not told their tenants by then are told without.
const TENANTS_TIMEOUT: Duration = Duration::from_secs(2);

/// The host, and its VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Nothing is changed.
    pub observe: bool,
    /// The host's memory, without what is set aside for hugepages, or what VMs may hold, if that is less: bytes, as all amounts here.
    pub total: u64,
    /// `MemAvailable`, or what VMs may hold beyond what they do, if that is less.
    pub available: u64,
    /// What is to stay available.
    pub headroom: u64,
    /// What is divided among the VMs.
    pub capacity: u64,
    /// What the host lacks, growth of the next seconds included, and without what is on its way.
    pub shortage: u64,
    /// The host would swap within seconds.
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
    /// What it may keep before anything is divided.
    pub minimum: u64,
    /// The memory that its guest has without a balloon of ours.
    pub ram: u64,
    /// What it holds of the host's memory, with what of it the host has swapped out.
    pub resident: u64,
    /// Its share by weight if all VMs wanted everything.
    pub share: u64,
    /// What it is entitled to now.
    pub entitled: u64,
    /// What counts as in use.
    pub in_use: u64,
    /// What counts as its working set.
    pub working_set: u64,
    /// What a step that hurt has shown that it needs.
    pub floor: u64,
    /// For how long it is not asked, milliseconds.
    pub paused_ms: u64,
    /// It gives when it is asked.
    pub heeds: bool,
    /// Its guest lacks memory.
    pub distress: bool,
    /// Its memory is in hugepages, which are not among what it holds here, or locked, or pinned for a device: it is asked for nothing.
    pub is_pinned: bool,
    /// Its agent.
    pub agent: Agent,
    /// What was wrong with what its agent said.
    pub wrong: Wrong,
    /// What its agent says is available and what cache is worth having.
    pub reported: Option<(u64, u64)>,
    /// What its balloon leaves to it, and is asked to leave.
    pub balloon: Option<(u64, u64)>,
    /// The guest takes back from the balloon what it needs.
    pub deflates_on_oom: bool,
    /// Why its monitor is of no use.
    pub monitor_error: Option<String>,
    /// What it was asked for, and what it gave.
    pub asked: u64,
    /// What its agent gave.
    pub given: u64,
    /// The last decisions, the newest last.
    pub decisions: Vec<Told>,
    /// What its guest divides its page cache among, as its agent says; `None` if it says nothing, and from [`ask`].
    pub tenants: Option<Tenants>,
}

impl Status {
    /// With what guests say of their tenants within two seconds.
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

/// Asks the daemon whose directory this is for its status.
///
/// # Errors
/// If none runs, or its answer is not understood.
pub fn ask(directory: &Path) -> std::io::Result<Status> {
    ask_within(&directory.join(SOCKET), TIMEOUT)
}

/// The same with what guests divide their page caches among: they are asked.
///
/// # Errors
/// As [`ask`].
pub fn ask_with_tenants(directory: &Path) -> std::io::Result<Status> {
    ask_within(&directory.join(TENANTS_SOCKET), TIMEOUT)
}

/// Asks the daemon whose directory this is what guests and host cache both: it looks first, and its guests do.
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
