//! Recharges one file: drops its pages, and reads them again from within the owner's cgroup, chunk by chunk.
//!
//! At each moment at most [`CHUNK`] of the file is missing from the cache because of this. The kernel does not drop dirty
//! pages, pages under writeback and mapped pages, even if our check came too early.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use justitia_api::escape;
use justitia_kernel::PAGE_SIZE;
use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::file::{FileId, cachestat, drop_page_cache};
use justitia_kernel::memory::Limit;
use justitia_kernel::proc::ProcFs;
use justitia_kernel::psi::PsiResource;
use rustix::io::Errno;

use super::helper::RechargeHelper;
use super::plan::MIN_SPARE_MEMORY;

/// The bytes recharged at once. Folios are aligned to their own size, and none is larger: no folio crosses the end of a chunk.
const CHUNK: u64 = 2 << 20;
/// The most bytes a second.
const RATE: u64 = 32 << 20;
/// The most bytes for one job; the next job continues with the remainder of a larger file.
pub(super) const MAX_JOB: u64 = 256 << 20;
/// The least time for each chunk, also for one without cached pages.
const CHUNK_TIME: Duration = Duration::from_millis(1);
/// A chunk must be read within this time.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// A job ends after this time.
const JOB_TIMEOUT: Duration = Duration::from_secs(60);
/// Why recharging does not work without cachestat(2).
pub(super) const NO_CACHESTAT: &str = "expected cachestat(2), found none: it came with Linux 6.5, and a service manager's \
                                       filter may hide it. Without it dirty pages cannot be recognized";

/// A file to recharge.
#[derive(Clone, Debug)]
pub(super) struct RechargeJob {
    /// The file.
    pub(super) file: FileId,
    /// The cgroup that is charged afterwards.
    pub(super) owner: Cgroup,
    /// The cgroup that is charged now, if it still exists and is no inner cgroup.
    pub(super) charged: Option<Cgroup>,
    /// The offset in the file where it begins, bytes.
    pub(super) from: u64,
    /// Free memory must not fall below this, bytes.
    pub(super) free_headroom: u64,
}

/// The result of a job. Amounts in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JobResult {
    /// The file's path in this mount namespace; empty if it is not known.
    pub(super) name: String,
    /// Dropped from the cache.
    pub(super) dropped: u64,
    /// Read again for the owner.
    pub(super) read: u64,
    /// Skipped: dirty, mapped, in use, or mostly not cached.
    pub(super) skipped: u64,
    /// The growth of the owner's file pages meanwhile, by the kernel's counters.
    pub(super) owner_gained: u64,
    /// The shrinkage of the file pages of the cgroup charged before.
    pub(super) charged_lost: u64,
    /// The offset where the next job begins; 0 at the end of the file.
    pub(super) next: u64,
    /// Why it ended early, if so.
    pub(super) stopped: Option<String>,
}

impl JobResult {
    /// Whether the owner is charged for at least half of the read bytes, by the kernel's counters.
    pub(super) const fn is_success(&self) -> bool {
        self.read > 0 && self.owner_gained >= self.read / 2
    }
}

/// Whether the kernel reports the dirty pages of a file.
pub(super) fn has_cachestat() -> bool {
    // A service manager's filter without the call returns EPERM or ENOSYS.
    File::open("/proc/self/exe").is_ok_and(|file| cachestat(&file, 0, 1).is_ok())
}

impl RechargeJob {
    /// Carries out the job.
    ///
    /// # Errors
    /// Why nothing was done.
    pub(super) fn run(&self) -> Result<JobResult, String> {
        let file = self.file.open().map_err(|e| e.to_string())?;
        let size = file.metadata().map_err(|e| e.to_string())?.len();
        let most = self.recharge_limit(&file)?;
        let limits = OwnerLimits::open(&self.owner)?;
        limits.check(most)?;
        let before = FilePages::sample(self);
        let mut result = JobResult {
            name: name(&file),
            ..JobResult::default()
        };
        let mut helper = RechargeHelper::start(&file, &self.owner, READ_TIMEOUT)?;
        let begun = Instant::now();
        let mut chunks: u32 = 0;
        let mut at = self.from / CHUNK * CHUNK;
        while at < size && result.read + result.skipped < most {
            if let Some(why) = self.stop_reason(&limits, &helper, begun) {
                result.stopped = Some(why);
                break;
            }
            if let Err(why) = recharge_chunk(&file, at, &mut helper, &mut result) {
                result.stopped = Some(why);
                break;
            }
            at += CHUNK;
            chunks += 1;
            let due = Duration::from_millis(result.read.saturating_mul(1000) / RATE)
                + CHUNK_TIME * chunks;
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
        drop(helper);
        result.next = if at < size { at } else { 0 };
        let after = FilePages::sample(self);
        result.owner_gained = after.owner.saturating_sub(before.owner);
        result.charged_lost = before.charged.saturating_sub(after.charged);
        Ok(result)
    }

    /// The bytes of the file to recharge. A file with dirty pages is refused.
    fn recharge_limit(&self, file: &File) -> Result<u64, String> {
        let stat = cachestat(file, 0, 0).map_err(|errno| match errno {
            Errno::NOSYS => NO_CACHESTAT.to_owned(),
            errno => format!("cachestat: {errno}"),
        })?;
        if stat.dirty + stat.writeback > 0 {
            return Err(format!(
                "{} KiB of it are dirty or under writeback",
                (stat.dirty + stat.writeback) * (PAGE_SIZE >> 10)
            ));
        }
        Ok(MAX_JOB.min(stat.cached * PAGE_SIZE))
    }

    /// Why the job has to end now, if so.
    fn stop_reason(
        &self,
        limits: &OwnerLimits,
        helper: &RechargeHelper,
        begun: Instant,
    ) -> Option<String> {
        if begun.elapsed() > JOB_TIMEOUT {
            return Some(format!("it took {} s", JOB_TIMEOUT.as_secs()));
        }
        if limits.free() < self.free_headroom.saturating_add(MIN_SPARE_MEMORY) {
            return Some("free memory is short".to_owned());
        }
        if helper.is_alone_in(&self.owner) {
            return Some("the owner's processes have ended".to_owned());
        }
        limits.check(CHUNK).err()
    }
}

/// Drops one chunk, if all its cached pages can be dropped, and has it read again.
fn recharge_chunk(
    file: &File,
    at: u64,
    helper: &mut RechargeHelper,
    result: &mut JobResult,
) -> Result<(), String> {
    let stat = || cachestat(file, at, CHUNK).map_err(|e| format!("cachestat: {e}"));
    let before = stat()?;
    if before.cached == 0 {
        return Ok(());
    }
    // Pages that are not cached are not brought in.
    let sparse = before.cached * PAGE_SIZE < CHUNK / 2 && at + CHUNK <= file_size(file);
    if before.dirty + before.writeback > 0 || sparse {
        result.skipped += before.cached * PAGE_SIZE;
        return Ok(());
    }
    drop_page_cache(file, at, CHUNK).map_err(|e| format!("dropping its pages: {e}"))?;
    let left = stat()?.cached.min(before.cached);
    let dropped = (before.cached - left) * PAGE_SIZE;
    result.dropped += dropped;
    result.skipped += left * PAGE_SIZE;
    if dropped > 0 {
        helper.read(at, CHUNK).map_err(|e| {
            format!(
                "the helper in the owner's cgroup could not read {} KiB: {e}",
                CHUNK >> 10
            )
        })?;
        result.read += dropped;
    }
    Ok(())
}

fn file_size(file: &File) -> u64 {
    file.metadata().map_or(0, |m| m.len())
}

/// File pages on the LRU lists, by the kernel's counters, bytes.
struct FilePages {
    owner: u64,
    charged: u64,
}

impl FilePages {
    fn sample(job: &RechargeJob) -> Self {
        let file = |cgroup: &Cgroup| cgroup.memory_stat().map_or(0, |stat| stat.file_lru());
        Self {
            owner: file(&job.owner),
            charged: job.charged.as_ref().map_or(0, file),
        }
    }
}

/// The path of an open file, if the kernel knows it.
fn name(file: &File) -> String {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map(|path| escape::encode(path.as_os_str()))
        .unwrap_or_default()
}

// Limits of an owner: free memory, memory limits, pressure.

/// A tenant whose tasks wait for memory for this part of the time (PSI `some avg10`, percent) gets no more pages.
const MAX_SOME_AVG10: f64 = 5.0;

/// The limits of an owner, opened once for all checks of a job.
pub(super) struct OwnerLimits {
    /// The owner and its ancestors.
    cgroups: Vec<Cgroup>,
    proc: ProcFs,
}

impl OwnerLimits {
    /// Opens the files.
    ///
    /// # Errors
    /// The file that could not be opened.
    pub(super) fn open(owner: &Cgroup) -> Result<Self, String> {
        let fs = CgroupFs::discover().map_err(|e| e.to_string())?;
        let ancestors = owner.path().ancestors().skip(1);
        Ok(Self {
            cgroups: std::iter::once(owner.clone())
                .chain(ancestors.filter_map(|path| Cgroup::open_at(&fs, path).ok()))
                .collect(),
            proc: ProcFs::open(Path::new("/proc")).map_err(|e| e.to_string())?,
        })
    }

    /// The free memory of the machine, bytes; 0 if it cannot be read.
    pub(super) fn free(&self) -> u64 {
        self.proc.meminfo().map_or(0, |m| m.mem_free)
    }

    /// Checks that the owner can take this number of bytes more: no limit of it or its ancestors is near, and no pressure.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(super) fn check(&self, bytes: u64) -> Result<(), String> {
        // Without PSI the pressure is unknown.
        if let Some(owner) = self.cgroups.first()
            && let Ok(psi) = owner.pressure(PsiResource::Memory)
            && psi.some.avg10 >= MAX_SOME_AVG10
        {
            return Err(format!(
                "its tasks wait for memory {:.0} % of the time",
                psi.some.avg10
            ));
        }
        for cgroup in &self.cgroups {
            let Ok(current) = cgroup.memory_current() else {
                continue;
            };
            for (file, limit) in [
                ("memory.high", cgroup.memory_high()),
                ("memory.max", cgroup.memory_max()),
            ] {
                if let Ok(Limit::Bytes(limit)) = limit
                    && current
                        .saturating_add(bytes)
                        .saturating_add(MIN_SPARE_MEMORY)
                        > limit
                {
                    return Err(format!(
                        "{file} of {} does not allow {} KiB more",
                        escape::encode(cgroup.path().as_os_str()),
                        bytes >> 10
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The thread that carries out jobs.
#[derive(Debug)]
pub(super) struct RechargeWorker {
    jobs: Sender<RechargeJob>,
    results: Receiver<Result<JobResult, String>>,
}

impl RechargeWorker {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn start() -> std::io::Result<Self> {
        let (jobs, queue) = channel::<RechargeJob>();
        let (sender, results) = channel();
        std::thread::Builder::new()
            .name("recharge".to_owned())
            .spawn(move || {
                while let Ok(job) = queue.recv() {
                    if sender.send(job.run()).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { jobs, results })
    }

    /// Queues a job.
    pub(super) fn send(&self, job: RechargeJob) {
        // The thread lives as long as the worker.
        let _ = self.jobs.send(job);
    }

    /// The results since the last call: the effect of each job, or why nothing was done.
    pub(super) fn results(&self) -> impl Iterator<Item = Result<JobResult, String>> {
        self.results.try_iter()
    }
}
