//! The reclaim threads: a write of `memory.reclaim` is synchronous and may take long.
//!
//! A request is carried out in small batches. The amount that was reclaimed is read from the counters, not from the result
//! of the write: kernels have reported success and reclaimed nothing, and the reverse.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use justitia_kernel::PAGE_SIZE;
use justitia_kernel::cgroup::{Cgroup, ReclaimOutcome};

use super::own_pages;
use super::request::{BATCH, ReclaimRequest, ReclaimResult, ReclaimTarget};
use super::root_list;
use crate::monitor::MemoryCounters;

/// Number of threads: with two of them a tenant whose reclaim is slow does not delay the others.
const THREADS: usize = 2;
/// The `swappiness=` with which the kernel scans the lists of anonymous memory only.
const ONLY_ANONYMOUS: u8 = 200;

/// The threads that reclaim.
#[derive(Debug)]
pub struct Reclaimer {
    requests: Sender<ReclaimRequest>,
    results: Receiver<ReclaimResult>,
}

impl Reclaimer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub fn start() -> std::io::Result<Self> {
        let (requests, queue) = channel::<ReclaimRequest>();
        let (sender, results) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for n in 0..THREADS {
            let (queue, sender) = (queue.clone(), sender.clone());
            std::thread::Builder::new()
                .name(format!("reclaim-{n}"))
                .spawn(move || {
                    loop {
                        let request = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        let Ok(request) = request else { return };
                        if sender.send(reclaim(&request)).is_err() {
                            return;
                        }
                    }
                })?;
        }
        Ok(Self { requests, results })
    }

    /// Queues a request; its result comes later.
    pub fn send(&self, request: ReclaimRequest) {
        // The threads live as long as the reclaimer.
        let _ = self.requests.send(request);
    }

    /// The results that have come since the last call.
    pub fn results(&self) -> impl Iterator<Item = ReclaimResult> {
        self.results.try_iter()
    }
}

fn reclaim(request: &ReclaimRequest) -> ReclaimResult {
    let begun = Instant::now();
    let mut result = ReclaimResult::new(request.key, request.bytes);
    let done = match &request.target {
        ReclaimTarget::Cgroup(cgroup, swappiness) => {
            from_cgroup(cgroup, *swappiness, request, &mut result)
        }
        ReclaimTarget::OwnPages {
            cgroup,
            children,
            swappiness,
        } => own_pages::reclaim(cgroup, children, *swappiness, request, &mut result),
        ReclaimTarget::Anonymous(cgroup) => swap_out(cgroup, request, &mut result),
        ReclaimTarget::RootList => root_list::reclaim(request.bytes, &mut result),
    };
    if let Err(error) = done
        && !error.is_gone()
    {
        result.error = Some(error.to_string());
    }
    result.took = begun.elapsed();
    result
}

fn from_cgroup(
    cgroup: &Cgroup,
    swappiness: Option<u8>,
    request: &ReclaimRequest,
    result: &mut ReclaimResult,
) -> justitia_kernel::Result<()> {
    if request.is_thrashing(result)? {
        return Ok(());
    }
    let before = cgroup.memory_stat()?;
    let mut left = request.bytes;
    while left > 0 {
        let batch = request.above_minimums(left.min(BATCH))?;
        if batch == 0 {
            return Ok(());
        }
        let end = cgroup.reclaim(batch, swappiness)?;
        let counters = MemoryCounters::read(cgroup)?;
        let after = &counters.stat;
        let stolen = after.pgsteal.saturating_sub(before.pgsteal) * PAGE_SIZE;
        result.freed = stolen.max(before.file_lru().saturating_sub(after.file_lru()));
        result.after = Some(counters);
        if end != ReclaimOutcome::Complete || result.freed + BATCH < request.bytes - left {
            return Ok(());
        }
        left -= batch;
    }
    Ok(())
}

/// Swaps out anonymous memory. With the multi-gen LRU the kernel takes file pages where it finds no anonymous ones that
/// are old enough: those do not count, and the controller pauses.
fn swap_out(
    cgroup: &Cgroup,
    request: &ReclaimRequest,
    result: &mut ReclaimResult,
) -> justitia_kernel::Result<()> {
    if request.is_thrashing(result)? {
        return Ok(());
    }
    let before = MemoryCounters::read(cgroup)?;
    let bytes = request.above_minimums(request.bytes)?;
    if bytes == 0 {
        return Ok(());
    }
    cgroup.reclaim(bytes, Some(ONLY_ANONYMOUS))?;
    let after = MemoryCounters::read(cgroup)?;
    result.freed = after.swap.saturating_sub(before.swap);
    result.after = Some(after);
    Ok(())
}
