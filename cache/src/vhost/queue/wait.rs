//! Waiting for the guest and for what is in flight.

use super::QueueWorker;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::AsFd;

impl QueueWorker {
    /// Sleeps until the guest has requests that there is room for, something in flight has come back, or the queue is to
    /// stop.
    pub(super) fn sleep(&self, stopping: bool) {
        if !self.io.may_sleep() {
            return;
        }
        let wanted = !stopping && self.has_capacity();
        let kick = wanted.then(|| self.setup.kick.as_fd());
        let stop = (!stopping).then(|| self.stop.event.as_fd());
        let [completions, ring] = self.io.events();
        let events = [kick, stop, completions, ring];
        let mut waiting: Vec<PollFd<'_>> = events
            .iter()
            .flatten()
            .map(|event| PollFd::from_borrowed_fd(*event, PollFlags::IN))
            .collect();
        // A signal is as good as an event: the loop looks at everything.
        if let Err(e) = poll(&mut waiting, None)
            && e != Errno::INTR
        {
            tracing::error!("a queue cannot wait: {e}");
        }
        self.io.awake();
        if wanted {
            // What was signalled is about to be looked at; there may be nothing to read.
            let _ = rustix::io::read(&*self.setup.kick, &mut [0; 8]);
        }
    }
}
