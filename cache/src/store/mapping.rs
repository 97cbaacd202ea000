//! The mapping under an arena: of a memfd, or anonymous.

use nix::libc;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

/// The unit in which memory is returned: a huge page of x86-64 and arm64.
pub(super) const HUGE: usize = 2 << 20;

/// Mapped memory that begins at a multiple of [`HUGE`].
pub(super) struct Mapping {
    /// What was mapped.
    map: NonNull<c_void>,
    map_bytes: usize,
    first: NonNull<u8>,
    bytes: usize,
    file: Option<File>,
}

// SAFETY: the mapping is not tied to a thread; it hands no reference to its memory out.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a memfd that cannot shrink, or anonymous memory. They are a multiple of [`HUGE`].
    pub(super) fn new(file: Option<File>, bytes: usize) -> io::Result<Self> {
        let map_bytes = bytes.checked_add(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let map =
            unsafe { mmap_anonymous(null_mut(), map_bytes, access, MapFlags::PRIVATE | flags) }?;
        let map = NonNull::new(map).ok_or(io::ErrorKind::OutOfMemory)?;
        let skip = map.as_ptr().cast::<u8>().align_offset(HUGE);
        // SAFETY: `skip` is below HUGE, and the mapping is HUGE longer than `bytes`.
        let first = unsafe { map.cast::<u8>().add(skip) };
        let mapping = Self {
            map,
            map_bytes,
            first,
            bytes,
            file,
        };
        let at = first.as_ptr().cast();
        match &mapping.file {
            Some(file) => {
                let flags = MapFlags::SHARED | MapFlags::FIXED | flags;
                // SAFETY: the range lies inside the mapping that was just made, which nobody uses yet.
                unsafe { mmap(at, bytes, access, flags, file, 0) }?;
            }
            None => {
                // SAFETY: the range lies inside the mapping; the advice changes no content. A kernel without huge
                // pages refuses it, and small pages serve as well.
                let _ = unsafe { madvise(at, bytes, Advice::LinuxHugepage) };
            }
        }
        Ok(mapping)
    }

    pub(super) const fn first(&self) -> NonNull<u8> {
        self.first
    }

    pub(super) const fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Asks for huge pages for these ones, of the pages that are there.
    pub(super) fn collapse(&self, huge: Range<usize>) -> io::Result<()> {
        let end = huge.end.min(self.bytes / HUGE);
        let count = end.saturating_sub(huge.start);
        // SAFETY: the range lies inside the mapping; the advice changes no content.
        let done = unsafe {
            let at = self.first.as_ptr().add(huge.start.min(end) * HUGE);
            libc::madvise(at.cast(), count * HUGE, libc::MADV_COLLAPSE)
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and no reference to it is left. It cannot fail for a whole mapping.
        let _ = unsafe { munmap(self.map.as_ptr(), self.map_bytes) };
    }
}

/// A memfd of this size, which cannot shrink: a mapping of it stays valid.
pub(crate) fn memfd(bytes: usize) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("justitia-cache", flags)?);
    file.set_len(u64::try_from(bytes).map_err(io::Error::other)?)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// Is it a memfd whose mapping stays valid, and which can be written?
///
/// # Errors
/// When not, and why.
pub(crate) fn check_arena(file: &File) -> io::Result<()> {
    let seals =
        fcntl_get_seals(file).map_err(|_| invalid("a memfd", "a descriptor of another kind"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(invalid(
            "a memfd that cannot shrink",
            "one without F_SEAL_SHRINK",
        ));
    }
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE | SealFlags::GROW) {
        return Err(invalid(
            "a memfd that can be written and grow",
            "one whose seals forbid that",
        ));
    }
    // Pages of hugetlbfs may be missing when they are touched.
    let of = rustix::fs::fstatfs(file)?.f_type;
    if of != TMPFS {
        return Err(invalid(
            "a memfd of ordinary pages",
            "one of huge pages of hugetlbfs",
        ));
    }
    Ok(())
}

const TMPFS: rustix::fs::FsWord = 0x0102_1994;

fn invalid(expected: &str, found: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("expected {expected}, found {found}"),
    )
}

/// Can memory that is a memfd have huge pages, here and now, or has no memory any? Asked once.
pub(crate) fn has_huge_memfds() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let found = probe();
        if let Err(e) = &found {
            tracing::info!(
                "the memory store ends with this daemon: the kernel has no huge pages for memfds (MADV_COLLAPSE, Linux 6.1): {e}"
            );
        }
        found.is_ok()
    })
}

fn probe() -> io::Result<()> {
    let mapping = Mapping::new(Some(memfd(HUGE)?), HUGE)?;
    // SAFETY: the byte lies inside the mapping, which nobody else has.
    unsafe { mapping.first().write_volatile(1) };
    match mapping.collapse(0..1) {
        // There may be no huge page at this moment.
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOMEM | libc::EAGAIN | libc::EBUSY)
            ) =>
        {
            Ok(())
        }
        Err(e) if anonymous_has_none() => {
            tracing::debug!("no huge pages for memfds, nor for other memory: {e}");
            Ok(())
        }
        done => done,
    }
}

/// Has anonymous memory no huge pages either?
fn anonymous_has_none() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|text| text.contains("[never]"))
}
