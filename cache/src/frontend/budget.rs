//! Budgets of front ends for scarce resources of the process: address space, mappings, open files, log lines.

use crate::token_bucket::TokenBucket;
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Address space for guests' memory, in bytes: half of a process's with four levels of page tables.
const ALL_BYTES: u64 = 64 << 40;
/// The least limit of mapped memory of one front end, bytes, on any host.
const LEAST_BYTES: u64 = 1 << 40;
/// One VM gets at most this fraction of all, as of worker threads.
const VM_PART: u64 = 4;
/// The limit of mappings of one front end: four tables of 128 regions (one in use, one that replaces it, and old ones with
/// requests in flight), and 64 queues of eight.
const FRONT_END_MAPPINGS: u64 = 1024;
/// The limit of open files of one front end: 64 queues of six, two tables of 128 regions, and those of its connection.
const FRONT_END_FILES: u64 = 656;
/// The default limit of mappings of a process (`vm.max_map_count`), if the kernel does not tell it.
const MAX_MAP_COUNT: u64 = 65_530;

/// An amount of each bounded resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Bytes of mapped memory.
    pub(crate) bytes: u64,
    /// Mappings.
    pub(crate) mappings: u64,
    /// Open files.
    pub(crate) files: u64,
}

/// The front ends that share a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    All,
    Vm,
    FrontEnd,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all front ends",
            Self::Vm => "the front ends of one VM",
            Self::FrontEnd => "one front end",
        })
    }
}

/// A budget is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected at most {limit} {what} for {holder}, found {used} in use and {wanted} more asked for{}",
    advice(*holder)
)]
pub(crate) struct OverBudget {
    holder: Holder,
    what: &'static str,
    limit: u64,
    used: u64,
    wanted: u64,
}

const fn advice(holder: Holder) -> &'static str {
    match holder {
        Holder::FrontEnd => {
            " (memory that was removed counts until the requests in flight there are answered)"
        }
        Holder::Vm => " (a quarter of what all front ends together may have)",
        Holder::All => {
            " (half of what the process may have: `vm.max_map_count`, `LimitNOFILE=`, the address space)"
        }
    }
}

/// A budget of a front end, of a VM or of all; each is a part of the next.
#[derive(Debug)]
pub(crate) struct Budget {
    holder: Holder,
    limit: Amount,
    used: Mutex<Amount>,
    /// The budget that contains it.
    whole: Option<Arc<Budget>>,
}

impl Budget {
    fn new(holder: Holder, limit: Amount, whole: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self {
            holder,
            limit,
            used: Mutex::default(),
            whole,
        })
    }

    /// The budget of this process: half of its limits.
    fn all() -> Arc<Self> {
        static ALL: OnceLock<Arc<Budget>> = OnceLock::new();
        let all = || {
            let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
            let mappings = mappings.ok().and_then(|text| text.trim().parse().ok());
            // Without a limit, use the largest one.
            let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let limit = Amount {
                bytes: ALL_BYTES,
                mappings: mappings.unwrap_or(MAX_MAP_COUNT) / 2,
                files: files / 2,
            };
            Self::new(Holder::All, limit, None)
        };
        Arc::clone(ALL.get_or_init(all))
    }

    /// The budget of a VM.
    pub(crate) fn of_vm() -> Arc<Self> {
        Self::all().for_vm()
    }

    fn for_vm(self: &Arc<Self>) -> Arc<Self> {
        let limit = Amount {
            bytes: self.limit.bytes / VM_PART,
            mappings: self.limit.mappings / VM_PART,
            files: self.limit.files / VM_PART,
        };
        Self::new(Holder::Vm, limit, Some(Arc::clone(self)))
    }

    /// The budget of a new front end of the VM with this budget.
    pub(crate) fn for_front_end(self: &Arc<Self>) -> Arc<Self> {
        let limit = Amount {
            bytes: front_end_bytes(),
            mappings: FRONT_END_MAPPINGS,
            files: FRONT_END_FILES,
        };
        Self::new(Holder::FrontEnd, limit, Some(Arc::clone(self)))
    }

    /// Takes a share, which is returned when it is dropped.
    ///
    /// # Errors
    /// When this budget, or one that contains it, has less left.
    pub(crate) fn take(self: &Arc<Self>, amount: Amount) -> Result<BudgetShare, OverBudget> {
        {
            let mut used = self.used.lock();
            *used = Amount {
                bytes: self.sum("bytes of mapped memory", |a| a.bytes, &used, &amount)?,
                mappings: self.sum("mappings", |a| a.mappings, &used, &amount)?,
                files: self.sum("open files", |a| a.files, &used, &amount)?,
            };
        }
        let mut share = BudgetShare {
            budget: Arc::clone(self),
            amount,
            whole: None,
        };
        if let Some(whole) = &self.whole {
            share.whole = Some(Box::new(whole.take(amount)?));
        }
        Ok(share)
    }

    fn sum(
        &self,
        what: &'static str,
        of: impl Fn(&Amount) -> u64,
        used: &Amount,
        wanted: &Amount,
    ) -> Result<u64, OverBudget> {
        let (limit, used, wanted) = (of(&self.limit), of(used), of(wanted));
        let sum = used.checked_add(wanted).filter(|sum| *sum <= limit);
        sum.ok_or(OverBudget {
            holder: self.holder,
            what,
            limit,
            used,
            wanted,
        })
    }
}

/// A share of a budget.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<Budget>,
    amount: Amount,
    whole: Option<Box<BudgetShare>>,
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        let mut used = self.budget.used.lock();
        used.bytes -= self.amount.bytes;
        used.mappings -= self.amount.mappings;
        used.files -= self.amount.files;
    }
}

/// The limit of mapped memory of one front end, bytes: four times the host's. Hosts overcommit memory, and while a table of
/// regions is replaced there are two.
fn front_end_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    let pages = host.totalram.saturating_add(host.totalswap);
    let bytes = pages.saturating_mul(host.mem_unit.into());
    bytes.saturating_mul(4).max(LEAST_BYTES)
}

// Lines of the log that a tenant can cause.

/// The burst of lines: enough to see a guest's problem.
const BURST: u32 = 10;
/// The long-run interval of lines: 8,640 a day.
const EACH: Duration = Duration::from_secs(10);

/// Limits the log lines of one disk or one listener: after a burst, one line now and then, with the number of omitted ones.
pub(crate) struct LogLimit(Mutex<State>);

struct State {
    lines: TokenBucket,
    left_out: u64,
}

/// The number of lines omitted before a line, for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftOut(u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " (after {n} lines of this kind that were left out)"),
        }
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self(Mutex::new(State::new(Instant::now())))
    }
}

impl LogLimit {
    /// May a line be written now? If so, counts it.
    pub(crate) fn permit(&self) -> Option<LeftOut> {
        self.0.lock().permit(Instant::now())
    }
}

impl State {
    const fn new(now: Instant) -> Self {
        Self {
            lines: TokenBucket::new(BURST, EACH, now),
            left_out: 0,
        }
    }

    fn permit(&mut self, now: Instant) -> Option<LeftOut> {
        if self.lines.take(now) {
            return Some(LeftOut(std::mem::take(&mut self.left_out)));
        }
        self.left_out += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn amount(bytes: u64, mappings: u64, files: u64) -> Amount {
        Amount {
            bytes,
            mappings,
            files,
        }
    }

    #[test]
    fn a_budget_is_a_part_of_a_budget() {
        let all = Budget::new(Holder::All, amount(4 << 40, 8000, 8000), None);
        let (hostile, other) = (all.for_vm(), all.for_vm());
        let mut kept = Vec::new();
        let refused = loop {
            // A front end after the other takes all that it may.
            let front_end = hostile.for_front_end();
            match front_end.take(amount(1 << 38, 1000, 300)) {
                Ok(share) => kept.push(share),
                Err(e) => break e.to_string(),
            }
        };
        assert_eq!(kept.len(), 2);
        let expected = "expected at most 2000 mappings for the front ends of one VM, found 2000 in use and 1000 more asked for";
        assert!(refused.starts_with(expected), "{refused}");
        // A refused amount is taken from no budget.
        assert_eq!(*all.used.lock(), amount(1 << 39, 2000, 600));
        let front_end = other.for_front_end();
        let share = front_end.take(amount(1 << 38, 1000, 656)).unwrap();
        let refused = front_end.take(amount(0, 0, 1)).unwrap_err().to_string();
        let expected = "expected at most 656 open files for one front end, found 656 in use and 1 more asked for";
        assert!(refused.starts_with(expected), "{refused}");
        assert!(front_end.take(amount(u64::MAX, 0, 0)).is_err());
        drop((kept, share));
        assert_eq!(*all.used.lock(), Amount::default());
        assert_eq!(*other.used.lock(), Amount::default());
    }

    #[test]
    fn several_vms_leave_something_of_all() {
        let all = Budget::new(Holder::All, amount(4 << 40, 4096, 4096), None);
        let vms: Vec<_> = (0..5).map(|_| all.for_vm()).collect();
        let share = amount(1 << 40, 1, 1);
        let kept: Vec<_> = vms
            .iter()
            .map(|vm| vm.for_front_end().take(share))
            .collect();
        let Err(refused) = &kept[4] else {
            panic!("all have more than there is")
        };
        assert!(refused.to_string().contains("for all front ends"));
    }

    #[test]
    fn the_first_lines_and_then_one_now_and_then_with_a_count() {
        let start = Instant::now();
        let mut state = State::new(start);
        let mut lines = |seconds: u64, tries: u32| -> Vec<String> {
            let now = start + Duration::from_secs(seconds);
            let permits = (0..tries).filter_map(|_| state.permit(now));
            permits.map(|left_out| left_out.to_string()).collect()
        };
        assert_eq!(lines(0, 1000), [""; 10]);
        assert_eq!(lines(9, 1000), [""; 0]);
        let [line] = &lines(10, 5)[..] else {
            panic!("expected one line")
        };
        assert!(line.contains("after 1990 lines"), "{line}");
        assert_eq!(lines(3600, 11).len(), 10);
    }
}
