//! The runner's loop: a thread for each request.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use super::{evaluate, files, shell};
use crate::vm::Throttle;
use crate::wire::{Answer, Ask, BEAT_SECONDS, Event, FromGuest, PORT, ToGuest};

/// The way back to the host.
pub struct Host {
    port: Mutex<File>,
    /// Requests that wait for the host to do something.
    waiting: Mutex<HashMap<u64, Sender<()>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    fn send(&self, message: &FromGuest) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        lock(&self.port)
            .write_all(&line)
            .context("writing to the host")
    }
}

/// One request's way back to the host.
pub struct Caller {
    id: u64,
    host: Arc<Host>,
    done: Receiver<()>,
}

impl Caller {
    /// Says what is going on.
    pub fn progress(&self, text: impl Into<String>) -> Result<()> {
        self.event(Event::Progress(text.into()))
    }

    /// Has the host make the disk so fast, and waits until it has.
    pub fn disk(&self, speed: Throttle) -> Result<()> {
        self.event(Event::Disk(speed))?;
        self.done
            .recv_timeout(Duration::from_secs(60))
            .context("expected the host to set the disk's speed")
    }

    fn event(&self, event: Event) -> Result<()> {
        self.host.send(&FromGuest::Event { id: self.id, event })
    }
}

/// As much of a request as any build understands.
#[derive(serde::Deserialize)]
struct Numbered {
    id: u64,
}

/// Serves the host until the channel closes.
pub fn serve() -> Result<()> {
    let path = port()?;
    let port = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    let host = Arc::new(Host {
        port: Mutex::new(port.try_clone()?),
        waiting: Mutex::default(),
    });
    host.send(&FromGuest::Hello {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
    })?;
    let beating = Arc::clone(&host);
    std::thread::spawn(move || {
        while beating.send(&FromGuest::Beat).is_ok() {
            std::thread::sleep(Duration::from_secs(BEAT_SECONDS));
        }
    });
    for line in BufReader::new(port).lines() {
        let line = line.context("reading from the host")?;
        let ToGuest { id, ask } = match serde_json::from_str(&line) {
            Ok(request) => request,
            Err(error) => {
                // A host of another build: told, it does not wait for an answer that will not come.
                let Numbered { id } =
                    serde_json::from_str(&line).context("expected a request from the host")?;
                let result = Err(format!(
                    "expected a request that this guest's program knows: {error}; host and guest are of \
                     different builds, build all with `cargo build --workspace --bins`"
                ));
                host.send(&FromGuest::Answer { id, result })?;
                continue;
            }
        };
        if let Ask::Done = ask {
            if let Some(sender) = lock(&host.waiting).get(&id) {
                // It gave up waiting.
                let _ = sender.send(());
            }
            continue;
        }
        let (sender, done) = mpsc::channel();
        lock(&host.waiting).insert(id, sender);
        let caller = Caller {
            id,
            host: Arc::clone(&host),
            done,
        };
        std::thread::spawn(move || {
            let result = handle(ask, &caller).map_err(|error| format!("{error:#}"));
            lock(&caller.host.waiting).remove(&id);
            // Fails only if the host is gone, and the guest with it.
            let _ = caller.host.send(&FromGuest::Answer { id, result });
        });
    }
    Ok(())
}

fn handle(ask: Ask, caller: &Caller) -> Result<Answer> {
    Ok(match ask {
        Ask::Sh { script, seconds } => {
            Answer::Sh(shell::sh(&script, Duration::from_secs(seconds))?)
        }
        Ask::Push {
            path,
            mode,
            offset,
            part,
        } => {
            files::push(&path, mode, offset, &part)?;
            Answer::Pushed
        }
        Ask::Pull { path, offset } => Answer::Pulled(files::pull(&path, offset)?),
        Ask::Run(plan) => Answer::Ran(Box::new(evaluate::evaluate(&plan, caller)?)),
        // Taken care of by the loop.
        Ask::Done => Answer::Pushed,
    })
}

/// The channel's device, found by the port's name.
fn port() -> Result<PathBuf> {
    let class = "/sys/class/virtio-ports";
    for entry in std::fs::read_dir(class).with_context(|| format!("listing {class}"))? {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == PORT {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    anyhow::bail!("expected a virtio port named {PORT} in {class}, found none")
}
