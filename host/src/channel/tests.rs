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

/// An agent was just installed, or a guest was paused: it answers all earlier requests at once.
#[test]
fn an_agent_that_starts_late_is_no_flood() {
    let mut guest = Guest::new();
    let mut ids = Vec::new();
    let mut now = Guest::NOW;
    for _ in 0..50 {
        now += SILENT_MS + 1;
        guest.turn(now);
        ids.push(guest.request().id());
    }
    let answer = |id: u64| {
        let state = State {
            total: RAM,
            ..State::default()
        };
        let body = Body::State(state);
        encode(&Answer { id, body })
    };
    let all: Vec<u8> = ids.iter().flat_map(|id| answer(*id)).collect();
    guest.say(&all);
    guest.turn(now + 1);
    assert_eq!(guest.channel.agent(now + 1), Agent::Answers);
    // What it owed is paid: the same once more is a flood.
    guest.turn(now + 2000);
    guest.say(&all);
    guest.turn(now + 2000);
    assert_eq!(guest.channel.agent(now + 2000), Agent::Ignored);
}

/// Its agent answers at once after its first boot, and late after the second: its counters are lower then, its uptime is not.
#[test]
fn a_guest_that_reboots_is_believed() {
    let mut guest = Guest::new();
    for (after, refaults, uptime_ms) in [(1000, 100, 20_000), (2000, 3, 25_000)] {
        let now = Guest::NOW + after;
        guest.turn(now);
        let Request::State { id } = guest.request() else {
            panic!("no request for the state")
        };
        let state = State {
            total: RAM,
            refaults,
            uptime_ms,
            ..State::default()
        };
        let body = Body::State(state);
        guest.say(&encode(&Answer { id, body }));
        guest.turn(now);
        assert_eq!(guest.channel.state(now), Some((now, state)));
    }
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
    for (after, is_asked) in [(NO_TENANTS_MS - 1, false), (NO_TENANTS_MS, true)] {
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
