//! The host's end of the channel to the guest's runner.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{VmError, qemu};
use crate::wire::{Answer, Ask, CHUNK, Event, FromGuest, ShResult, ToGuest};

/// The longest that a part of a file may take.
const FILE: Duration = Duration::from_secs(60);

/// A running guest, to whoever wants something done in it. Clones speak to the same guest, and may
/// do so at the same time.
#[derive(Clone)]
pub struct Guest {
    shared: Arc<Shared>,
}

struct Shared {
    writer: Mutex<UnixStream>,
    waiting: Mutex<HashMap<u64, Sender<Incoming>>>,
    kernel: Mutex<Option<String>>,
    heard: Mutex<Instant>,
    next: AtomicU64,
    process: qemu::Watch,
    dir: PathBuf,
    patience: Duration,
}

enum Incoming {
    Answer(Result<Answer, String>),
    Event(Event),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guest {
    pub(super) fn new(
        stream: UnixStream,
        process: qemu::Watch,
        dir: &Path,
        patience: Duration,
    ) -> Result<Self, VmError> {
        let shared = Arc::new(Shared {
            writer: Mutex::new(stream.try_clone()?),
            waiting: Mutex::default(),
            kernel: Mutex::default(),
            heard: Mutex::new(Instant::now()),
            next: AtomicU64::new(1),
            process,
            dir: dir.to_owned(),
            patience,
        });
        let reader = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("guest".to_owned())
            .spawn(move || reader.read(stream))?;
        Ok(Self { shared })
    }

    /// Waits for the guest's first message.
    pub(super) fn greet(&self, limit: Duration) -> Result<(), VmError> {
        let begin = Instant::now();
        while lock(&self.shared.kernel).is_none() {
            self.alive(limit)?;
            if begin.elapsed() > limit {
                return Err(self.slow("start its runner", limit));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The guest's kernel release.
    #[must_use]
    pub fn kernel(&self) -> String {
        lock(&self.shared.kernel).clone().unwrap_or_default()
    }

    /// Runs a shell script (busybox sh) as root and waits for its end, at most a minute.
    ///
    /// What it leaves in the background runs on. An exit status other than 0 is not an error here:
    /// see [`Guest::ok`].
    pub fn sh(&self, script: &str) -> Result<ShResult, VmError> {
        self.sh_within(script, Duration::from_secs(60))
    }

    /// The same with a limit of its own, in whole seconds.
    pub fn sh_within(&self, script: &str, limit: Duration) -> Result<ShResult, VmError> {
        let ask = Ask::Sh {
            script: script.to_owned(),
            seconds: limit.as_secs().max(1),
        };
        // The guest itself keeps the limit; the host's is for a guest that does not.
        match self.request(
            ask,
            limit + self.shared.patience,
            "run a script",
            &mut |_| Ok(()),
        )? {
            Answer::Sh(result) => Ok(result),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs a script that must succeed, and returns its standard output.
    pub fn ok(&self, script: &str) -> Result<String, VmError> {
        let result = self.sh(script)?;
        if result.status == 0 {
            return Ok(result.stdout);
        }
        let ShResult {
            status,
            timed_out,
            stdout,
            stderr,
        } = result;
        Err(VmError::Guest(format!(
            "expected the script to succeed, it ended with status {status}{}\n{script}\nstdout: {stdout}\nstderr: {stderr}",
            if timed_out {
                " because its time was up"
            } else {
                ""
            },
        )))
    }

    /// Writes a file in the guest.
    pub fn push(&self, path: &str, mode: u32, content: &[u8]) -> Result<(), VmError> {
        let mut offset = 0;
        loop {
            let rest = content.get(offset..).unwrap_or_default();
            let part = rest.get(..rest.len().min(CHUNK)).unwrap_or_default();
            let ask = Ask::Push {
                path: path.to_owned(),
                mode,
                offset: offset as u64,
                part: BASE64.encode(part),
            };
            match self.request(ask, FILE, "write a file", &mut |_| Ok(()))? {
                Answer::Pushed => {}
                other => return Err(unexpected(&other)),
            }
            offset += part.len();
            if offset >= content.len() {
                return Ok(());
            }
        }
    }

    /// Reads a file from the guest.
    pub fn pull(&self, path: &str) -> Result<Vec<u8>, VmError> {
        let mut content = Vec::new();
        loop {
            let ask = Ask::Pull {
                path: path.to_owned(),
                offset: content.len() as u64,
            };
            match self.request(ask, FILE, "read a file", &mut |_| Ok(()))? {
                Answer::Pulled(part) => {
                    let part = BASE64.decode(part).map_err(|error| {
                        VmError::Guest(format!("expected base64 from the guest: {error}"))
                    })?;
                    if part.is_empty() {
                        return Ok(content);
                    }
                    content.extend(part);
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Asks for something and waits until it is done, handling what happens on the way.
    pub(crate) fn request(
        &self,
        ask: Ask,
        limit: Duration,
        what: &str,
        on_event: &mut dyn FnMut(Event) -> Result<(), VmError>,
    ) -> Result<Answer, VmError> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let (sender, incoming) = mpsc::channel();
        lock(&self.shared.waiting).insert(id, sender);
        let answer = self.talk(id, ask, limit, what, on_event, &incoming);
        lock(&self.shared.waiting).remove(&id);
        answer
    }

    fn talk(
        &self,
        id: u64,
        ask: Ask,
        limit: Duration,
        what: &str,
        on_event: &mut dyn FnMut(Event) -> Result<(), VmError>,
        incoming: &Receiver<Incoming>,
    ) -> Result<Answer, VmError> {
        let begin = Instant::now();
        if let Err(error) = self.send(&ToGuest { id, ask }) {
            self.await_end();
            self.alive(self.shared.patience)?;
            return Err(error);
        }
        loop {
            match incoming.recv_timeout(Duration::from_millis(200)) {
                Ok(Incoming::Answer(result)) => return result.map_err(VmError::Guest),
                Ok(Incoming::Event(event)) => {
                    let wants_answer = matches!(event, Event::Disk(_));
                    on_event(event)?;
                    if wants_answer {
                        self.send(&ToGuest { id, ask: Ask::Done })?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.alive(self.shared.patience)?;
                    if begin.elapsed() > limit {
                        return Err(self.slow(what, limit));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.await_end();
                    self.alive(self.shared.patience)?;
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
            }
        }
    }

    fn send(&self, message: &ToGuest) -> Result<(), VmError> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        Ok(lock(&self.shared.writer).write_all(&line)?)
    }

    /// The channel closed: QEMU is about to end.
    fn await_end(&self) {
        let begin = Instant::now();
        while self.shared.process.ended().is_none() && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// An error if the guest is dead or silent.
    fn alive(&self, patience: Duration) -> Result<(), VmError> {
        if let Some(status) = self.shared.process.ended() {
            let console = self.console();
            return Err(if is_panic(&console) {
                VmError::Panic { console }
            } else {
                VmError::Exit {
                    status: status.to_string(),
                    stderr: tail(&qemu::stderr_log(&self.shared.dir), 2048),
                    console,
                }
            });
        }
        let silence = lock(&self.shared.heard).elapsed();
        if silence > patience {
            return Err(VmError::Hang {
                silence,
                console: self.console(),
            });
        }
        Ok(())
    }

    fn slow(&self, what: &str, limit: Duration) -> VmError {
        VmError::Slow {
            what: what.to_owned(),
            limit,
            console: self.console(),
        }
    }

    /// The end of the guest's console.
    #[must_use]
    pub fn console(&self) -> String {
        tail(&qemu::console_log(&self.shared.dir), 6000)
    }
}

impl Shared {
    fn read(&self, stream: UnixStream) {
        let mut lines = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            match lines.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            // A line cut short by a dying guest: its end says more.
            let Ok(message) = serde_json::from_slice(&line) else {
                continue;
            };
            *lock(&self.heard) = Instant::now();
            let (id, incoming) = match message {
                FromGuest::Hello { kernel } => {
                    *lock(&self.kernel) = Some(kernel);
                    continue;
                }
                FromGuest::Beat => continue,
                FromGuest::Answer { id, result } => (id, Incoming::Answer(result)),
                FromGuest::Event { id, event } => (id, Incoming::Event(event)),
            };
            if let Some(sender) = lock(&self.waiting).get(&id) {
                // Nobody waits any more: the request ran out of time.
                let _ = sender.send(incoming);
            }
        }
        // Whoever still waits learns that nothing will come.
        lock(&self.waiting).clear();
    }
}

fn unexpected(answer: &Answer) -> VmError {
    VmError::Guest(format!(
        "expected the answer to another question, found {answer:?}"
    ))
}

fn is_panic(console: &str) -> bool {
    console.contains("Kernel panic - not syncing")
}

/// The last bytes of a file, from the beginning of a line; empty if there is none.
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
