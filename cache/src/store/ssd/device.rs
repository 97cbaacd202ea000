//! The device under the SSD store: a file or a block device, past the page cache.

use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use io_uring::{IoUring, opcode, types};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// A block at an address that direct I/O accepts.
#[repr(C, align(4096))]
pub(crate) struct Page(pub(crate) Block);

impl Page {
    pub(crate) const fn new() -> Self {
        Self([0; BLOCK_SIZE])
    }
}

/// What the SSD store needs of its device. Offsets are multiples of the block size, buffers lie on pages.
pub(crate) trait Device: Send + Sync {
    /// Reads whole blocks, together; one result for each.
    fn read(&self, requests: &mut [(u64, &mut Page)]) -> Vec<io::Result<()>>;
    fn write(&self, bytes: &[u8], off: u64) -> io::Result<()>;
    /// The content is no longer needed. A hint.
    fn discard(&self, off: u64, len: u64) -> io::Result<()>;
    /// Makes the device at least this large.
    fn grow(&self, len: u64) -> io::Result<()>;
}

/// A file or a block device, opened for this process alone.
pub(crate) struct FileDevice {
    file: File,
    regular: bool,
}

impl FileDevice {
    pub(crate) fn open(path: &Path, len: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let direct = i32::try_from(OFlags::DIRECT.bits()).map_err(io::Error::other)?;
        let file = options
            .clone()
            .custom_flags(direct)
            .open(path)
            .or_else(|e| match e.kind() {
                io::ErrorKind::InvalidInput => {
                    tracing::warn!(path = %path.display(), "no direct I/O here: blocks on this SSD store pass the page cache, too");
                    options.open(path)
                }
                _ => Err(e),
            })?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| io::Error::new(e.kind(), "another process uses it"))?;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "expected a regular file or a block device",
            ));
        }
        let device = Self {
            file,
            regular: kind.is_file(),
        };
        device.grow(len)?;
        Ok(device)
    }
}

impl Device for FileDevice {
    fn read(&self, requests: &mut [(u64, &mut Page)]) -> Vec<io::Result<()>> {
        let mut results = Vec::with_capacity(requests.len());
        for part in requests.chunks_mut(RING) {
            let read = RINGS.with_borrow_mut(|ring| match ring {
                Some(ring) => ring_read(ring, &self.file, part),
                None => part
                    .iter_mut()
                    .map(|(off, page)| self.file.read_exact_at(&mut page.0, *off))
                    .collect(),
            });
            results.extend(read);
        }
        results
    }

    fn write(&self, bytes: &[u8], off: u64) -> io::Result<()> {
        // The callers are threads of their own, which have nothing else to do meanwhile.
        self.file.write_all_at(bytes, off)
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, off, len)?)
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        let found = if self.regular {
            let old = self.file.metadata()?.len();
            if old < len {
                self.file.set_len(len)?;
            }
            return Ok(());
        } else {
            rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?
        };
        if found < len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("expected a device of at least {len} bytes, found {found}"),
            ));
        }
        Ok(())
    }
}

/// Reads that one thread has in flight at once.
const RING: usize = 32;

thread_local! {
    /// A ring for each thread that reads; none where the kernel or a sandbox refuses it.
    static RINGS: RefCell<Option<IoUring>> = RefCell::new(IoUring::new(32).ok());
}

/// Reads up to [`RING`] blocks. Comes back only when the kernel has let go of every buffer.
fn ring_read(
    ring: &mut IoUring,
    file: &File,
    requests: &mut [(u64, &mut Page)],
) -> Vec<io::Result<()>> {
    let mut results: Vec<Option<io::Result<()>>> = requests.iter().map(|_| None).collect();
    let mut queued = 0;
    for (i, (off, page)) in requests.iter_mut().enumerate() {
        let length = u32::try_from(BLOCK_BYTES).unwrap_or(0);
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), page.0.as_mut_ptr(), length)
            .offset(*off)
            .build()
            .user_data(u64::try_from(i).unwrap_or(u64::MAX));
        // SAFETY: the buffer is exclusively ours through `requests` until this function returns, which it
        // does only after the kernel has completed every entry that was queued; the file outlives it, too.
        match unsafe { ring.submission().push(&entry) } {
            Ok(()) => queued += 1,
            Err(_) => results[i] = Some(Err(io::Error::other("the ring is full"))),
        }
    }
    let mut done = 0;
    while done < queued {
        // Interrupted or busy: what was submitted stays submitted, the rest follows.
        if let Err(e) = ring.submit_and_wait(queued - done)
            && !matches!(
                e.kind(),
                io::ErrorKind::Interrupted
                    | io::ErrorKind::ResourceBusy
                    | io::ErrorKind::WouldBlock
            )
        {
            // The kernel may still own the buffers: waiting on is all that is safe.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for completion in ring.completion() {
            done += 1;
            let result = match u64::try_from(completion.result()) {
                Ok(BLOCK_BYTES) => Ok(()),
                Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(_) => Err(io::Error::from_raw_os_error(-completion.result())),
            };
            if let Ok(i) = usize::try_from(completion.user_data())
                && let Some(slot) = results.get_mut(i)
            {
                *slot = Some(result);
            }
        }
    }
    results
        .into_iter()
        .map(|r| r.unwrap_or_else(|| Err(io::Error::other("a read was lost"))))
        .collect()
}
