//! The channel to a guest's agent: one request at a time of each kind, and nothing believed that cannot be.

use std::io::{ErrorKind, Read, Write};
use std::mem::discriminant;
use std::os::unix::net::UnixStream;

use justitia_guest_protocol::memory::{
    Answer, Body, Cached, ErrorText, Lines, Reclaimed, Request, State, Tenants, encode,
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

/// A request that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Asked {
    id: u64,
    what: What,
    /// It is waited for until then.
    until: u64,
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
enum What {
    State,
    /// So many bytes back.
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
    /// One of each kind at most.
    asked: Vec<Asked>,
    /// What it caches, or why it does not say, once it was asked.
    cached: Option<Result<Cached, String>>,
    /// Its tenants, and when it told them.
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

    /// Asks for so many bytes back. Says whether it was asked: not while another request is not answered.
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

    /// Asks which blocks it caches. Says whether it was asked: not while another such request is not answered.
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

    /// What came of [`Channel::ask_cached`], once: which blocks it caches, or why it does not say.
    pub fn take_cached(&mut self) -> Option<Result<Cached, String>> {
        self.cached.take()
    }

    /// Asks for its tenants, unless it was asked lately.
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

    /// Its tenants, as it told them in the last seconds.
    #[must_use]
    pub fn tenants(&self, now: u64) -> Option<&Tenants> {
        let (at, tenants) = self.tenants.as_ref()?;
        (at + SILENT_MS >= now && self.agent(now) == Agent::Answers).then_some(tenants)
    }

    /// Whether it was asked for its tenants, and may answer yet.
    #[must_use]
    pub fn may_tell_tenants(&self, now: u64) -> bool {
        self.is_asked(What::Tenants) && self.agent(now) == Agent::Answers
    }

    /// It tells no tenants, and is not asked for a while.
    fn untold(&mut self, now: u64, wait: u64) {
        self.tenants = None;
        self.tenants_from = now + wait;
    }

    /// Whether a request of this kind is not answered yet.
    fn is_asked(&self, what: What) -> bool {
        let kind = discriminant(&what);
        self.asked.iter().any(|one| discriminant(&one.what) == kind)
    }

    /// Sends a request, unless one of its kind is not answered yet. Says whether it was sent.
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

    /// Waits no longer for what is late.
    fn give_up(&mut self, now: u64) {
        while let Some(index) = self.asked.iter().position(|one| one.until < now) {
            match self.asked.swap_remove(index).what {
                What::State => self.owed = (self.owed + 1).min(MOST_OWED),
                What::Reclaim(_) => {}
                What::Cached => {
                    self.cached = Some(Err("its agent has not answered within 10 s".to_owned()));
                }
                What::Tenants => self.untold(now, UNTOLD_MS),
            }
        }
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
        let Some(index) = self.asked.iter().position(|one| one.id == answer.id) else {
            self.wrong.unasked += 1;
            return None;
        };
        let asked = self.asked.swap_remove(index);
        match (asked.what, answer.body) {
            (What::State, Body::State(state)) => self.heard_state(now, ram, state),
            (What::Reclaim(most), Body::Reclaimed(reclaimed)) => {
                self.last_answer = now;
                let bytes = reclaimed.bytes.min(most);
                return Some(Reclaimed { bytes, ..reclaimed });
            }
            (What::Cached, Body::Cached(cached)) => {
                self.last_answer = now;
                self.cached = Some(Ok(cached));
            }
            (What::Tenants, Body::Tenants(tenants)) => self.heard_tenants(now, ram, tenants),
            (what, Body::Error(text)) => return self.refused(now, what, &text),
            _ => {
                self.wrong.unasked += 1;
                self.asked.push(asked);
            }
        }
        None
    }

    fn heard_state(&mut self, now: u64, ram: u64, state: State) {
        if plausible(&state, ram) {
            self.last_answer = now;
            self.state = Some((now, state));
        } else {
            self.wrong.impossible += 1;
            self.ignored_until = now + IGNORED_MS;
            self.state = None;
        }
    }

    /// It says nothing of the state: who tells its tenants alone is silent.
    fn heard_tenants(&mut self, now: u64, ram: u64, tenants: Tenants) {
        let most = ram.saturating_add(TOLERANCE);
        if tenants.list().iter().all(|of| of.file <= most) {
            self.tenants = Some((now, tenants));
        } else {
            self.wrong.impossible += 1;
            self.untold(now, IGNORED_MS);
        }
    }

    /// An error. Who refuses to reclaim gives nothing.
    fn refused(&mut self, now: u64, what: What, text: &ErrorText) -> Option<Reclaimed> {
        self.wrong.errors += 1;
        match what {
            What::State => {}
            What::Reclaim(_) => return Some(Reclaimed { bytes: 0, free: 0 }),
            What::Cached => self.cached = Some(Err(format!("its agent answers: {text}"))),
            What::Tenants => self.untold(now, UNTOLD_MS),
        }
        None
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
