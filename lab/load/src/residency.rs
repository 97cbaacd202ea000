//! How much of a file set is in the page cache: cachestat(2), or mincore(2) before Linux 6.5.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use justitia_common::page_cache::{WINDOW, cached_pages};
use justitia_share::PAGE_SIZE;

use crate::fileset::FileSet;

/// cachestat's number, the same on every architecture but alpha; libc lacks it on some.
const SYS_CACHESTAT: libc::c_long = 451;

/// What is in the page cache, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Residency {
    /// In the cache.
    pub resident: u64,
    /// Of these, not yet written to the device; unknown to mincore.
    pub dirty: Option<u64>,
    /// The files' sizes.
    pub size: u64,
    /// How many files there were.
    pub files: u64,
}

/// struct cachestat_range of the kernel's include/uapi/linux/mman.h.
#[repr(C)]
struct Range {
    offset: u64,
    /// 0: to the end of the file.
    length: u64,
}

/// struct cachestat of the kernel's include/uapi/linux/mman.h, in pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cache: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Looks at every file of `sets` that exists. Files that vanish meanwhile are left out.
///
/// # Errors
/// The kernel answers neither way.
pub(crate) fn sample(sets: &[&FileSet]) -> io::Result<Residency> {
    let mut sum = Residency {
        dirty: Some(0),
        ..Residency::default()
    };
    for set in sets {
        for index in set.indices() {
            match of_file(&set.path(index)) {
                Ok(one) => {
                    sum.resident += one.resident;
                    sum.size += one.size;
                    sum.files += one.files;
                    sum.dirty = sum.dirty.zip(one.dirty).map(|(a, b)| a + b);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(sum)
}

fn of_file(path: &Path) -> io::Result<Residency> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let page = page_size();
    let mut result = Residency {
        resident: 0,
        dirty: Some(0),
        size,
        files: 1,
    };
    if size == 0 {
        return Ok(result);
    }
    match cachestat(&file) {
        Ok(stat) => {
            result.resident = (stat.cache * page).min(size);
            result.dirty = Some(((stat.dirty + stat.writeback) * page).min(size));
        }
        // An older kernel, or a seccomp filter that does not know the call.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            result.resident = (mincore(&file, size)? * page).min(size);
            result.dirty = None;
        }
        Err(error) => return Err(error),
    }
    Ok(result)
}

fn cachestat(file: &File) -> io::Result<Cachestat> {
    let range = Range {
        offset: 0,
        length: 0,
    };
    let mut stat = Cachestat::default();
    // SAFETY: the two structures are laid out as the kernel's, live across the call, and only the
    // second is written; the descriptor is open.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0_u32,
        )
    };
    if result == 0 {
        Ok(stat)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The pages of the file that are in the cache.
fn mincore(file: &File, size: u64) -> io::Result<u64> {
    let mut resident = 0;
    let mut first = 0;
    while first * PAGE_SIZE < size {
        cached_pages(file, first, size, |_| resident += 1)?;
        first += WINDOW;
    }
    Ok(resident)
}

fn page_size() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_written_is_resident_by_both_calls() {
        let directory = tempfile::tempdir().unwrap();
        let set = FileSet::open(directory.path().to_path_buf(), 20, vec![10_000; 4]).unwrap();
        set.prepare(100, 1, &[5; 4096], false).unwrap();
        let all = sample(&[&set]).unwrap();
        assert_eq!((all.resident, all.size, all.files), (40_000, 40_000, 4));
        let file = File::open(set.path(0)).unwrap();
        assert_eq!(
            mincore(&file, 10_000).unwrap(),
            10_000_u64.div_ceil(page_size())
        );
    }
}
