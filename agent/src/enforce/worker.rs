//! Reclaim, off the loop: `memory.reclaim` is synchronous and may take long.
//!
//! Orders are carried out in small batches; how much came of them is read from the counters, not believed
//! (kernels have reported success and reclaimed nothing, and the reverse).

pub mod own;

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use justitia_kernel::PAGE_SIZE;
use justitia_kernel::cgroup::{Cgroup, ReclaimOutcome};
use justitia_kernel::lru_gen::{self, LruGen};
use justitia_kernel::memory::MemoryStat;
use justitia_kernel::proc::ProcFs;

use super::pressure::{OwnLimits, Pressure};
use crate::model::Key;
use justitia_api::ReclaimExemption;

/// One `memory.reclaim` write asks for at most this, bytes: a longer one holds up the cgroup's removal.
const BATCH: u64 = 8 << 20;

/// Threads: a second one, so that a tenant whose reclaim is slow does not hold up the others.
const THREADS: usize = 2;

/// How file pages are reclaimed from one tenant.
#[derive(Clone, Debug)]
pub enum Means {
    /// `memory.reclaim` of its cgroup, with this `swappiness=` (`None` where the kernel has no such argument).
    Cgroup(Cgroup, Option<u8>),
    /// `memory.reclaim` of a cgroup with this `swappiness=`, for what it has of its own: the kernel passes over `children`
    /// that are within their `memory.low`. At the root it does so with the classic LRU only.
    Own {
        /// The cgroup; the root for what is outside any tenant.
        cgroup: Cgroup,
        /// Its children that are tenants.
        children: Vec<Cgroup>,
        /// `swappiness=`.
        swappiness: Option<u8>,
    },
    /// The root cgroup's own list, by the multi-gen LRU's debugfs interface.
    RootList,
}

/// Reclaim this much from one tenant.
#[derive(Clone, Debug)]
pub struct Order {
    /// Who it is.
    pub key: Key,
    /// How.
    pub means: Means,
    /// How many bytes.
    pub bytes: u64,
    /// What says whether the tenant thrashes: then it is left alone. `None` where nothing does.
    pub pressure: Option<Pressure>,
}

/// What came of an order.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whose order.
    pub key: Key,
    /// How many bytes were asked for.
    pub asked: u64,
    /// How many were reclaimed, by the tenant's own counters.
    pub freed: u64,
    /// How many were reclaimed from its children, which were not meant, bytes.
    pub beside: u64,
    /// The tenant's counters afterwards, where it is a cgroup that still lives.
    pub after: Option<MemoryStat>,
    /// Why it was left alone, if it was.
    pub exempt: Option<ReclaimExemption>,
    /// What is known of its own limits.
    pub own_limits: OwnLimits,
    /// What the kernel refused, if it did.
    pub error: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// The threads that reclaim.
#[derive(Debug)]
pub struct Reclaimer {
    orders: Sender<Order>,
    outcomes: Receiver<Outcome>,
}

impl Reclaimer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system has no room for a thread.
    pub fn start() -> std::io::Result<Self> {
        let (orders, taken) = channel::<Order>();
        let (done, outcomes) = channel();
        let taken = Arc::new(Mutex::new(taken));
        for n in 0..THREADS {
            let (taken, done) = (taken.clone(), done.clone());
            std::thread::Builder::new()
                .name(format!("reclaim-{n}"))
                .spawn(move || {
                    loop {
                        let order = taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok(order) = order else { return };
                        if done.send(carry_out(&order)).is_err() {
                            return;
                        }
                    }
                })?;
        }
        Ok(Self { orders, outcomes })
    }

    /// Hands an order over; its outcome comes later.
    pub fn send(&self, order: Order) {
        // The threads live as long as we do.
        let _ = self.orders.send(order);
    }

    /// The outcomes that have come since the last call.
    pub fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.outcomes.try_iter()
    }
}

fn carry_out(order: &Order) -> Outcome {
    let begun = Instant::now();
    let mut outcome = Outcome {
        key: order.key,
        asked: order.bytes,
        freed: 0,
        beside: 0,
        after: None,
        exempt: None,
        own_limits: OwnLimits::default(),
        error: None,
        took: Duration::ZERO,
    };
    let done = match &order.means {
        Means::Cgroup(cgroup, swappiness) => from_cgroup(cgroup, *swappiness, order, &mut outcome),
        Means::Own {
            cgroup,
            children,
            swappiness,
        } => own::reclaim(cgroup, children, *swappiness, order, &mut outcome),
        Means::RootList => from_root_list(order.bytes, &mut outcome),
    };
    if let Err(error) = done
        && !error.is_gone()
    {
        outcome.error = Some(error.to_string());
    }
    outcome.took = begun.elapsed();
    outcome
}

fn from_cgroup(
    cgroup: &Cgroup,
    swappiness: Option<u8>,
    order: &Order,
    outcome: &mut Outcome,
) -> justitia_kernel::Result<()> {
    if thrashes(order, outcome) {
        return Ok(());
    }
    let before = cgroup.memory_stat()?;
    let mut left = order.bytes;
    while left > 0 {
        let end = cgroup.reclaim(left.min(BATCH), swappiness)?;
        let after = cgroup.memory_stat()?;
        let stolen = after.pgsteal.saturating_sub(before.pgsteal) * PAGE_SIZE;
        outcome.freed = stolen.max(before.file_lru().saturating_sub(after.file_lru()));
        outcome.after = Some(after);
        if end != ReclaimOutcome::Complete || outcome.freed + BATCH < order.bytes - left {
            return Ok(());
        }
        left -= left.min(BATCH);
    }
    Ok(())
}

/// The second promise: never while the tenant thrashes.
fn thrashes(order: &Order, outcome: &mut Outcome) -> bool {
    let Some(mut pressure) = order.pressure.clone() else {
        return false;
    };
    let full = pressure.thrashes(Instant::now());
    outcome.own_limits = pressure.own_limits;
    outcome.exempt = full.map(|full_avg10| ReclaimExemption::Thrashing { full_avg10 });
    full.is_some()
}

/// File pages on LRU lists, whole machine, bytes.
fn machine_file() -> justitia_kernel::Result<u64> {
    Ok(ProcFs::open(Path::new("/proc"))?.vmstat()?.file_lru())
}

fn from_root_list(bytes: u64, outcome: &mut Outcome) -> justitia_kernel::Result<()> {
    let path = Path::new(lru_gen::PATH);
    let proc = ProcFs::open(Path::new("/proc"))?;
    let before = proc.vmstat()?.file_lru();
    let lists = LruGen::read_root(path)?;
    let evictable: u64 = lists.iter().map(|l| l.evictable_file).sum();
    for list in lists.iter().filter(|l| l.evictable_file > 0) {
        let part = u128::from(bytes / PAGE_SIZE) * u128::from(list.evictable_file)
            / u128::from(evictable.max(1));
        list.evict(path, u64::try_from(part).unwrap_or(u64::MAX).max(1))?;
    }
    outcome.freed = before.saturating_sub(machine_file()?);
    if outcome.freed < bytes / 4 && evictable * PAGE_SIZE < bytes {
        for list in &lists {
            list.age(path)?;
        }
    }
    Ok(())
}
