//! Where worker threads leave what they have done for the connection's thread.

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A queue with an eventfd, which is written only when the connection's thread sleeps.
pub(super) struct CompletionQueue<T> {
    ready: Mutex<Vec<T>>,
    /// The connection's thread sleeps, or is about to: wake it.
    sleeping: AtomicBool,
    event: OwnedFd,
}

impl<T> CompletionQueue<T> {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            ready: Mutex::default(),
            sleeping: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Called by a worker thread.
    pub(super) fn push(&self, completion: T) {
        self.ready.lock().push(completion);
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Err(e) = rustix::io::write(&self.event, &1u64.to_ne_bytes())
        {
            tracing::error!("cannot wake a connection: {e}");
        }
    }

    /// Called by the connection's thread: everything that is ready.
    pub(super) fn collect(&self) -> Vec<T> {
        std::mem::take(&mut *self.ready.lock())
    }

    /// Called by the connection's thread before it sleeps: `false` when there is something to collect first.
    pub(super) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let empty = self.ready.lock().is_empty();
        if !empty {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        empty
    }

    /// Called by the connection's thread after it has slept.
    pub(super) fn awake(&self) {
        // Still set: no worker has written to the event.
        if !self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }

    /// Readable when a worker has pushed something while the thread slept.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
