//! Where connections to a volume take their requests, and who may not take any more: those whose client is gone and back by
//! another connection, as what it has sent and nobody has read yet is void; and all, when the volume is removed.

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
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
pub(crate) struct Gates(Mutex<Entered>);

#[derive(Default)]
struct Entered {
    gates: Vec<Weak<Gate>>,
    /// The volume is removed: nobody takes a request.
    closed: bool,
}

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
        let (gate, others) = {
            let mut entered = self.0.lock();
            let others = entered.present();
            let gate = Arc::new(Gate {
                socket,
                shut: Mutex::new(entered.closed),
            });
            entered.gates.push(Arc::downgrade(&gate));
            (gate, others)
        };
        for other in others.iter().filter(|other| other.is_left()) {
            *other.shut.lock() = true;
        }
        gate
    }

    /// From now on no connection takes a request, not one that comes later either. Each finishes what it has taken, sends
    /// the replies, and ends.
    pub(crate) fn close(&self) {
        let gates = {
            let mut entered = self.0.lock();
            entered.closed = true;
            entered.present()
        };
        for gate in gates {
            *gate.shut.lock() = true;
            // Wakes the thread that waits for requests. An error says that the client has left.
            let _ = shutdown(&gate.socket, Shutdown::Read);
        }
    }

    /// Disconnects clients that do not take their replies.
    pub(crate) fn cut_off(&self) {
        for gate in self.0.lock().present() {
            let _ = shutdown(&gate.socket, Shutdown::Both);
        }
    }
}

impl Entered {
    /// Those that are connected.
    fn present(&mut self) -> Vec<Arc<Gate>> {
        self.gates.retain(|gate| gate.strong_count() > 0);
        self.gates.iter().filter_map(Weak::upgrade).collect()
    }
}
