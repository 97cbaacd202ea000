//! Handing a file's pages over: dropped and read again from within the owner's cgroup, a little at a time.
//!
//! What can go wrong is bounded by that little: at any moment at most [`PIECE`] of the file is missing from the cache.
//! Dirty pages, pages under writeback and pages that somebody has mapped stay where they are; the kernel sees to that
//! even where our own looking came too early.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use justitia_kernel::PAGE_SIZE;
use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::file::{FileId, cachestat, drop_page_cache};
use justitia_kernel::memory::Limit;
use justitia_kernel::proc::ProcFs;
use justitia_kernel::psi::PsiResource;
use rustix::io::Errno;

use super::reader::Reader;
use crate::escape;
use crate::plan::recharge::MIN_SPARE_MEMORY;

/// Handed over at once, bytes. Folios are aligned to their own size and none is larger: none straddles an end.
const PIECE: u64 = 2 << 20;
/// At most so many bytes a second.
const RATE: u64 = 32 << 20;
/// One job handles at most so much; the rest of a larger file is the next one's.
pub const MOST: u64 = 256 << 20;
/// For each piece that is looked at, so much time passes at least.
const LOOK: Duration = Duration::from_millis(1);
/// A piece must be read within this time.
const PATIENCE: Duration = Duration::from_secs(20);
/// A job ends after so long, wherever it is.
const LONGEST: Duration = Duration::from_secs(60);
/// A tenant whose tasks wait for memory for this part of the time (PSI `some avg10`, percent) has other worries.
const PRESSED: f64 = 5.0;
/// Why it cannot work without.
pub const NO_CACHESTAT: &str = "there is no cachestat(2) (it came with Linux 6.5; a service manager's filter that does \
                                not know it hides it): what is dirty cannot be told";

/// Hand this file over.
#[derive(Clone, Debug)]
pub struct Job {
    /// Which file.
    pub file: FileId,
    /// To whom.
    pub owner: Cgroup,
    /// From whom, if it still exists and is no inner cgroup.
    pub charged: Option<Cgroup>,
    /// Where in the file to begin.
    pub from: u64,
    /// Free memory is not to fall below this.
    pub reserve: u64,
}

/// What came of a job. Amounts in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// What the file is called here; empty if that is not known.
    pub name: String,
    /// Dropped from the cache.
    pub dropped: u64,
    /// Read again for the owner.
    pub read: u64,
    /// Passed over: dirty, mapped, in use, or for the greater part not cached.
    pub passed: u64,
    /// By how much the owner's file pages have grown meanwhile, by the kernel's own counters.
    pub came: u64,
    /// By how much those of whom it was charged to have shrunk.
    pub went: u64,
    /// Where the next job begins; 0 when the file is through.
    pub next: u64,
    /// Why it ended before its end, if so.
    pub stopped: Option<String>,
}

impl Done {
    /// Whether the kernel's counters say that the owner is charged now for at least half of what was read.
    #[must_use]
    pub const fn worked(&self) -> bool {
        self.read > 0 && self.came >= self.read / 2
    }
}

/// Does a job.
///
/// # Errors
/// Why nothing was done.
pub fn carry_out(job: &Job) -> Result<Done, String> {
    let file = job.file.open().map_err(|e| e.to_string())?;
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let stat = cachestat(&file, 0, 0).map_err(|errno| match errno {
        Errno::NOSYS => NO_CACHESTAT.to_owned(),
        errno => format!("cachestat: {errno}"),
    })?;
    if stat.dirty + stat.writeback > 0 {
        return Err(format!(
            "{} KiB of it are dirty or being written",
            (stat.dirty + stat.writeback) * (PAGE_SIZE >> 10)
        ));
    }
    let most = MOST.min(stat.cached * PAGE_SIZE);
    let bounds = Bounds::of(&job.owner)?;
    bounds.room(most)?;
    let before = Held::of(job);
    let mut done = Done {
        name: name(&file),
        ..Done::default()
    };
    let mut reader = Reader::start(&file, &job.owner, PATIENCE)?;
    let begun = Instant::now();
    let mut looked: u32 = 0;
    let mut at = job.from / PIECE * PIECE;
    while at < size && done.read + done.passed < most {
        if let Some(why) = enough(job, &bounds, &reader, begun) {
            done.stopped = Some(why);
            break;
        }
        if let Err(why) = piece(&file, at, &mut reader, &mut done) {
            done.stopped = Some(why);
            break;
        }
        at += PIECE;
        // Looking costs too, where there is little to read.
        looked += 1;
        let due = Duration::from_millis(done.read.saturating_mul(1000) / RATE) + LOOK * looked;
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    drop(reader);
    done.next = if at < size { at } else { 0 };
    let after = Held::of(job);
    done.came = after.owner.saturating_sub(before.owner);
    done.went = before.charged.saturating_sub(after.charged);
    Ok(done)
}

/// One piece: dropped if all of it that is cached can be, and read.
fn piece(file: &File, at: u64, reader: &mut Reader, done: &mut Done) -> Result<(), String> {
    let stat = || cachestat(file, at, PIECE).map_err(|e| format!("cachestat: {e}"));
    let before = stat()?;
    if before.cached == 0 {
        return Ok(());
    }
    // What is not there is not to be brought in.
    let sparse = before.cached * PAGE_SIZE < PIECE / 2 && at + PIECE <= file_size(file);
    if before.dirty + before.writeback > 0 || sparse {
        done.passed += before.cached * PAGE_SIZE;
        return Ok(());
    }
    drop_page_cache(file, at, PIECE).map_err(|e| format!("dropping: {e}"))?;
    let left = stat()?.cached.min(before.cached);
    let dropped = (before.cached - left) * PAGE_SIZE;
    done.dropped += dropped;
    done.passed += left * PAGE_SIZE;
    if dropped > 0 {
        reader.read(at, PIECE).map_err(|e| {
            format!(
                "the owner's process could not read {} KiB: {e}",
                PIECE >> 10
            )
        })?;
        done.read += dropped;
    }
    Ok(())
}

fn file_size(file: &File) -> u64 {
    file.metadata().map_or(0, |m| m.len())
}

/// Whether a job has to end here.
fn enough(job: &Job, bounds: &Bounds, reader: &Reader, begun: Instant) -> Option<String> {
    if begun.elapsed() > LONGEST {
        return Some(format!("it took {} s", LONGEST.as_secs()));
    }
    let free = bounds.proc.meminfo().map_or(0, |m| m.mem_free);
    if free < job.reserve.saturating_add(MIN_SPARE_MEMORY) {
        return Some("memory ran short".to_owned());
    }
    if reader.alone_in(&job.owner) {
        return Some("the owner's processes have ended".to_owned());
    }
    bounds.room(PIECE).err()
}

/// What bounds an owner, opened once for all looks of a job.
struct Bounds {
    /// The owner and what is above it.
    cgroups: Vec<Cgroup>,
    proc: ProcFs,
}

impl Bounds {
    fn of(owner: &Cgroup) -> Result<Self, String> {
        let fs = CgroupFs::discover().map_err(|e| e.to_string())?;
        let above = owner.path().ancestors().skip(1);
        Ok(Self {
            cgroups: std::iter::once(owner.clone())
                .chain(above.filter_map(|path| Cgroup::open_at(&fs, path).ok()))
                .collect(),
            proc: ProcFs::open(Path::new("/proc")).map_err(|e| e.to_string())?,
        })
    }

    /// Whether the owner can take so many bytes more: no limit above it in the way, and no pressure.
    fn room(&self, bytes: u64) -> Result<(), String> {
        // Without PSI the kernel does not say.
        if let Some(owner) = self.cgroups.first()
            && let Ok(psi) = owner.pressure(PsiResource::Memory)
            && psi.some.avg10 >= PRESSED
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
                        "{file} of {} leaves it no room for {} KiB more",
                        escape::encode(cgroup.path().as_os_str()),
                        bytes >> 10
                    ));
                }
            }
        }
        Ok(())
    }
}

/// File pages by the kernel's counters.
struct Held {
    owner: u64,
    charged: u64,
}

impl Held {
    fn of(job: &Job) -> Self {
        let file = |cgroup: &Cgroup| {
            let stat = cgroup.memory_stat();
            stat.map_or(0, |s| s.file_lru())
        };
        Self {
            owner: file(&job.owner),
            charged: job.charged.as_ref().map_or(0, file),
        }
    }
}

/// What an open file is called, if the kernel knows.
fn name(file: &File) -> String {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map(|path| escape::encode(path.as_os_str()))
        .unwrap_or_default()
}
