//! Keeps the kernel's sums of writers' dirty pages up to date, while they contend.
//!
//! The kernel throttles a writer by its sums of dirty pages. It adds these up every two seconds, or when a process reads a file
//! that shows them (6.12: `mem_cgroup_wb_stats`). In between it lets a writer through at the speed of memory, and then
//! throttles it for as long: a writer with 5 MB/s got 14 MB in half a second and nothing for three (docs/results-credits.md).
//! So this thread has them added up often.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use justitia_kernel::cgroup::{Cgroup, CgroupId, StatFlusher};
use justitia_kernel::release::KernelVersion;

use crate::monitor::CpuBudget;

/// The period of adding up each writer's sums: on the model 10 ms bring no more (docs/results/device.md, "Buffered writers on a
/// slow disk").
const EVERY: Duration = Duration::from_millis(30);
/// The limit for the cost, as a part of a processor: a kernel with many processors has much to add up, under a lock.
const COST: f64 = 0.05;

/// The writers whose sums are kept up to date, by a thread that starts with the first one.
#[derive(Debug)]
pub(super) struct Fresh {
    version: Option<KernelVersion>,
    of: HashSet<CgroupId>,
    thread: Option<Sender<Vec<StatFlusher>>>,
}

impl Fresh {
    /// For a kernel of this version.
    pub(super) fn new(version: Option<KernelVersion>) -> Self {
        Self {
            version,
            of: HashSet::new(),
            thread: None,
        }
    }

    /// Keeps up to date the sums of these cgroups and of no others. `find` finds a cgroup, if it still exists.
    pub(super) fn keep<'a>(
        &mut self,
        of: impl Iterator<Item = CgroupId>,
        find: impl Fn(CgroupId) -> Option<&'a Cgroup>,
    ) {
        let of: HashSet<CgroupId> = of.collect();
        if of == self.of {
            return;
        }
        // One that cannot be opened was removed, or the kernel throttles it without help.
        let counts: Vec<StatFlusher> = of
            .iter()
            .filter_map(|id| StatFlusher::open(find(*id)?, self.version).ok())
            .collect();
        self.of = of;
        if self.thread.is_none() && !counts.is_empty() {
            self.thread = start();
        }
        if let Some(thread) = &self.thread {
            // The thread lives as long as this.
            let _ = thread.send(counts);
        }
    }
}

fn start() -> Option<Sender<Vec<StatFlusher>>> {
    let (orders, taken) = channel();
    let thread = std::thread::Builder::new().name("fresh".to_owned());
    match thread.spawn(move || work(&taken)) {
        Ok(_) => Some(orders),
        Err(error) => {
            tracing::warn!(%error, "no thread to add up what writers have dirty: they get through in bursts");
            None
        }
    }
}

/// Works until the sender of orders is dropped.
fn work(orders: &Receiver<Vec<StatFlusher>>) {
    let mut of: Vec<StatFlusher> = Vec::new();
    let mut budget = CpuBudget::new(COST);
    loop {
        let next = if of.is_empty() {
            orders.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            orders.recv_timeout(EVERY)
        };
        match next {
            Ok(others) => of = others,
            Err(RecvTimeoutError::Timeout) => {
                if budget.allows() {
                    of.retain(|counts| counts.flush().is_ok());
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupFs;

    #[test]
    fn only_the_last_order_counts_and_who_is_gone_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        let cgroups: Vec<Cgroup> = ["a", "b"]
            .iter()
            .map(|name| {
                std::fs::create_dir(dir.path().join(name)).unwrap();
                std::fs::write(dir.path().join(name).join("cpu.stat"), "").unwrap();
                fs.root().child(name.as_ref()).unwrap()
            })
            .collect();
        let find = |id: CgroupId| cgroups.iter().find(|cgroup| cgroup.id() == id);
        let ids: Vec<CgroupId> = cgroups.iter().map(Cgroup::id).collect();
        let mut fresh = Fresh::new(Some(KernelVersion::new(6, 12)));
        fresh.keep(std::iter::empty(), find);
        assert!(fresh.thread.is_none(), "nobody writes");
        let (orders, taken) = channel();
        fresh.thread = Some(orders);
        fresh.keep(ids.iter().copied(), find);
        assert_eq!(taken.try_recv().unwrap().len(), 2);
        fresh.keep(ids.iter().rev().copied(), find);
        assert!(taken.try_recv().is_err(), "the same");
        fresh.keep(ids.iter().take(1).copied().chain([CgroupId(0)]), find);
        assert_eq!(taken.try_recv().unwrap().len(), 1, "one is not there");
        fresh.keep(std::iter::empty(), find);
        assert_eq!(taken.try_recv().unwrap().len(), 0);
        // The thread ends with its sender of orders.
        drop(fresh);
        work(&taken);
    }
}
