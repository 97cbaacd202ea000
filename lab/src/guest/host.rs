//! The guest's side of the channel to the host.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::protocol::{Event, GuestMessage, Response};
use crate::spec::Throttle;

/// The channel to the host.
pub(super) struct HostPort {
    port: Mutex<File>,
    /// Requests that are being handled, each with the way to tell it that the host did what its event requested.
    requests: Mutex<HashMap<u64, Sender<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HostPort {
    /// Over this device.
    pub(super) fn new(port: File) -> Arc<Self> {
        Arc::new(Self {
            port: Mutex::new(port),
            requests: Mutex::default(),
        })
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &GuestMessage) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        lock(&self.port)
            .write_all(&line)
            .context("writing to the host")
    }

    /// A request begins.
    pub(super) fn begin(self: &Arc<Self>, id: u64) -> RequestContext {
        let (sender, done) = mpsc::channel();
        lock(&self.requests).insert(id, sender);
        RequestContext {
            id,
            host: Arc::clone(self),
            done,
        }
    }

    /// The host did what an event of this request requested.
    pub(super) fn done(&self, id: u64) {
        if let Some(sender) = lock(&self.requests).get(&id) {
            // Fails only if the request gave up waiting.
            let _ = sender.send(());
        }
    }
}

/// A request that is being handled, and its way back to the host.
pub(super) struct RequestContext {
    id: u64,
    host: Arc<HostPort>,
    done: Receiver<()>,
}

impl RequestContext {
    /// Says what is going on.
    pub(super) fn progress(&self, text: impl Into<String>) -> Result<()> {
        self.event(Event::Progress(text.into()))
    }

    /// Has the host set the disk's speed, and waits until it has.
    pub(super) fn set_disk_speed(&self, speed: Throttle) -> Result<()> {
        self.event(Event::Disk(speed))?;
        self.done
            .recv_timeout(Duration::from_secs(60))
            .context("expected the host to set the disk's speed")
    }

    fn event(&self, event: Event) -> Result<()> {
        self.host.send(&GuestMessage::Event { id: self.id, event })
    }

    /// The request ends.
    pub(super) fn finish(self, result: Result<Response>) {
        let result = result.map_err(|error| format!("{error:#}"));
        let Self { id, host, .. } = self;
        lock(&host.requests).remove(&id);
        // Fails only if the host is gone, and the guest with it.
        let _ = host.send(&GuestMessage::Response { id, result });
    }
}
