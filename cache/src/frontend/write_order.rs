//! Executes overlapping writes of a volume in the order of arrival.
//!
//! A client that reconnects sends unanswered writes again, and continues from there. Writes of its old connection, delayed by a
//! slow disk, must not be executed after that.

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Called when a write may begin.
type Resume = Box<dyn FnOnce(WriteTicket) + Send>;

/// The writes, discards and zeroings of a volume in flight.
#[derive(Default)]
pub(super) struct WriteOrder(Mutex<Writes>);

#[derive(Default)]
struct Writes {
    /// By order of arrival.
    arrived: BTreeMap<u64, Write>,
    next: u64,
    /// The number of waiting writes.
    waiting: usize,
}

struct Write {
    range: Range<u64>,
    /// If it waits for others: its ticket, and the function to call then.
    waiting: Option<(WriteTicket, Resume)>,
}

/// A write that has arrived. Dropping the ticket ends it.
pub(super) struct WriteTicket {
    order: Arc<WriteOrder>,
    number: u64,
}

impl Writes {
    /// Takes waiting writes that can begin now.
    fn take_ready(&mut self) -> Vec<(WriteTicket, Resume)> {
        if self.waiting == 0 {
            return Vec::new();
        }
        let waiting = self.arrived.iter();
        let waiting = waiting.filter(|(_, write)| write.waiting.is_some());
        let ready: Vec<_> = waiting
            .filter(|(number, write)| !self.must_wait(**number, &write.range))
            .map(|(number, _)| *number)
            .collect();
        let take = |number| self.arrived.get_mut(&number)?.waiting.take();
        let ready: Vec<_> = ready.into_iter().filter_map(take).collect();
        self.waiting -= ready.len();
        ready
    }

    /// Is there an earlier write that overlaps?
    fn must_wait(&self, number: u64, range: &Range<u64>) -> bool {
        let earlier = self.arrived.range(..number);
        let mut earlier = earlier.map(|(_, write)| &write.range);
        earlier.any(|other| other.start < range.end && range.start < other.end)
    }
}

impl WriteOrder {
    /// Is no write in flight?
    pub(super) fn is_idle(&self) -> bool {
        self.0.lock().arrived.is_empty()
    }

    /// Registers a write of these bytes.
    pub(super) fn arrive(self: &Arc<Self>, range: Range<u64>) -> WriteTicket {
        let mut writes = self.0.lock();
        let number = writes.next;
        writes.next += 1;
        let waiting = None;
        writes.arrived.insert(number, Write { range, waiting });
        let order = Arc::clone(self);
        WriteTicket { order, number }
    }
}

impl WriteTicket {
    /// Calls `resume` when the write may begin: at once, or from the thread that ends the last write before it.
    pub(super) fn begin(self, resume: impl FnOnce(Self) + Send + 'static) {
        let order = Arc::clone(&self.order);
        let mut writes = order.0.lock();
        let range = writes.arrived.get(&self.number).map(|w| w.range.clone());
        if range.is_some_and(|range| writes.must_wait(self.number, &range))
            && let Some(write) = writes.arrived.get_mut(&self.number)
        {
            write.waiting = Some((self, Box::new(resume)));
            writes.waiting += 1;
            return;
        }
        drop(writes);
        resume(self);
    }

    /// Must the write wait for another?
    pub(super) fn must_wait(&self) -> bool {
        let writes = self.order.0.lock();
        let write = writes.arrived.get(&self.number);
        write.is_some_and(|write| writes.must_wait(self.number, &write.range))
    }
}

impl Drop for WriteTicket {
    fn drop(&mut self) {
        let ready = {
            let mut writes = self.order.0.lock();
            writes.arrived.remove(&self.number);
            writes.take_ready()
        };
        for (ticket, resume) in ready {
            resume(ticket);
        }
    }
}

// Gates of the connections to a volume. A gate is shut when its client is gone and has reconnected: its unread requests are
// void. All are shut when the volume is removed.

/// A connection's gate for requests.
pub(crate) struct Gate {
    socket: Arc<OwnedFd>,
    /// No further request is taken.
    shut: Mutex<bool>,
}

/// The connections to a volume.
#[derive(Default)]
pub(crate) struct Gates(Mutex<Entered>);

#[derive(Default)]
struct Entered {
    gates: Vec<Weak<Gate>>,
    /// The volume is removed: no connection takes a request.
    closed: bool,
}

impl Gate {
    /// The guard is held while a request is taken; `None` when the gate is shut.
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
    /// Adds a connection. First shuts the gates of clients that are gone. Their taken requests are executed before later writes
    /// to the same range.
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

    /// Stops requests on all connections, including later ones. Each finishes its requests, sends the replies, and ends.
    pub(crate) fn close(&self) {
        let gates = {
            let mut entered = self.0.lock();
            entered.closed = true;
            entered.present()
        };
        for gate in gates {
            *gate.shut.lock() = true;
            // Wakes the thread that waits for requests. It fails if the client has left.
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
    /// The gates of live connections.
    fn present(&mut self) -> Vec<Arc<Gate>> {
        self.gates.retain(|gate| gate.strong_count() > 0);
        self.gates.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The writes that have begun.
    type Begun = Arc<Mutex<Vec<(u32, WriteTicket)>>>;

    fn write(order: &Arc<WriteOrder>, name: u32, range: Range<u64>, begun: &Begun) {
        let begun = Arc::clone(begun);
        let ticket = order.arrive(range);
        ticket.begin(move |ticket| begun.lock().push((name, ticket)));
    }

    fn end(begun: &Begun, name: u32) {
        let ended = {
            let mut begun = begun.lock();
            let at = begun.iter().position(|(of, _)| *of == name).unwrap();
            begun.remove(at)
        };
        drop(ended);
    }

    fn names(begun: &Begun) -> Vec<u32> {
        let mut names: Vec<_> = begun.lock().iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn writes_that_overlap_wait_for_earlier_ones_and_no_others_do() {
        let (order, begun) = (Arc::<WriteOrder>::default(), Begun::default());
        for (name, range) in [
            (1, 0..10),
            (2, 10..20),
            (3, 5..15),
            (4, 12..13),
            (5, 30..40),
        ] {
            write(&order, name, range, &begun);
        }
        // 3 waits for 1 and 2, and 4 for 2 and 3, though 3 has not begun.
        assert_eq!(names(&begun), [1, 2, 5]);
        end(&begun, 2);
        assert_eq!(names(&begun), [1, 5]);
        end(&begun, 1);
        assert_eq!(names(&begun), [3, 5]);
        end(&begun, 3);
        assert_eq!(names(&begun), [4, 5]);
        end(&begun, 4);
        end(&begun, 5);
        assert!(order.0.lock().arrived.is_empty());
    }
}
