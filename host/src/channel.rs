//! The channel to a guest's agent: at most one open request of each kind, and no answer is believed that cannot be true.

use std::io::{ErrorKind, Read, Write};
use std::mem::discriminant;
use std::os::unix::net::UnixStream;

use justitia_guest_protocol::memory::{
    Answer, Body, Cached, ErrorText, Lines, Reclaimed, Request, State, Tenants, encode,
};
use serde::{Deserialize, Serialize};

use crate::socket::Socket;

/// A guest without an answer for this long is silent, milliseconds. Under its own load it may be late.
const SILENT_MS: u64 = 10_000;
/// The interval between requests for its state, milliseconds. The agent makes one state a second.
const ASK_EVERY_MS: u64 = 1000;
/// More lines in a second are a flood: there are four kinds of requests, each answered at most once a second.
const MAX_LINES: u64 = 32;
/// The most late answers that do not count as a flood. They arrive together when an agent starts or its guest is resumed.
const MOST_OWED: u64 = 256;
/// The most that is read from the channel in a second, bytes: [`MAX_LINES`] lines of the greatest length.
const MAX_BYTES: u64 = 128 << 10;
/// How long a guest that flooded or lied is ignored, milliseconds.
const IGNORED_MS: u64 = 60_000;
/// The least interval between requests for its tenants, milliseconds: the agent does not refresh them sooner.
const TENANTS_EVERY_MS: u64 = 2000;
/// How long a guest without an answer about its tenants is not asked again, milliseconds: its agent may be an older one.
const NO_TENANTS_MS: u64 = 60_000;
/// A guest's amounts may exceed the VM's memory by this, bytes. Some of its memory is the firmware's.
const TOLERANCE: u64 = 64 << 20;

/// Counts of faulty input from the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrong {
    /// Lines that are too long.
    pub too_long: u64,
    /// Lines that are no answers.
    pub malformed: u64,
    /// Answers without an open request: replays and late answers.
    pub unasked: u64,
    /// Answers that cannot be true.
    pub impossible: u64,
    /// Seconds with more lines or bytes than answers can have.
    pub floods: u64,
    /// Errors that the guest answered.
    pub errors: u64,
}

/// The state of the guest's agent, as the host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agent {
    /// There is no channel, or the connection failed.
    None,
    /// It answers.
    Answers,
    /// It does not answer, or not yet.
    Silent,
    /// It sent impossible values or a flood: it is ignored for a minute.
    Ignored,
}

/// A request without an answer yet.
#[derive(Clone, Copy, Debug)]
struct Asked {
    id: u64,
    what: What,
    /// When it is given up.
    until: u64,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug)]
enum What {
    State,
    /// To give back this many bytes.
    Reclaim(u64),
    Cached,
    Tenants,
}

/// A connected channel.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    lines: Lines,
    next_id: u64,
    /// At most one of each kind.
    asked: Vec<Asked>,
    /// The blocks that it caches, or why it does not say.
    cached: Option<Result<Cached, String>>,
    /// The time of its answer about its tenants, and these.
    tenants: Option<(u64, Tenants)>,
    /// The tenants are not asked for before this time.
    tenants_from: u64,
    last_ask: Option<u64>,
    last_answer: u64,
    state: Option<(u64, State)>,
    ignored_until: u64,
    /// Requests that were given up: their answers may still come.
    owed: u64,
    /// A second, and the bytes and lines read in it.
    second: (u64, u64, u64),
    wrong: Wrong,
}

impl Channel {
    /// Connects. Ids of requests begin after `first_id`: so answers to an earlier connection are recognised.
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
            asked: Vec::new(),
            cached: None,
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

    /// The faults so far.
    #[must_use]
    pub const fn wrong(&self) -> Wrong {
        self.wrong
    }

    /// The state of the agent.
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

    /// When the last state arrived, and this state, while the agent is believed.
    #[must_use]
    pub fn state(&self, now: u64) -> Option<(u64, State)> {
        self.state.filter(|_| self.agent(now) == Agent::Answers)
    }

    /// Reads the input, and asks for the state when it is due. Returns an answer to [`Channel::reclaim`]. Never waits.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn turn(&mut self, now: u64, ram: u64) -> std::io::Result<Option<Reclaimed>> {
        let answer = self.read(now, ram)?;
        self.give_up(now);
        let due = self.last_ask.is_none_or(|at| at + ASK_EVERY_MS <= now);
        if due
            && now >= self.ignored_until
            && self.ask(now, What::State, |id| Request::State { id })?
        {
            self.last_ask = Some(now);
        }
        Ok(answer)
    }

    /// Asks for this many bytes back. Returns whether the request was sent: not while another one is open.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn reclaim(&mut self, now: u64, bytes: u64, within_ms: u32) -> std::io::Result<bool> {
        if self.agent(now) != Agent::Answers {
            return Ok(false);
        }
        self.ask(now, What::Reclaim(bytes), |id| Request::Reclaim {
            id,
            bytes,
            within_ms,
        })
    }

    /// Asks which blocks it caches. Returns whether the request was sent: not while another such request is open.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn ask_cached(&mut self, now: u64, seed: u64) -> std::io::Result<bool> {
        if self.agent(now) != Agent::Answers {
            return Ok(false);
        }
        let asked = self.ask(now, What::Cached, |id| Request::Cached { id, seed })?;
        if asked {
            self.cached = None;
        }
        Ok(asked)
    }

    /// The answer to [`Channel::ask_cached`], once: the blocks that it caches, or why it does not say.
    pub fn take_cached(&mut self) -> Option<Result<Cached, String>> {
        self.cached.take()
    }

    /// Asks for its tenants, unless it was asked recently.
    ///
    /// # Errors
    /// If the channel is closed.
    pub fn ask_tenants(&mut self, now: u64) -> std::io::Result<()> {
        if now < self.tenants_from || self.agent(now) != Agent::Answers {
            return Ok(());
        }
        if self.ask(now, What::Tenants, |id| Request::Tenants { id })? {
            self.tenants_from = now + TENANTS_EVERY_MS;
        }
        Ok(())
    }

    /// Its tenants, if the answer is at most 10 s old.
    #[must_use]
    pub fn tenants(&self, now: u64) -> Option<&Tenants> {
        let (at, tenants) = self.tenants.as_ref()?;
        (at + SILENT_MS >= now && self.agent(now) == Agent::Answers).then_some(tenants)
    }

    /// Whether an answer about its tenants may still come.
    #[must_use]
    pub fn may_tell_tenants(&self, now: u64) -> bool {
        self.is_asked(What::Tenants) && self.agent(now) == Agent::Answers
    }

    /// It tells no tenants: it is not asked again for `wait` ms.
    fn no_tenants(&mut self, now: u64, wait: u64) {
        self.tenants = None;
        self.tenants_from = now + wait;
    }

    /// Whether a request of this kind is open.
    fn is_asked(&self, what: What) -> bool {
        let kind = discriminant(&what);
        self.asked.iter().any(|one| discriminant(&one.what) == kind)
    }

    /// Sends a request, unless one of its kind is open. Returns whether it was sent.
    fn ask(
        &mut self,
        now: u64,
        what: What,
        request: impl FnOnce(u64) -> Request,
    ) -> std::io::Result<bool> {
        if self.is_asked(what) {
            return Ok(false);
        }
        self.next_id += 1;
        let id = self.next_id;
        let sent = self.send(&request(id))?;
        if sent {
            let until = now + SILENT_MS;
            self.asked.push(Asked { id, what, until });
        }
        Ok(sent)
    }

    /// Gives up late requests.
    fn give_up(&mut self, now: u64) {
        while let Some(index) = self.asked.iter().position(|one| one.until < now) {
            match self.asked.swap_remove(index).what {
                What::State => self.owed = (self.owed + 1).min(MOST_OWED),
                What::Reclaim(_) => {}
                What::Cached => {
                    self.cached = Some(Err("its agent has not answered within 10 s".to_owned()));
                }
                What::Tenants => self.no_tenants(now, NO_TENANTS_MS),
            }
        }
    }

    /// Returns whether the whole line was taken. The buffer of a guest that does not read is full.
    fn send(&mut self, request: &Request) -> std::io::Result<bool> {
        let line = encode(request);
        match self.stream.write(&line) {
            Ok(written) if written == line.len() => Ok(true),
            // The rest of a cut line is lost: the next line would continue it.
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
            // Input above the bound stays in the socket: it delays this guest alone.
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
                    Ok(line) => answer = self.on_line(now, ram, &line).or(answer),
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

    /// Handles a line. Returns the answer to a request for memory.
    fn on_line(&mut self, now: u64, ram: u64, line: &[u8]) -> Option<Reclaimed> {
        let Ok(answer) = Answer::decode(line) else {
            self.wrong.malformed += 1;
            return None;
        };
        let Some(index) = self.asked.iter().position(|one| one.id == answer.id) else {
            self.wrong.unasked += 1;
            return None;
        };
        let asked = self.asked.swap_remove(index);
        match (asked.what, answer.body) {
            (What::State, Body::State(state)) => self.on_state(now, ram, state),
            (What::Reclaim(most), Body::Reclaimed(reclaimed)) => {
                self.last_answer = now;
                let bytes = reclaimed.bytes.min(most);
                return Some(Reclaimed { bytes, ..reclaimed });
            }
            (What::Cached, Body::Cached(cached)) => {
                self.last_answer = now;
                self.cached = Some(Ok(cached));
            }
            (What::Tenants, Body::Tenants(tenants)) => self.on_tenants(now, ram, tenants),
            (what, Body::Error(text)) => return self.on_error(now, what, &text),
            _ => {
                self.wrong.unasked += 1;
                self.asked.push(asked);
            }
        }
        None
    }

    fn on_state(&mut self, now: u64, ram: u64, state: State) {
        if plausible(&state, ram) {
            self.last_answer = now;
            self.state = Some((now, state));
        } else {
            self.wrong.impossible += 1;
            self.ignored_until = now + IGNORED_MS;
            self.state = None;
        }
    }

    /// Does not set `last_answer`: an agent that tells only its tenants is silent.
    fn on_tenants(&mut self, now: u64, ram: u64, tenants: Tenants) {
        let most = ram.saturating_add(TOLERANCE);
        if tenants.list().iter().all(|of| of.file <= most) {
            self.tenants = Some((now, tenants));
        } else {
            self.wrong.impossible += 1;
            self.no_tenants(now, IGNORED_MS);
        }
    }

    /// Handles an error. A guest that refuses to reclaim gives nothing.
    fn on_error(&mut self, now: u64, what: What, text: &ErrorText) -> Option<Reclaimed> {
        self.wrong.errors += 1;
        match what {
            What::State => {}
            What::Reclaim(_) => return Some(Reclaimed { bytes: 0, free: 0 }),
            What::Cached => self.cached = Some(Err(format!("its agent answers: {text}"))),
            What::Tenants => self.no_tenants(now, NO_TENANTS_MS),
        }
        None
    }
}

/// Whether a state can be true of a VM with this much memory. Counters may have any value: a reboot resets them.
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
