//! What can be done in a guest: run scripts, write files.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::channel::{Channel, Incoming};
use super::error::VmError;
use super::process::Exit;
use crate::protocol::{CHUNK, Event, HostMessage, Request, Response, ShResult};

/// A script's time, where nothing else is said.
const SCRIPT: Duration = Duration::from_secs(60);
/// The longest that a part of a file may take.
const FILE: Duration = Duration::from_secs(60);
/// How often a guest that a request waits for is checked.
const CHECK: Duration = Duration::from_millis(200);

/// A running guest. Clones speak to the same guest, and may do so at the same time.
#[derive(Clone)]
pub struct Guest {
    channel: Arc<Channel>,
}

impl Guest {
    pub(super) fn new(
        stream: UnixStream,
        exit: Exit,
        dir: &Path,
        heartbeat_timeout: Duration,
    ) -> Result<Self, VmError> {
        Ok(Self {
            channel: Channel::new(stream, exit, dir, heartbeat_timeout)?,
        })
    }

    /// Waits for the guest's first message.
    pub(super) fn wait_until_ready(&self, limit: Duration) -> Result<(), VmError> {
        let begin = Instant::now();
        while self.channel.kernel().is_none() {
            self.channel.alive(limit)?;
            if begin.elapsed() > limit {
                return Err(self.channel.slow("start its runner", limit));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The guest's kernel release.
    #[must_use]
    pub fn kernel(&self) -> String {
        self.channel.kernel().unwrap_or_default()
    }

    /// Runs a shell script (busybox sh) as root and waits for its end, at most a minute.
    ///
    /// What it leaves in the background runs on. An exit status other than 0 is not an error here:
    /// see [`Guest::ok`].
    ///
    /// # Errors
    /// The guest cannot start it, is dead, hangs or takes too long.
    pub fn sh(&self, script: &str) -> Result<ShResult, VmError> {
        self.sh_within(script, SCRIPT)
    }

    /// The same with another limit, in whole seconds.
    ///
    /// # Errors
    /// See [`Guest::sh`].
    pub fn sh_within(&self, script: &str, limit: Duration) -> Result<ShResult, VmError> {
        let request = Request::Sh {
            script: script.to_owned(),
            seconds: limit.as_secs().max(1),
        };
        // The guest itself enforces the limit; the host's is for a guest that does not.
        let limit = limit + self.channel.heartbeat_timeout;
        match self.request(request, limit, "run a script", &mut |_| Ok(()))? {
            Response::Sh(result) => Ok(result),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs a script that must succeed, and returns its standard output.
    ///
    /// # Errors
    /// See [`Guest::sh`]; and the script's exit status is not 0.
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
    ///
    /// # Errors
    /// The guest cannot write it, is dead, hangs or takes too long.
    pub fn push(&self, path: &str, mode: u32, content: &[u8]) -> Result<(), VmError> {
        let mut offset = 0;
        loop {
            let rest = content.get(offset..).unwrap_or_default();
            let part = rest.get(..rest.len().min(CHUNK)).unwrap_or_default();
            let request = Request::Push {
                path: path.to_owned(),
                mode,
                offset: offset as u64,
                part: BASE64.encode(part),
            };
            match self.request(request, FILE, "write a file", &mut |_| Ok(()))? {
                Response::Pushed => {}
                other => return Err(unexpected(&other)),
            }
            offset += part.len();
            if offset >= content.len() {
                return Ok(());
            }
        }
    }

    /// Sends a request and waits for its response; events before that go to `on_event`.
    pub(crate) fn request(
        &self,
        request: Request,
        limit: Duration,
        what: &str,
        on_event: &mut dyn FnMut(Event) -> Result<(), VmError>,
    ) -> Result<Response, VmError> {
        let (id, incoming) = self.channel.begin();
        let sent = self.channel.send(&HostMessage { id, request });
        let response = match sent {
            Ok(()) => self.wait(id, limit, what, on_event, &incoming),
            // The guest's end says more, if it has ended.
            Err(error) => Err(match self.channel.closed() {
                VmError::Host(_) => error,
                end => end,
            }),
        };
        self.channel.end(id);
        response
    }

    fn wait(
        &self,
        id: u64,
        limit: Duration,
        what: &str,
        on_event: &mut dyn FnMut(Event) -> Result<(), VmError>,
        incoming: &Receiver<Incoming>,
    ) -> Result<Response, VmError> {
        let begin = Instant::now();
        loop {
            match incoming.recv_timeout(CHECK) {
                Ok(Incoming::Response(result)) => return result.map_err(VmError::Guest),
                Ok(Incoming::Event(event)) => {
                    let wants_answer = matches!(event, Event::Disk(_));
                    on_event(event)?;
                    if wants_answer {
                        let request = Request::Done;
                        self.channel.send(&HostMessage { id, request })?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.channel.alive(self.channel.heartbeat_timeout)?;
                    if begin.elapsed() > limit {
                        return Err(self.channel.slow(what, limit));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.channel.closed()),
            }
        }
    }
}

fn unexpected(response: &Response) -> VmError {
    VmError::Guest(format!(
        "expected the response to another request, found {response:?}"
    ))
}
