//! Simulated machines, with requests of well-meaning and hostile hosts: the guest always keeps the memory that it uses.

use std::path::PathBuf;
use std::time::Duration;

use justitia_guest_protocol::memory::{
    Answer, Body, Cached, ErrorText, Reclaimed, Request, Sampler, Tenant, TenantName, Tenants,
    encode,
};
use justitia_kernel::{PAGE_SIZE, Result};

use super::answers::{Answers, CACHED_AGE, STATE_AGE, TENANTS_AGE};
use super::machine::Machine;
use super::readings::Readings;

const MIB: u64 = 1 << 20;

/// A machine with a kernel that takes inactive pages first, then active ones, and mapped ones last; and always more than asked
/// for.
#[derive(Clone, Default)]
struct Simulated {
    readings: Readings,
    inactive: u64,
    active: u64,
    mapped: u64,
    /// This many inactive pages are read again after they were taken.
    used: u64,
    protected: u64,
    steps: u64,
    /// How often its tenants were looked for.
    looks: u64,
}

impl Simulated {
    fn new(inactive: u64, active: u64, mapped: u64) -> Self {
        let mut new = Self {
            inactive,
            active,
            mapped,
            ..Self::default()
        };
        new.readings.total = 1024 * MIB;
        new.readings.anonymous = 100 * MIB;
        new.follow();
        new
    }

    /// Time in which its processors work.
    fn pass(&mut self, time: Duration) {
        self.readings.at += time;
        self.readings.busy += time;
    }

    fn follow(&mut self) {
        let readings = &mut self.readings;
        readings.file = self.inactive + self.active + self.mapped;
        readings.active_file = self.active;
        readings.mapped_file = self.mapped;
        readings.free = readings.total - readings.anonymous - readings.file;
        readings.available = readings.free + readings.file / 2;
    }
}

impl Machine for Simulated {
    fn read(&mut self) -> Result<Readings> {
        Ok(self.readings)
    }

    fn reclaim(&mut self, bytes: u64) -> Result<()> {
        self.steps += 1;
        let mut left = bytes + bytes / 8;
        for list in [&mut self.inactive, &mut self.active, &mut self.mapped] {
            let spare = list.saturating_sub(self.protected);
            let taken = spare.min(left);
            *list -= taken;
            left -= taken;
        }
        if self.inactive < self.used {
            let again = (self.used - self.inactive).min(bytes / 2);
            self.readings.refaults += again / PAGE_SIZE;
            self.active += again;
            self.used -= again;
        }
        self.pass(Duration::from_millis(20));
        self.follow();
        Ok(())
    }

    fn cached(&mut self, seed: u64) -> Result<Cached> {
        let mut sampler = Sampler::new(seed, [("root", 1 << 30)]);
        (0..self.readings.file / PAGE_SIZE).for_each(|block| sampler.add(0, block));
        Ok(sampler.finish(self.readings.file, true))
    }

    fn tenants(&mut self) -> Tenants {
        self.looks += 1;
        Tenants::new([Tenant {
            name: TenantName::new("web"),
            weight: 100,
            file: self.readings.file,
        }])
    }
}

fn answers(machine: Simulated) -> Answers<Simulated> {
    let mut answers = Answers::new(machine, PathBuf::new());
    answers.reporting_order = || Some(9);
    answers
}

fn ask(answers: &mut Answers<Simulated>, line: &str) -> Option<Answer> {
    let line = answers.answer(line.as_bytes(), |_| 10 * MIB)?;
    assert_eq!(line.last(), Some(&b'\n'));
    Some(Answer::decode(&line).unwrap())
}

fn reclaim(answers: &mut Answers<Simulated>, bytes: u64, within_ms: u32) -> Reclaimed {
    let request = Request::Reclaim {
        id: 3,
        bytes,
        within_ms,
    };
    let line = String::from_utf8(encode(&request)).unwrap();
    match ask(answers, line.trim_end()) {
        Some(Answer {
            id: 3,
            body: Body::Reclaimed(reclaimed),
        }) => reclaimed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_asked_for_is_given_back() {
    let mut answers = answers(Simulated::new(600 * MIB, 100 * MIB, 50 * MIB));
    let before = answers.machine.readings.free;
    let done = reclaim(&mut answers, 400 * MIB, 5000);
    assert!((400 * MIB..410 * MIB).contains(&done.bytes), "{done:?}");
    assert_eq!(done.free, before + done.bytes);
    assert_eq!(answers.machine.active, 100 * MIB);
    assert_eq!(answers.given.taken, done.bytes);
}

#[test]
fn a_host_that_asks_for_all_memory_again_and_again_gets_what_is_not_used() {
    for (inactive, active, mapped) in [(600, 100, 50), (100, 600, 50), (10, 0, 700), (0, 0, 0)] {
        let machine = Simulated::new(inactive * MIB, active * MIB, mapped * MIB);
        let mut answers = answers(machine);
        for _ in 0..1000 {
            reclaim(&mut answers, u64::MAX, u32::MAX);
            answers.machine.pass(Duration::from_millis(1));
        }
        let machine = &answers.machine;
        // The kernel takes an eighth of a step more than it was asked for.
        assert!(machine.mapped + MIB >= mapped * MIB, "{}", machine.mapped);
        // The estimate decays while nothing shows use: slowly, as the machine works.
        let left = machine.active / MIB;
        assert!(100 * left >= 97 * active, "{left} of {active}");
        assert!(machine.inactive <= 2 * MIB);
        // Each request is little work.
        assert!(machine.steps < 1200, "{}", machine.steps);
    }
}

#[test]
fn a_set_that_is_read_again_costs_one_step() {
    let mut machine = Simulated::new(600 * MIB, 0, 50 * MIB);
    machine.used = 500 * MIB;
    let mut answers = answers(machine);
    let done = reclaim(&mut answers, 500 * MIB, 5000);
    // 100 MiB are not read again; then every step is.
    assert!((95 * MIB..140 * MIB).contains(&done.bytes), "{done:?}");
    let set = |machine: &Simulated| machine.active + machine.used;
    assert!(set(&answers.machine) > 400 * MIB);
    // What was read again counts as used from now on: hosts that go on get less and less.
    let steps = answers.machine.steps;
    answers.machine.readings.at += Duration::from_secs(1);
    reclaim(&mut answers, 500 * MIB, 5000);
    assert!(answers.machine.steps <= steps + 10, "{steps}");
}

#[test]
fn a_set_that_is_read_again_later_is_held_after_the_first_request() {
    let mut answers = answers(Simulated::new(600 * MIB, 0, 50 * MIB));
    let done = reclaim(&mut answers, 64 * MIB, 5000);
    assert!(done.bytes >= 64 * MIB);
    // Half of it is read again when the request is answered.
    let machine = &mut answers.machine;
    machine.readings.refaults += 32 * MIB / PAGE_SIZE;
    machine.inactive += 32 * MIB;
    machine.follow();
    machine.pass(Duration::from_millis(500));
    assert_eq!(reclaim(&mut answers, 64 * MIB, 5000).bytes, 0);
    // It is asked for again and again: little by little it counts for less.
    let before = answers.machine.readings.file;
    for _ in 0..60 {
        answers.machine.pass(Duration::from_secs(1));
        reclaim(&mut answers, 64 * MIB, 5000);
    }
    let left = answers.machine.readings.file;
    assert!(
        10 * left >= 8 * before,
        "{} of {}",
        left / MIB,
        before / MIB
    );
}

#[test]
fn an_idle_machine_gives_back_almost_all() {
    let mut answers = answers(Simulated::new(100 * MIB, 600 * MIB, 50 * MIB));
    answers.state().unwrap();
    for _ in 0..20 {
        answers.machine.readings.at += Duration::from_secs(15);
        reclaim(&mut answers, 64 * MIB, 2000);
    }
    let file = answers.machine.readings.file;
    assert!((50 * MIB..60 * MIB).contains(&file), "{}", file / MIB);
    assert_eq!(answers.machine.mapped, 50 * MIB);
}

#[test]
fn little_time_is_little_work() {
    let mut answers = answers(Simulated::new(600 * MIB, 0, 0));
    let done = reclaim(&mut answers, 400 * MIB, 100);
    assert!(done.bytes < 60 * MIB);
    assert!(answers.machine.steps <= 5);
    let done = reclaim(&mut answers, 400 * MIB, 0);
    assert!(done.bytes < 10 * MIB);
}

#[test]
fn protected_cache_is_not_asked_for_again_and_again() {
    let mut machine = Simulated::new(600 * MIB, 0, 0);
    machine.protected = 600 * MIB;
    let mut answers = answers(machine);
    assert_eq!(reclaim(&mut answers, 400 * MIB, 5000).bytes, 0);
    assert!(answers.machine.steps < 10);
}

#[test]
fn a_state_is_at_most_a_second_old_and_no_fresher() {
    let mut answers = answers(Simulated::new(600 * MIB, 100 * MIB, 50 * MIB));
    let state = |answers: &mut _, id| {
        let answer = ask(answers, &format!(r#"{{"request":"state","id":{id}}}"#)).unwrap();
        assert_eq!(answer.id, id);
        match answer.body {
            Body::State(state) => state,
            other => panic!("{other:?}"),
        }
    };
    let first = state(&mut answers, 1);
    assert_eq!((first.total, first.file), (1024 * MIB, 750 * MIB));
    assert_eq!((first.worth, first.reporting_order), (150 * MIB, Some(9)));
    // The rest: anonymous and mapped memory.
    assert_eq!(first.unreclaimable, 150 * MIB);
    answers.machine.readings.file = MIB;
    assert_eq!(state(&mut answers, 2), first);
    let aged = answers
        .state
        .map(|(at, state)| (at.saturating_sub(STATE_AGE), state));
    answers.state = aged;
    assert_eq!(state(&mut answers, 3).file, MIB);
    // Taken memory is reported at once.
    reclaim(&mut answers, MIB, 100);
    assert!(answers.state.is_none());
}

#[test]
fn what_is_cached_is_looked_for_every_few_seconds_only() {
    let mut answers = answers(Simulated::new(64 * MIB, 0, 0));
    let cached = |answers: &mut _, seed| {
        let line = format!(r#"{{"request":"cached","id":1,"seed":{seed}}}"#);
        match ask(answers, &line).unwrap().body {
            Body::Cached(cached) => cached,
            other => panic!("{other:?}"),
        }
    };
    let first = cached(&mut answers, 3);
    assert_eq!((first.seed(), first.file()), (3, 64 * MIB));
    assert_eq!(first.disks()[0].bytes, 64 * MIB);
    answers.machine.readings.file = MIB;
    assert_eq!(cached(&mut answers, 4), first);
    let aged = answers.cached.take();
    answers.cached = aged.map(|(at, cached)| (at.saturating_sub(CACHED_AGE), cached));
    let next = cached(&mut answers, 4);
    assert_eq!((next.seed(), next.disks()[0].bytes), (4, MIB));
}

#[test]
fn a_flood_of_questions_for_tenants_is_one_look() {
    let mut answers = answers(Simulated::new(64 * MIB, 0, 0));
    let tenants = |answers: &mut _| {
        let body = ask(answers, r#"{"request":"tenants","id":1}"#)
            .unwrap()
            .body;
        match body {
            Body::Tenants(tenants) => tenants,
            other => panic!("{other:?}"),
        }
    };
    let first = tenants(&mut answers);
    assert_eq!(first.list()[0].file, 64 * MIB);
    answers.machine.readings.file = MIB;
    // As if no time passed.
    let until = Duration::MAX;
    answers.tenants = answers.tenants.map(|(_, tenants)| (until, tenants));
    for _ in 0..10_000 {
        assert_eq!(tenants(&mut answers), first);
    }
    assert_eq!(answers.machine.looks, 1);
    answers.tenants = answers
        .tenants
        .map(|(_, tenants)| (Duration::ZERO, tenants));
    assert_eq!(tenants(&mut answers).list()[0].file, MIB);
    let (until, _) = answers.tenants.unwrap();
    assert!(until >= TENANTS_AGE && answers.machine.looks == 2);
}

#[test]
fn what_is_no_request_is_answered_if_it_says_which_one_it_is() {
    let mut answers = answers(Simulated::new(MIB, 0, 0));
    let answer = ask(&mut answers, r#"{"request":"shrink","id":9}"#).unwrap();
    let Body::Error(text) = answer.body else {
        panic!("no error")
    };
    assert!(answer.id == 9 && text.as_str().contains("shrink"), "{text}");
    for line in ["", "x", r#"{"request":"state"}"#, r#"{"id":"9"}"#] {
        assert_eq!(ask(&mut answers, line), None);
    }
    assert_eq!(answers.given.malformed, 5);
    assert!(text.as_str().len() <= ErrorText::MAX);
}
