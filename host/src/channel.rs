//! The channel to a guest's agent: one request at a time of each kind, and nothing believed that cannot be.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use justitia_guest_protocol::memory::{
    Answer, Body, Cached, Lines, Reclaimed, Request, State, Tenants, encode,
};
use serde::{Deserialize, Serialize};

use crate::socket::Socket;

/// The guest is silent if it has answered nothing for so long, milliseconds. Under its own load it may be late.
const SILENT_MS: u64 = 10_000;
/// How often it is asked for its state, milliseconds. It makes one a second.
const ASK_EVERY_MS: u64 = 1000;
/// More lines in a second are a flood: four kinds of requests are answered at most once a second.
const MAX_LINES: u64 = 32;
/// Answers to requests that were given up come all at once when an agent starts, or its guest goes on: at most so many more lines.
const MOST_OWED: u64 = 256;
/// The most that is read of the channel in a second, bytes: so many lines of the greatest length.
const MAX_BYTES: u64 = 128 << 10;
/// A guest that flooded or lied is not listened to for so long, milliseconds.
const IGNORED_MS: u64 = 60_000;
/// Its tenants are asked for so often at most, milliseconds: it looks for them no sooner.
const TENANTS_EVERY_MS: u64 = 2000;
/// A guest that does not tell its tenants is not asked again for so long, milliseconds: its agent may be an older one.
const UNTOLD_MS: u64 = 60_000;
/// More anonymous memory than the VM has cannot be. Some of its memory is the firmware's.
const TOLERANCE: u64 = 64 << 20;

/// What was wrong with what came, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrong {
    /// Lines that were too long.
    pub too_long: u64,
    /// Lines that were no answers.
    pub malformed: u64,
    /// Answers to what was not asked: replays, and answers that came too late.
    pub unasked: u64,
    /// Answers that cannot be true.
    pub impossible: u64,
    /// Seconds with more lines or bytes than answers can be.
    pub floods: u64,
    /// Errors that the guest answered.
    pub errors: u64,
}

/// What the guest's agent is, as far as is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agent {
    /// There is no channel, or nobody could be connected to.
    None,
    /// It answers.
    Answers,
    /// It does not answer, or not yet.
    Silent,
    /// It said what cannot be, or too much: it is not listened to for a minute.
    Ignored,
}

/// A connected channel.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    lines: Lines,
    next_id: u64,
    /// The request for the state that is not answered, and when it was sent.
    asked_state: Option<(u64, u64)>,
    /// The request to reclaim: its id, bytes, and until when it is waited for.
    asked_reclaim: Option<(u64, u64, u64)>,
    /// The request for what it caches: its id, and until when it is waited for.
    asked_cached: Option<(u64, u64)>,
    /// What came of that, or why nothing did.
    cached: Option<Result<Cached, String>>,
    /// The request for its tenants: its id, and until when it is waited for.
    asked_tenants: Option<(u64, u64)>,
    /// What it answered, and when.
    tenants: Option<(u64, Tenants)>,
    /// They are not asked for before.
    tenants_from: u64,
    last_ask: Option<u64>,
    last_answer: u64,
    state: Option<(u64, State)>,
    ignored_until: u64,
    /// Requests that were given up: they are answered yet once somebody reads them.
    owed: u64,
    /// The second in which lines and bytes are counted, and both.
    second: (u64, u64, u64),
    wrong: Wrong,
}

impl Channel {
    /// Connects. `first_id`: requests have ids from there on, so that answers to an earlier connection are known.
    ///
    /// # Errors
    /// As [`Socket::connect`].
    pub fn connect(socket: &Socket, now: u64, first_id: u64) -> std::io::Result<Self> {
        let stream = socket.connect()?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            lines: Lines::new(),
            next_id: first_id,
            asked_state: None,
            asked_reclaim: None,
            asked_cached: None,
            cached: None,
            asked_tenants: None,
            tenants: None,
            tenants_from: 0,
            last_ask: None,
            last_answer: now,
            state: None,
            ignored_until: 0,
            owed: 0,
            second: (0, 0, 0),
            wrong: Wrong::default(),
        })
    }

    /// The id of the next request.
    #[must_use]
    pub const fn next_id(&self) -> u64 {
        self.next_id
    }

    /// What was wrong so far.
    #[must_use]
    pub const fn wrong(&self) -> Wrong {
        self.wrong
    }

    /// What the agent is.
    #[must_use]
    pub const fn agent(&self, now: u64) -> Agent {
        if now < self.ignored_until {
            Agent::Ignored
        } else if self.state.is_none() || self.last_answer + SILENT_MS < now {
            Agent::Silent
        } else {
            Agent::Answers
        }
    }

    /// The last state, and when it came, while the agent is believed.
    #[must_use]
    pub fn state(&self, now: u64) -> Option<(u64, State)> {
        self.state.filter(|_| self.agent(now) == Agent::Answers)
    }

    /// Reads what has come, and asks for the state if it is time. Returns an answer to [`Channel::reclaim`]. Never waits.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn turn(&mut self, now: u64, ram: u64) -> std::io::Result<Option<Reclaimed>> {
        let answer = self.read(now, ram)?;
        if self.asked_state.is_some_and(|(_, at)| at + SILENT_MS < now) {
            self.asked_state = None;
            self.owed = (self.owed + 1).min(MOST_OWED);
        }
        if self.asked_reclaim.is_some_and(|(.., until)| until < now) {
            self.asked_reclaim = None;
        }
        if self.asked_cached.is_some_and(|(_, until)| until < now) {
            self.asked_cached = None;
            self.cached = Some(Err("its agent has not answered within 10 s".to_owned()));
        }
        if self.asked_tenants.is_some_and(|(_, until)| until < now) {
            self.untold(now, UNTOLD_MS);
        }
        let due = self.last_ask.is_none_or(|at| at + ASK_EVERY_MS <= now);
        if due && self.asked_state.is_none() && now >= self.ignored_until {
            let id = self.id();
            if self.send(&Request::State { id })? {
                self.asked_state = Some((id, now));
                self.last_ask = Some(now);
            }
        }
        Ok(answer)
    }

    /// Asks for so many bytes back. Says whether it was asked: not while another request is not answered.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn reclaim(&mut self, now: u64, bytes: u64, within_ms: u32) -> std::io::Result<bool> {
        if self.asked_reclaim.is_some() || self.agent(now) != Agent::Answers {
            return Ok(false);
        }
        let id = self.id();
        let request = Request::Reclaim {
            id,
            bytes,
            within_ms,
        };
        let sent = self.send(&request)?;
        if sent {
            self.asked_reclaim = Some((id, bytes, now + SILENT_MS));
        }
        Ok(sent)
    }

    /// Asks which blocks it caches. Says whether it was asked: not while another such request is not answered.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn ask_cached(&mut self, now: u64, seed: u64) -> std::io::Result<bool> {
        if self.asked_cached.is_some() || self.agent(now) != Agent::Answers {
            return Ok(false);
        }
        let id = self.id();
        let sent = self.send(&Request::Cached { id, seed })?;
        if sent {
            self.cached = None;
            self.asked_cached = Some((id, now + SILENT_MS));
        }
        Ok(sent)
    }

    /// What came of [`Channel::ask_cached`], once: which blocks it caches, or why it does not say.
    pub fn take_cached(&mut self) -> Option<Result<Cached, String>> {
        self.cached.take()
    }

    /// Asks for its tenants, unless it was asked lately.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn ask_tenants(&mut self, now: u64) -> std::io::Result<()> {
        if self.asked_tenants.is_some()
            || now < self.tenants_from
            || self.agent(now) != Agent::Answers
        {
            return Ok(());
        }
        let id = self.id();
        if self.send(&Request::Tenants { id })? {
            self.asked_tenants = Some((id, now + SILENT_MS));
            self.tenants_from = now + TENANTS_EVERY_MS;
        }
        Ok(())
    }

    /// Its tenants, as it told them in the last seconds.
    #[must_use]
    pub fn tenants(&self, now: u64) -> Option<&Tenants> {
        let (at, tenants) = self.tenants.as_ref()?;
        (at + SILENT_MS >= now && self.agent(now) == Agent::Answers).then_some(tenants)
    }

    /// Whether it was asked for its tenants, and may answer yet.
    #[must_use]
    pub fn may_tell_tenants(&self, now: u64) -> bool {
        self.asked_tenants.is_some() && self.agent(now) == Agent::Answers
    }

    /// It tells no tenants, and is not asked for a while.
    fn untold(&mut self, now: u64, wait: u64) {
        self.asked_tenants = None;
        self.tenants = None;
        self.tenants_from = now + wait;
    }

    const fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Whether all of it was taken. A guest that reads nothing has its buffer full.
    fn send(&mut self, request: &Request) -> std::io::Result<bool> {
        let line = encode(request);
        match self.stream.write(&line) {
            Ok(written) if written == line.len() => Ok(true),
            // The rest of a line that is cut is lost: the next one begins with it.
            Ok(_) => Err(std::io::Error::other("the guest does not read")),
            Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    fn read(&mut self, now: u64, ram: u64) -> std::io::Result<Option<Reclaimed>> {
        let mut answer = None;
        let mut part = [0; 16 << 10];
        loop {
            if self.second.0 != now / 1000 {
                self.owed = self.owed.saturating_sub(self.second.2);
                self.second = (now / 1000, 0, 0);
            }
            // What is above the bound stays in the socket, and holds up the guest alone.
            if self.second.1 > MAX_BYTES || self.second.2 > MAX_LINES + self.owed {
                self.flooded(now);
                return Ok(answer);
            }
            let count = match self.stream.read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(answer),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.second.1 += count as u64;
            for line in self.lines.push(part.get(..count).unwrap_or_default()) {
                self.second.2 += 1;
                match line {
                    Err(_) => self.wrong.too_long += 1,
                    Ok(line) => answer = self.heard(now, ram, &line).or(answer),
                }
            }
        }
    }

    fn flooded(&mut self, now: u64) {
        if self.ignored_until <= now {
            self.wrong.floods += 1;
        }
        self.ignored_until = now + IGNORED_MS;
        self.state = None;
    }

    /// A line. Returns what was reclaimed, if it says so.
    fn heard(&mut self, now: u64, ram: u64, line: &[u8]) -> Option<Reclaimed> {
        let Ok(answer) = Answer::decode(line) else {
            self.wrong.malformed += 1;
            return None;
        };
        if self.asked_tenants.is_some_and(|(id, _)| id == answer.id) {
            self.heard_tenants(now, ram, answer.body);
            return None;
        }
        let to_state = self.asked_state.is_some_and(|(id, _)| id == answer.id);
        let to_reclaim = self.asked_reclaim.filter(|(id, ..)| *id == answer.id);
        let to_cached = self.asked_cached.is_some_and(|(id, _)| id == answer.id);
        match answer.body {
            Body::State(state) if to_state => {
                self.asked_state = None;
                if plausible(&state, ram) {
                    self.last_answer = now;
                    self.state = Some((now, state));
                } else {
                    self.wrong.impossible += 1;
                    self.ignored_until = now + IGNORED_MS;
                    self.state = None;
                }
                None
            }
            Body::Reclaimed(reclaimed) if to_reclaim.is_some() => {
                self.asked_reclaim = None;
                self.last_answer = now;
                let most = to_reclaim.map_or(0, |(_, bytes, _)| bytes);
                Some(Reclaimed {
                    bytes: reclaimed.bytes.min(most),
                    ..reclaimed
                })
            }
            Body::Cached(cached) if to_cached => {
                self.asked_cached = None;
                self.last_answer = now;
                self.cached = Some(Ok(cached));
                None
            }
            Body::Error(text) if to_cached => {
                self.wrong.errors += 1;
                self.asked_cached = None;
                self.cached = Some(Err(format!("its agent answers: {text}")));
                None
            }
            Body::Error(_) if to_state || to_reclaim.is_some() => {
                self.wrong.errors += 1;
                if to_state {
                    self.asked_state = None;
                }
                to_reclaim.map(|_| {
                    self.asked_reclaim = None;
                    Reclaimed { bytes: 0, free: 0 }
                })
            }
            _ => {
                self.wrong.unasked += 1;
                None
            }
        }
    }

    /// An answer to the request for its tenants. It says nothing of the state: who answers this alone is silent.
    fn heard_tenants(&mut self, now: u64, ram: u64, body: Body) {
        let most = ram.saturating_add(TOLERANCE);
        match body {
            Body::Tenants(tenants) if tenants.list().iter().all(|of| of.file <= most) => {
                self.asked_tenants = None;
                self.tenants = Some((now, tenants));
            }
            Body::Tenants(_) => {
                self.wrong.impossible += 1;
                self.untold(now, IGNORED_MS);
            }
            Body::Error(_) => {
                self.wrong.errors += 1;
                self.untold(now, UNTOLD_MS);
            }
            _ => self.wrong.unasked += 1,
        }
    }
}

/// Whether a state can be true of a VM with so much memory. Counters may be any: after a reboot they begin anew.
fn plausible(state: &State, ram: u64) -> bool {
    let most = ram.saturating_add(TOLERANCE);
    let parts = [
        state.total,
        state.free,
        state.available,
        state.file,
        state.mapped,
        state.dirty,
        state.slab_reclaimable,
        state.anonymous,
        state.unreclaimable,
        state.worth,
    ];
    let fits = parts.iter().all(|part| *part <= most);
    state.total > 0 && fits && state.free <= state.total
}

#[cfg(test)]
mod tests;
