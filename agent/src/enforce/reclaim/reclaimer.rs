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

/// Number of threads: with two of them a tenant whose reclaim is slow does not delay the others.
const THREADS: usize = 2;

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
        let end = cgroup.reclaim(left.min(BATCH), swappiness)?;
        let after = cgroup.memory_stat()?;
        let stolen = after.pgsteal.saturating_sub(before.pgsteal) * PAGE_SIZE;
        result.freed = stolen.max(before.file_lru().saturating_sub(after.file_lru()));
        result.after = Some(after);
        if end != ReclaimOutcome::Complete || result.freed + BATCH < request.bytes - left {
            return Ok(());
        }
        left -= left.min(BATCH);
    }
    Ok(())
}
