//! The reclaim threads: a write of `memory.reclaim` is synchronous and may take long.
//!
//! A request is carried out in small batches. The reclaimed amount is read from the counters, not from the result of the write:
//! kernels have reported success and reclaimed nothing, and the reverse.

use std::collections::HashMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::{Cgroup, ReclaimOutcome};
use justitia_kernel::lru_gen::LruGen;
use justitia_kernel::memory::MemoryStat;
use justitia_kernel::proc::ProcFs;
use justitia_kernel::{Error, PAGE_SIZE, Result, lru_gen};

use super::request::{BATCH, ReclaimRequest, ReclaimResult, ReclaimTarget};
use crate::model::Key;
use crate::page_cache::memory_sampler::MemoryCounters;

/// Number of threads: with two, a tenant whose reclaim is slow does not delay the others.
const THREADS: usize = 2;
/// After this time a request hangs in the kernel, for instance in a file system whose server does not answer. It reclaims 32
/// MiB at most.
pub(super) const HANG: Duration = Duration::from_secs(10);
/// A request that has waited for this long is not carried out: kswapd may have freed enough by then. A remaining need is
/// planned anew.
const STALE: Duration = Duration::from_secs(1);
/// The most threads, including hung ones.
const MAX_THREADS: usize = 16;
/// The `swappiness=` with which the kernel scans the lists of anonymous memory only.
const ONLY_ANONYMOUS: u8 = 200;

/// The threads that reclaim.
#[derive(Debug)]
pub struct Reclaimer {
    requests: Sender<(Instant, ReclaimRequest)>,
    results: Receiver<ReclaimResult>,
    shared: Arc<Shared>,
}

/// State that the threads share.
#[derive(Debug)]
struct Shared {
    /// Requests, and when they were sent.
    queue: Mutex<Receiver<(Instant, ReclaimRequest)>>,
    results: Sender<ReclaimResult>,
    threads: Mutex<Threads>,
}

#[derive(Debug, Default)]
struct Threads {
    /// The number of living threads.
    alive: usize,
    /// The number of started threads, which is the number of the next.
    started: usize,
    /// The requests being carried out, by the thread's number.
    working: HashMap<usize, Work>,
}

#[derive(Debug)]
struct Work {
    key: Key,
    since: Instant,
    /// Whether it hangs, and another thread has taken its place.
    replaced: bool,
}

impl Reclaimer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If a thread cannot be created.
    pub fn start() -> std::io::Result<Self> {
        let (requests, queue) = channel();
        let (sender, results) = channel();
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            results: sender,
            threads: Mutex::default(),
        });
        for _ in 0..THREADS {
            shared.spawn()?;
        }
        Ok(Self {
            requests,
            results,
            shared,
        })
    }

    /// Queues a request; its result comes later.
    pub fn send(&self, request: ReclaimRequest) {
        // The threads live as long as the reclaimer.
        let _ = self.requests.send((Instant::now(), request));
    }

    /// The results since the last call.
    pub fn results(&self) -> impl Iterator<Item = ReclaimResult> {
        self.results.try_iter()
    }

    /// Starts a thread for each that has begun to hang by `now`, up to the limit. Returns the tenants from which the hung ones
    /// reclaim.
    pub fn replace_hung(&self, now: Instant) -> Vec<Key> {
        let mut threads = self.shared.threads();
        let mut hung = Vec::new();
        let room = MAX_THREADS.saturating_sub(threads.alive);
        let hangs = |work: &&mut Work| !work.replaced && has_hung(work.since, now);
        for work in threads.working.values_mut().filter(hangs).take(room) {
            work.replaced = true;
            hung.push(work.key);
        }
        drop(threads);
        for _ in &hung {
            if let Err(error) = self.shared.spawn() {
                tracing::warn!(%error, "a reclaim thread could not be started in place of one that hangs");
            }
        }
        hung
    }
}

/// Whether a request that was sent or begun at `since` hangs.
pub(super) fn has_hung(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= HANG
}

impl Shared {
    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one more thread.
    fn spawn(self: &Arc<Self>) -> std::io::Result<()> {
        let number = {
            let mut threads = self.threads();
            threads.alive += 1;
            threads.started += 1;
            threads.started - 1
        };
        let shared = Arc::clone(self);
        let spawned = std::thread::Builder::new()
            .name(format!("reclaim-{number}"))
            .spawn(move || {
                while shared.work(number) {}
                shared.threads().alive -= 1;
            });
        if spawned.is_err() {
            self.threads().alive -= 1;
        }
        spawned.map(drop)
    }

    /// Carries out one request. Returns whether the thread continues.
    fn work(&self, number: usize) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let request = queue.recv();
        drop(queue);
        let Ok((sent, request)) = request else {
            return false;
        };
        if sent.elapsed() >= STALE {
            return self.results.send(ReclaimResult::of_stale(&request)).is_ok();
        }
        let work = Work {
            key: request.key,
            since: Instant::now(),
            replaced: false,
        };
        self.threads().working.insert(number, work);
        let result = reclaim(&request);
        let work = self.threads().working.remove(&number);
        let told = self.results.send(result);
        told.is_ok() && work.is_some_and(|work| !work.replaced)
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
        } => reclaim_own_pages(cgroup, children, *swappiness, request, &mut result),
        ReclaimTarget::Anonymous(cgroup) => swap_out(cgroup, request, &mut result),
        ReclaimTarget::RootList => reclaim_root_list(request.bytes, &mut result),
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

/// Swaps out anonymous memory. With the multi-gen LRU the kernel takes file pages if it finds no anonymous ones old enough:
/// those do not count, and the controller pauses.
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

// Reclaims a cgroup's own pages: those that no living child is charged for.
//
// `memory.reclaim` works on the whole subtree. The kernel skips children within their `memory.low` as long as it finds anything
// else (the classic LRU, and any LRU below the root). It reclaims from the other children by their size. So the request is
// limited to the own pages, and ends if the children lose more than intended.

/// A cgroup's own pages, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OwnPages {
    /// File pages that can be reclaimed.
    clean: u64,
    /// Reclaimed since the cgroup was created.
    reclaimed: u64,
    /// Reclaimed from the whole subtree.
    reclaimed_subtree: u64,
}

/// Reclaims up to `request.bytes` of the pages of `cgroup` that are not its `children`'s.
pub(super) fn reclaim_own_pages(
    cgroup: &Cgroup,
    children: &[Cgroup],
    swappiness: Option<u8>,
    request: &ReclaimRequest,
    result: &mut ReclaimResult,
) -> Result<()> {
    if request.is_thrashing(result)? {
        return Ok(());
    }
    let (_, first) = sample(cgroup, children)?;
    let mut left = request.bytes.min(first.clean);
    let mut before = first;
    while left > 0 {
        let batch = request.above_minimums(left.min(BATCH))?;
        if batch == 0 {
            return Ok(());
        }
        let end = cgroup.reclaim(batch, swappiness)?;
        let (counters, after) = sample(cgroup, children)?;
        result.after = (!cgroup.is_root()).then_some(counters);
        result.freed = after.reclaimed.saturating_sub(first.reclaimed);
        let subtree = after
            .reclaimed_subtree
            .saturating_sub(first.reclaimed_subtree);
        // The counter of a removed child is added to its parent's own.
        result.freed = result.freed.min(subtree);
        result.freed_from_children = subtree - result.freed;
        let step = after.reclaimed.saturating_sub(before.reclaimed);
        if end != ReclaimOutcome::Complete || step < batch / 2 {
            return Ok(());
        }
        before = after;
        left = (left - batch).min(after.clean);
    }
    Ok(())
}

/// Reads the cgroup before its children: pages that the children add meanwhile make the result too small, not too large.
fn sample(cgroup: &Cgroup, children: &[Cgroup]) -> Result<(MemoryCounters, OwnPages)> {
    let counters = MemoryCounters::read(cgroup)?;
    let living = living(children.iter().map(Cgroup::memory_stat))?;
    Ok((counters, own_pages(&counters.stat, living.into_iter())))
}

/// The counters of the children. A removed child, or one without the memory controller, has no pages. One that cannot be read
/// for lack of a file descriptor or of memory is an error: otherwise its pages would count as the parent's own.
fn living(read: impl Iterator<Item = Result<MemoryStat>>) -> Result<Vec<MemoryStat>> {
    let counted = |one: &Result<_>| one.as_ref().err().is_none_or(Error::is_exhausted);
    read.filter(counted).collect()
}

fn own_pages(stat: &MemoryStat, children: impl Iterator<Item = MemoryStat>) -> OwnPages {
    let clean = |stat: &MemoryStat| {
        stat.file_lru()
            .saturating_sub(stat.file_dirty + stat.file_writeback)
    };
    let mut own = OwnPages {
        clean: clean(stat),
        reclaimed: stat.pgsteal * PAGE_SIZE,
        reclaimed_subtree: stat.pgsteal * PAGE_SIZE,
    };
    for child in children {
        own.clean = own.clean.saturating_sub(clean(&child));
        own.reclaimed = own.reclaimed.saturating_sub(child.pgsteal * PAGE_SIZE);
    }
    own
}

// Reclaims from the root cgroup's own list, by the debugfs interface of the multi-gen LRU.

/// Evicts up to `bytes` of clean file pages. The freed amount is the decrease of the machine's file LRU lists.
pub(super) fn reclaim_root_list(
    bytes: u64,
    result: &mut ReclaimResult,
) -> justitia_kernel::Result<()> {
    let path = Path::new(lru_gen::PATH);
    let proc = ProcFs::open(Path::new("/proc"))?;
    let file = || proc.vmstat().map(|stat| stat.file_lru());
    let before = file()?;
    let lists = LruGen::read_root(path)?;
    let evictable: u64 = lists.iter().map(|l| l.evictable_file).sum();
    for list in lists.iter().filter(|l| l.evictable_file > 0) {
        let part = u128::from(bytes / PAGE_SIZE) * u128::from(list.evictable_file)
            / u128::from(evictable.max(1));
        list.evict(path, u64::try_from(part).unwrap_or(u64::MAX).max(1))?;
    }
    result.freed = before.saturating_sub(file()?);
    if result.freed < bytes / 4 && evictable * PAGE_SIZE < bytes {
        for list in &lists {
            list.age(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use justitia_kernel::cgroup::{CgroupFs, CgroupId};

    const STAT: &str = "anon 0\nfile 0\ninactive_file 0\nactive_file 0\n";

    /// As in a file system whose server is gone: a process that opens a pipe for writing waits for a reader.
    #[test]
    fn reclaim_that_hangs_stops_no_other_and_its_threads_end_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let fs = CgroupFs::open_fixture(dir.path()).unwrap();
        let request = |n: u64, name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("memory.stat"), STAT).unwrap();
            let file = path.join("memory.reclaim");
            match name.starts_with("hangs") {
                true => rustix::fs::mkfifoat(rustix::fs::CWD, &file, 0o600.into()).unwrap(),
                false => std::fs::write(&file, "").unwrap(),
            }
            let cgroup = Cgroup::open_at(&fs, Path::new(name)).unwrap();
            ReclaimRequest {
                key: Key::Cgroup(CgroupId(n)),
                target: ReclaimTarget::Cgroup(cgroup, Some(0)),
                bytes: 4096,
                minimums: Vec::new(),
                pressure: None,
            }
        };
        let reclaimer = Reclaimer::start().unwrap();
        let hanging = u64::try_from(MAX_THREADS).unwrap() - 1;
        // Two at a time: the number of threads.
        for n in 0..hanging {
            reclaimer.send(request(n, &format!("hangs{n}")));
        }
        reclaimer.send(request(hanging, "works"));
        let mut hung = Vec::new();
        let result = (0..1200).find_map(|_| {
            // As time passes: whatever has begun hangs.
            hung.extend(reclaimer.replace_hung(Instant::now() + HANG));
            let waited = Duration::from_millis(50);
            reclaimer.results.recv_timeout(waited).ok()
        });
        let result = result.expect("a result within a minute");
        assert_eq!(result.key, Key::Cgroup(CgroupId(hanging)));
        assert!(result.error.is_none(), "{:?}", result.error);
        assert!(!hung.is_empty() && hung.len() <= MAX_THREADS - THREADS);
        assert!(reclaimer.shared.threads().alive <= MAX_THREADS);
        // Their file systems answer again.
        let readers: Vec<_> = (0..hanging)
            .map(|n| {
                let file = dir.path().join(format!("hangs{n}/memory.reclaim"));
                std::thread::spawn(move || std::fs::read(file))
            })
            .collect();
        for _ in 0..hanging {
            reclaimer.results.recv().unwrap();
        }
        readers.into_iter().for_each(|reader| drop(reader.join()));
        while reclaimer.shared.threads().alive > THREADS {
            std::thread::yield_now();
        }
    }

    fn stat(file: u64, dirty: u64, pgsteal: u64) -> MemoryStat {
        MemoryStat {
            inactive_file: file * PAGE_SIZE,
            file_dirty: dirty * PAGE_SIZE,
            pgsteal,
            ..MemoryStat::default()
        }
    }

    #[test]
    fn a_child_that_cannot_be_read_now_keeps_its_pages() {
        use justitia_kernel::Operation;
        use rustix::io::Errno;
        let failed = |errno| Error::Io {
            operation: Operation::Open,
            path: "a/memory.stat".into(),
            errno,
        };
        let gone = Error::Gone {
            operation: Operation::Open,
            path: "b/memory.stat".into(),
        };
        let child = stat(30, 5, 20);
        let read = [Ok(child), Err(gone), Err(failed(Errno::NOENT))];
        assert_eq!(living(read.into_iter()).unwrap(), [child]);
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let read = [Ok(child), Err(failed(errno))];
            assert!(living(read.into_iter()).is_err(), "{errno}");
        }
    }

    #[test]
    fn own_pages_are_those_of_no_child() {
        let own = |children: &[MemoryStat]| own_pages(&stat(100, 10, 50), children.iter().copied());
        let pages = |clean, reclaimed| OwnPages {
            clean: clean * PAGE_SIZE,
            reclaimed: reclaimed * PAGE_SIZE,
            reclaimed_subtree: 50 * PAGE_SIZE,
        };
        assert_eq!(own(&[]), pages(90, 50));
        assert_eq!(own(&[stat(30, 5, 20), stat(20, 0, 10)]), pages(45, 20));
        // Pages that the children have added since do not make it negative.
        assert_eq!(own(&[stat(120, 0, 60)]), pages(0, 0));
    }
}
