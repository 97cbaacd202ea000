//! The channel to the guest's runner: requests go out, a thread reads what comes back.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::VmError;
use super::process::{Exit, stderr_log};
use super::qemu::console_log;
use crate::protocol::{Event, GuestMessage, HostMessage, Response};

/// The longest message that a guest may send, bytes: a report of a run has some hundred KiB.
const MAX_LINE: u64 = 64 << 20;

/// After the channel closes, QEMU ends within this.
const END: Duration = Duration::from_secs(5);

/// What comes back for a request.
pub(super) enum Incoming {
    /// Its result.
    Response(Result<Response, String>),
    /// Something before that.
    Event(Event),
}

/// The channel.
pub(super) struct Channel {
    writer: Mutex<UnixStream>,
    /// The requests without a response, by number.
    pending: Mutex<HashMap<u64, Sender<Incoming>>>,
    kernel: Mutex<Option<String>>,
    last_message: Mutex<Instant>,
    next_id: AtomicU64,
    exit: Exit,
    /// The machine's directory on the host.
    dir: PathBuf,
    /// After so long without a message the guest counts as hung.
    pub heartbeat_timeout: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channel {
    /// Over this stream.
    pub(super) fn new(
        stream: UnixStream,
        exit: Exit,
        dir: &Path,
        heartbeat_timeout: Duration,
    ) -> Result<Arc<Self>, VmError> {
        let channel = Arc::new(Self {
            writer: Mutex::new(stream.try_clone()?),
            pending: Mutex::default(),
            kernel: Mutex::default(),
            last_message: Mutex::new(Instant::now()),
            next_id: AtomicU64::new(1),
            exit,
            dir: dir.to_owned(),
            heartbeat_timeout,
        });
        let reader = Arc::clone(&channel);
        std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || reader.read(stream))?;
        Ok(channel)
    }

    /// The guest's kernel release; `None` before its first message.
    pub(super) fn kernel(&self) -> Option<String> {
        lock(&self.kernel).clone()
    }

    /// A new request's number, and where its response comes.
    pub(super) fn begin(&self) -> (u64, Receiver<Incoming>) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, incoming) = mpsc::channel();
        lock(&self.pending).insert(id, sender);
        (id, incoming)
    }

    /// The request is over.
    pub(super) fn end(&self, id: u64) {
        lock(&self.pending).remove(&id);
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &HostMessage) -> Result<(), VmError> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        Ok(lock(&self.writer).write_all(&line)?)
    }

    /// The error that a closed channel is a sign of.
    pub(super) fn closed(&self) -> VmError {
        let begin = Instant::now();
        while self.exit.status().is_none() && begin.elapsed() < END {
            std::thread::sleep(Duration::from_millis(20));
        }
        match self.alive(self.heartbeat_timeout) {
            Err(error) => error,
            Ok(()) => std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into(),
        }
    }

    /// An error if the guest is dead, or silent for longer than this.
    pub(super) fn alive(&self, timeout: Duration) -> Result<(), VmError> {
        if let Some(status) = self.exit.status() {
            let console = self.console();
            return Err(if is_panic(&console) {
                VmError::Panic { console }
            } else {
                VmError::Exit {
                    status: status.to_string(),
                    stderr: tail(&stderr_log(&self.dir), 2048),
                    console,
                }
            });
        }
        let silence = lock(&self.last_message).elapsed();
        if silence > timeout {
            return Err(VmError::Hang {
                silence,
                console: self.console(),
            });
        }
        Ok(())
    }

    /// The error of a request that took too long.
    pub(super) fn slow(&self, what: &str, limit: Duration) -> VmError {
        VmError::Slow {
            what: what.to_owned(),
            limit,
            console: self.console(),
        }
    }

    /// The end of the guest's console.
    pub(super) fn console(&self) -> String {
        tail(&console_log(&self.dir), 6000)
    }

    fn read(&self, stream: UnixStream) {
        let mut lines = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut lines).take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            // A line cut short by a dying guest: its end says more.
            let Ok(message) = serde_json::from_slice(&line) else {
                continue;
            };
            *lock(&self.last_message) = Instant::now();
            let (id, incoming) = match message {
                GuestMessage::Ready { kernel } => {
                    *lock(&self.kernel) = Some(kernel);
                    continue;
                }
                GuestMessage::Heartbeat => continue,
                GuestMessage::Response { id, result } => (id, Incoming::Response(result)),
                GuestMessage::Event { id, event } => (id, Incoming::Event(event)),
            };
            if let Some(sender) = lock(&self.pending).get(&id) {
                // Fails only if the request ran out of time.
                let _ = sender.send(incoming);
            }
        }
        // The requests that still wait find their senders gone.
        lock(&self.pending).clear();
    }
}

fn is_panic(console: &str) -> bool {
    console.contains("Kernel panic - not syncing")
}

/// The last bytes of a file; empty if there is none.
fn tail(path: &Path, bytes: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(bytes);
        file.seek(SeekFrom::Start(from))?;
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        Ok(content)
    };
    String::from_utf8_lossy(&read().unwrap_or_default())
        .replace('\r', "")
        .trim()
        .to_owned()
}
