//! What a client has sent and nobody has read yet, when it is gone and back by another connection: that is void.

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Where a connection takes its requests.
pub(crate) struct Gate {
    socket: Arc<OwnedFd>,
    /// No request is taken any more.
    shut: Mutex<bool>,
}

/// The connections to a volume.
#[derive(Default)]
pub(crate) struct Gates(Mutex<Vec<Weak<Gate>>>);

impl Gate {
    /// Held while a request is taken; `None` when none may be.
    pub(crate) fn pass(&self) -> Option<MutexGuard<'_, bool>> {
        Some(self.shut.lock()).filter(|shut| !**shut)
    }

    /// Has the client closed its end?
    fn is_left(&self) -> bool {
        let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        let mut of = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let polled = poll(&mut of, Some(&Timespec::default()));
        polled.is_ok() && of.iter().any(|of| of.revents().intersects(gone))
    }
}

impl Gates {
    /// A new connection: those whose clients are gone take no more requests, before it takes its first. What they have taken
    /// is executed before later writes to the same place.
    pub(crate) fn enter(&self, socket: Arc<OwnedFd>) -> Arc<Gate> {
        let gate = Arc::new(Gate {
            socket,
            shut: Mutex::new(false),
        });
        let others: Vec<_> = {
            let mut gates = self.0.lock();
            gates.retain(|other| other.strong_count() > 0);
            let others = gates.iter().filter_map(Weak::upgrade).collect();
            gates.push(Arc::downgrade(&gate));
            others
        };
        for other in others.iter().filter(|other| other.is_left()) {
            *other.shut.lock() = true;
        }
        gate
    }
}
