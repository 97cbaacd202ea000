//! Which pages of a file are in the page cache.
//!
//! By `mincore(2)` on a mapping that is never touched: it changes nothing, where `preadv2(RWF_NOWAIT)` makes pages recently
//! used and begins to read ahead those that are not there. `cachestat(2)` counts, and would have to be asked for each page;
//! it came with Linux 6.5.

#![expect(unsafe_code, reason = "mincore(2) has no safe wrapper")]

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use justitia_share::PAGE_SIZE;
use rustix::fs::{Access, AtFlags, CWD};

/// Pages that one call looks at: 64 MiB.
pub const WINDOW: u64 = 1 << 14;

/// Whether the kernel tells this process what is cached of the file. It tells the file's owner, and those who may write
/// the file. To others it says that all is cached (`can_do_mincore` in mm/mincore.c, Linux 5.2).
#[must_use]
pub fn is_told(file: &impl AsFd) -> bool {
    let fd = file.as_fd();
    let is_owner =
        rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    is_owner || rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// Calls `cached` with the number of each page of the file that is in the page cache, among the [`WINDOW`] that begin with
/// page `first`, at most up to a size of `size` bytes.
///
/// # Errors
/// If the file cannot be mapped, as where its file system cannot, or it was opened for writing only.
pub fn cached_pages(
    file: &impl AsFd,
    first: u64,
    size: u64,
    mut cached: impl FnMut(u64),
) -> Result<()> {
    let pages = size.div_ceil(PAGE_SIZE).saturating_sub(first).min(WINDOW);
    if pages == 0 {
        return Ok(());
    }
    let mut present = vec![0; usize::try_from(pages).unwrap_or(0)];
    look(file.as_fd(), first, &mut present)?;
    for (page, state) in (first..).zip(present) {
        if state & 1 == 1 {
            cached(page);
        }
    }
    Ok(())
}

fn look(file: BorrowedFd<'_>, first: u64, present: &mut [u8]) -> Result<()> {
    let too_large = || Error::from(ErrorKind::FileTooLarge);
    let offset = first.checked_mul(PAGE_SIZE).ok_or_else(too_large)?;
    let offset = libc::off_t::try_from(offset).map_err(|_| too_large())?;
    let page = usize::try_from(PAGE_SIZE).map_err(|_| too_large())?;
    let length = present.len().checked_mul(page).ok_or_else(too_large)?;
    // SAFETY: a new mapping, to which nothing else refers. It is never read, so a file that shrinks does no harm, and it is
    // unmapped below whatever happens.
    let mapping = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            offset,
        )
    };
    if mapping == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    // SAFETY: the mapping has `length` bytes, and `present` a byte for each of its pages.
    let asked = unsafe { libc::mincore(mapping, length, present.as_mut_ptr()) };
    let error = Error::last_os_error();
    // SAFETY: the mapping from above, to which nothing refers.
    unsafe { libc::munmap(mapping, length) };
    match asked {
        0 => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    fn found(file: &std::fs::File, first: u64, size: u64) -> Vec<u64> {
        let mut pages = Vec::new();
        cached_pages(file, first, size, |page| pages.push(page)).unwrap();
        pages
    }

    #[test]
    fn written_pages_are_cached_and_holes_are_not() {
        let file = tempfile::tempfile().unwrap();
        let far = WINDOW + 7;
        file.set_len((far + 2) * PAGE_SIZE).unwrap();
        for page in [1, 2, far] {
            file.write_all_at(&[1], page * PAGE_SIZE).unwrap();
        }
        assert!(is_told(&file));
        let size = file.metadata().unwrap().len();
        assert_eq!(found(&file, 0, size), [1, 2]);
        assert_eq!(found(&file, WINDOW, size), [far]);
        assert_eq!(found(&file, 0, PAGE_SIZE + 1), [1]);
        assert!(found(&file, far + 2, size).is_empty());
        // No more of it than asked, wherever it ends.
        assert_eq!(found(&file, 2, u64::MAX), [2]);
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        let (read, _write) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(cached_pages(&read, 0, PAGE_SIZE, |_| ()).is_err());
    }
}
