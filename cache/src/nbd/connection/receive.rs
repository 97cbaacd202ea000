//! Waiting for the client and for what is in flight.

#![expect(
    clippy::indexing_slicing,
    reason = "what was filled of a payload is at most its length"
)]

use super::Connection;
use crate::nbd::input::INPUT;
use std::io;

impl Connection<'_> {
    /// Waits for something to do, and receives what has arrived.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        let want = self.has_capacity();
        let idle = self.queue.len() == 0 && !self.has_unsent();
        if want && idle {
            // Nothing else is likely: the receive itself may wait, for a while. That is faster than to poll.
            match self.receive_now(true) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        // TLS may hold received bytes, of which no poll would tell.
        if want && self.transport.is_secure() {
            match self.receive_now(false) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        let wake = !self.leaving && !self.closing && self.entry.wants_to_know();
        if wake && self.entry.is_leaving() {
            return Ok(());
        }
        if !self.queue.may_sleep() {
            return Ok(());
        }
        let limit = self.context.limits.send;
        let deadline = self.stalled.map(|since| since + limit);
        let unsent = self.has_unsent();
        let [completions, ring] = self.queue.events();
        let events = [completions, ring, wake.then(|| self.context.waker.event())];
        let ready = self.transport.wait(want, unsent, events, deadline);
        self.queue.awake();
        let ready = ready.map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => io::Error::new(
                e.kind(),
                format!("the client has taken none of its replies for {limit:?}"),
            ),
            _ => e,
        })?;
        if ready.readable && want {
            match self.receive_now(false) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        Ok(())
    }

    fn receive_now(&mut self, wait: bool) -> io::Result<()> {
        // A payload is received where it is needed, unless it is small.
        let count = match &mut self.partial {
            Some(partial) if partial.payload.len() - partial.filled >= INPUT => {
                let count = self
                    .transport
                    .receive(&mut partial.payload[partial.filled..], wait)?;
                partial.filled += count;
                count
            }
            _ => {
                let count = self.transport.receive(self.input.free_space(), wait)?;
                self.input.arrived(count);
                count
            }
        };
        if count == 0 {
            // The client has closed the connection: a partial request stays partial.
            self.closing = true;
        }
        Ok(())
    }
}
