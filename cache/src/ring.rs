//! Transfers in flight on an io_uring. Each thread with transfers has its own ring.

use io_uring::{IoUring, squeue, types};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The most transfers in flight of a ring.
pub(crate) const ENTRIES: usize = 128;

/// Why io_uring is not supported here: an old kernel, a sandbox, `kernel.io_uring_disabled`. `None` if it is. Tested and logged
/// once. Without it worker threads read and write disks.
pub(crate) fn unsupported_reason() -> Option<&'static str> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let found = REASON.get_or_init(|| {
        let why = Ring::<()>::new().err()?.to_string();
        tracing::warn!(
            "io_uring is not supported here ({why}): worker threads read and write the disks, which is slower"
        );
        Some(why)
    });
    found.as_deref()
}

/// A ring, and a value (`T`) for each of its transfers. The value is dropped only when the transfer has ended and the kernel no
/// longer uses its memory.
pub(crate) struct Ring<T> {
    ring: IoUring,
    /// The values of transfers, by number.
    transfers: Vec<Option<T>>,
    free: Vec<usize>,
    /// The number of entries not yet submitted.
    queued: usize,
    /// The records of transfers, by number.
    #[cfg(test)]
    recorded: Vec<Option<crate::block_dev::Recorded>>,
}

/// An entry in the kernel's layout (`struct io_uring_sqe`).
#[cfg(test)]
#[repr(C)]
pub(crate) struct Submitted {
    pub(crate) opcode: u8,
    sqe_flags: u8,
    priority: u16,
    pub(crate) file: i32,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) flags: u32,
    rest: [u64; 4],
}

impl<T> Ring<T> {
    /// A ring for the calling thread alone.
    ///
    /// # Errors
    /// When the kernel or a sandbox refuses it.
    pub(crate) fn new() -> io::Result<Self> {
        let entries = u32::try_from(ENTRIES).map_err(io::Error::other)?;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(entries)?;
        Ok(Self {
            ring,
            transfers: (0..ENTRIES).map(|_| None).collect(),
            free: (0..ENTRIES).rev().collect(),
            queued: 0,
            #[cfg(test)]
            recorded: (0..ENTRIES).map(|_| None).collect(),
        })
    }

    /// The number of transfers in flight.
    pub(crate) const fn in_flight(&self) -> usize {
        ENTRIES - self.free.len()
    }

    /// Queues a transfer. `Err` returns `transfer` when the ring is full.
    ///
    /// # Safety
    /// The memory and the file that `entry` names must stay unchanged, and untouched by others, while the ring has `transfer`.
    pub(crate) unsafe fn push(&mut self, entry: squeue::Entry, transfer: T) -> Result<(), T> {
        let Some(number) = self.free.pop() else {
            return Err(transfer);
        };
        let entry = entry.user_data(u64::try_from(number).unwrap_or(u64::MAX));
        #[cfg(test)]
        {
            // SAFETY: this is the kernel's layout, of plain integers.
            let submitted =
                unsafe { std::mem::transmute::<squeue::Entry, Submitted>(entry.clone()) };
            self.recorded[number] = crate::block_dev::submitted(&submitted);
        }
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            self.free.push(number);
            return Err(transfer);
        }
        self.transfers[number] = Some(transfer);
        self.queued += 1;
        Ok(())
    }

    /// Submits queued transfers, and waits until `want` transfers have completed.
    pub(crate) fn submit(&mut self, want: usize) {
        self.submit_until(want, None);
    }

    /// As [`submit`](Self::submit), but waits at most until a deadline.
    pub(crate) fn submit_until(&mut self, want: usize, deadline: Option<Instant>) {
        while self.queued > 0 || want > self.ring.completion().len() {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if self.queued == 0 && left.is_some_and(|left| left.is_zero()) {
                return;
            }
            match self.enter(want, left) {
                Ok(taken) => self.queued = self.queued.saturating_sub(taken),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error() == Some(Errno::TIME.raw_os_error()) => {}
                // Out of memory, or too many completions for the kernel.
                Err(_) if !self.ring.completion().is_empty() => return,
                // The kernel uses the memory of transfers in flight, so only waiting is safe.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn enter(&mut self, want: usize, patience: Option<Duration>) -> io::Result<usize> {
        let Some(patience) = patience else {
            return self.ring.submit_and_wait(want);
        };
        let patience = types::Timespec::from(patience);
        let args = types::SubmitArgs::new().timespec(&patience);
        self.ring.submitter().submit_with_args(want, &args)
    }

    /// Passes completed transfers to `back`, with bytes or an error.
    pub(crate) fn collect(&mut self, mut back: impl FnMut(T, io::Result<usize>)) {
        for completion in self.ring.completion() {
            let number = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
            let Some(transfer) = self.transfers.get_mut(number).and_then(Option::take) else {
                continue;
            };
            self.free.push(number);
            #[cfg(test)]
            if let Some(recorded) = self.recorded.get_mut(number).and_then(Option::take) {
                recorded.ended();
            }
            let result = completion.result();
            back(
                transfer,
                usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)),
            );
        }
    }

    /// Readable when a transfer has completed.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            self.submit(1);
            self.collect(|_, _| {});
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;
    use std::rc::Rc;

    #[test]
    fn a_transfers_memory_lives_until_it_has_ended() {
        if unsupported_reason().is_some() {
            return;
        }
        let (reader, mut writer) = std::io::pipe().unwrap();
        let kept = Rc::new(());
        let mut ring = Ring::new().unwrap();
        for n in 0..=ENTRIES {
            let mut buf = Box::new([0u8; 4]);
            let entry = opcode::Read::new(types::Fd(reader.as_raw_fd()), buf.as_mut_ptr(), 4);
            // SAFETY: the buffer goes along.
            let pushed = unsafe { ring.push(entry.build(), (n, buf, kept.clone())) };
            assert_eq!(pushed.is_ok(), n < ENTRIES, "a full ring refuses");
        }
        std::io::Write::write_all(&mut writer, b"one!two").unwrap();
        ring.submit(2);
        let mut found = Vec::new();
        ring.collect(|(_, buf, _), result| found.push(buf[..result.unwrap()].to_vec()));
        found.sort();
        assert_eq!(found, [b"one!".to_vec(), b"two".to_vec()]);
        assert_eq!(
            (ring.in_flight(), Rc::strong_count(&kept)),
            (ENTRIES - 2, ENTRIES - 1)
        );
        // The end of the pipe ends the others.
        drop(writer);
        drop(ring);
        assert_eq!(Rc::strong_count(&kept), 1);
    }
}
