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
                self.second = (now / 1000, 0, 0);
            }
            // What is above the bound stays in the socket, and holds up the guest alone.
            if self.second.1 > MAX_BYTES || self.second.2 > MAX_LINES {
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
                if plausible(&state, self.state.map(|(_, state)| state).as_ref(), ram) {
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

/// Whether a state can be true of a VM with so much memory, after this one.
fn plausible(state: &State, before: Option<&State>, ram: u64) -> bool {
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
    let fits = parts.iter().all(|part| *part <= most) && state.free <= state.total;
    // Counters only grow, but for a reboot.
    let grows = before.is_none_or(|before| {
        state.uptime_ms < before.uptime_ms
            || (state.refaults >= before.refaults && state.psi_some_us >= before.psi_some_us)
    });
    state.total > 0 && fits && grows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::net::UnixListener;

    const RAM: u64 = 1 << 30;

    /// A channel, and the guest at its other end, whose agent has told its state a moment before [`Guest::NOW`].
    struct Guest {
        channel: Channel,
        stream: BufReader<UnixStream>,
    }

    impl Guest {
        const NOW: u64 = 100_000;

        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("channel");
            let listener = UnixListener::bind(&path).unwrap();
            let channel = Channel::connect(&Socket::trusted(path.clone()), Self::NOW, 0).unwrap();
            let stream = BufReader::new(listener.accept().unwrap().0);
            let mut guest = Self { channel, stream };
            guest.turn(Self::NOW);
            let Request::State { id } = guest.request() else {
                panic!("no request for the state")
            };
            let state = State {
                total: RAM,
                ..State::default()
            };
            let body = Body::State(state);
            guest.say(&encode(&Answer { id, body }));
            guest.turn(Self::NOW);
            guest
        }

        fn turn(&mut self, now: u64) {
            self.channel.turn(now, RAM).unwrap();
        }

        fn request(&mut self) -> Request {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            Request::decode(line.as_bytes()).unwrap()
        }

        fn say(&mut self, line: &[u8]) {
            self.stream.get_mut().write_all(line).unwrap();
        }

        /// Is asked for its tenants, and says this; `ID` in it is the request's.
        fn answer(&mut self, line: &str) {
            self.channel.ask_tenants(Self::NOW).unwrap();
            let request = self.request();
            assert!(matches!(request, Request::Tenants { .. }), "{request:?}");
            self.say(format!("{}\n", line.replace("ID", &request.id().to_string())).as_bytes());
            self.turn(Self::NOW);
        }

        fn names(&self) -> Option<Vec<&str>> {
            let tenants = self.channel.tenants(Self::NOW)?;
            let names = tenants.list().iter().map(|tenant| tenant.name.as_str());
            Some(names.collect())
        }
    }

    fn list(count: usize, name: &str, weight: u64, file: u64) -> String {
        let one = format!(r#"{{"name":"{name}","weight":{weight},"file":{file}}}"#);
        let list = vec![one; count].join(",");
        format!(r#"{{"id":ID,"tenants":{{"list":[{list}],"more":0}}}}"#)
    }

    #[test]
    fn a_guest_that_tells_wild_things_of_its_tenants_gains_nothing() {
        let is = |change: fn(&mut Wrong)| {
            let mut wrong = Wrong::default();
            change(&mut wrong);
            wrong
        };
        let good = list(2, "web", 300, RAM);
        for (line, names, wrong) in [
            (good.clone(), Some(vec!["web"; 2]), Wrong::default()),
            // It names another VM, and the terminal's commands, as it likes.
            (
                list(1, "\\u001b[2Jdb  100\\n", 1, 0),
                Some(vec!["?[2Jdb??100?"]),
                Wrong::default(),
            ),
            (
                list(1, "web", 300, u64::MAX),
                None,
                is(|w| w.impossible = 1),
            ),
            (list(1, "web", u64::MAX, 0), None, is(|w| w.malformed = 1)),
            (list(17, "web", 1, 0), None, is(|w| w.malformed = 1)),
            (list(2000, "web", 1, 0), None, is(|w| w.too_long = 1)),
            ("x".repeat(64 << 10), None, is(|w| w.too_long = 1)),
            (
                format!("{good}\n{good}"),
                Some(vec!["web"; 2]),
                is(|w| w.unasked = 1),
            ),
            (
                r#"{"id":ID,"reclaimed":{"bytes":1,"free":1}}"#.to_owned(),
                None,
                is(|w| w.unasked = 1),
            ),
            (
                r#"{"id":ID,"error":"?"}"#.to_owned(),
                None,
                is(|w| w.errors = 1),
            ),
        ] {
            let mut guest = Guest::new();
            let before = guest.channel.state(Guest::NOW);
            guest.answer(&line);
            assert_eq!((guest.names(), guest.channel.wrong()), (names, wrong));
            // What it reported of its memory stands, and it is listened to.
            assert_eq!(guest.channel.state(Guest::NOW), before);
            assert_eq!(guest.channel.agent(Guest::NOW), Agent::Answers);
        }
    }

    #[test]
    fn an_older_agent_is_asked_for_its_tenants_once_a_minute() {
        let mut guest = Guest::new();
        guest.answer(r#"{"id":ID,"error":"unknown variant `tenants`"}"#);
        assert!(!guest.channel.may_tell_tenants(Guest::NOW));
        for (after, is_asked) in [(UNTOLD_MS - 1, false), (UNTOLD_MS, true)] {
            let now = Guest::NOW + after;
            // It tells its state all the time.
            guest.channel.last_answer = now;
            guest.channel.ask_tenants(now).unwrap();
            assert_eq!(guest.channel.may_tell_tenants(now), is_asked);
        }
    }

    #[test]
    fn who_tells_its_tenants_alone_is_silent() {
        let mut guest = Guest::new();
        guest.answer(&list(1, "web", 1, 0));
        assert!(guest.names().is_some());
        let later = Guest::NOW + SILENT_MS + 1;
        assert_eq!(guest.channel.agent(later), Agent::Silent);
        assert!(guest.channel.tenants(later).is_none());
        guest.channel.ask_tenants(later).unwrap();
        assert!(!guest.channel.may_tell_tenants(later));
    }
}
