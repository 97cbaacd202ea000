//! The image after a loss of power, at any moment and with any part of what was not durable.

use super::workload::{History, SECTOR, SECTORS};
use crate::block_dev::{Call, Event};
use crate::testing::Random;

/// Sectors, and the versions of them that were acknowledged as durable.
pub(super) type Durable = Vec<(u64, u64)>;

/// A sector as a disk with a volatile cache has it.
#[derive(Clone, Default)]
struct Sector {
    /// The version that is durable.
    durable: u64,
    /// Written since, oldest first: the number of the write, and the version.
    pending: Vec<(usize, u64)>,
    /// The last version that was written.
    last: u64,
    /// The version that was acknowledged as durable.
    promised: u64,
}

/// The results of crashes.
#[derive(Debug, Default)]
pub(super) struct Crashes {
    /// Crash points.
    pub(super) points: usize,
    /// Of these, those with something that was not durable.
    pub(super) uncertain: usize,
}

/// Replays what has reached the kernel, and crashes before and after every event.
pub(super) struct Replay<'a> {
    sectors: Vec<Sector>,
    history: &'a History,
    /// When each call began and ended, as a position among the events.
    began: Vec<usize>,
    ended: Vec<Option<usize>>,
    calls: Vec<Option<Call>>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(events: usize, history: &'a History) -> Self {
        Self {
            sectors: vec![Sector::default(); usize::try_from(SECTORS).unwrap()],
            history,
            began: vec![0; events],
            ended: vec![None; events],
            calls: vec![None; events],
        }
    }

    /// All crashes of a recording.
    pub(super) fn crashes(mut self, events: &[Event<Durable>], random: &mut Random) -> Crashes {
        let mut found = Crashes::default();
        for (position, event) in events.iter().enumerate() {
            self.step(position, event);
            let uncertain = self.sectors.iter().any(|s| !s.pending.is_empty());
            found.points += 1;
            found.uncertain += usize::from(uncertain);
            self.crash(position, random);
        }
        found
    }

    fn step(&mut self, position: usize, event: &Event<Durable>) {
        match event {
            Event::Note(durable) => {
                for (sector, version) in durable {
                    let sector = &mut self.sectors[usize::try_from(*sector).unwrap()];
                    sector.promised = sector.promised.max(*version);
                }
            }
            Event::Began(number, call) => {
                self.began[*number] = position;
                self.calls[*number] = Some(call.clone());
                if let Call::Write { at, content, .. } = call {
                    self.write(*number, usize::try_from(*at).unwrap(), content);
                }
            }
            Event::Ended(number) => {
                self.ended[*number] = Some(position);
                match self.calls[*number].clone() {
                    Some(Call::Sync) => {
                        let began = self.began[*number];
                        let ended = self.ended.clone();
                        self.settle(|write| ended[write].is_some_and(|end| end < began));
                    }
                    Some(Call::Write { durable: true, .. }) => {
                        self.settle(|write| write == *number)
                    }
                    _ => {}
                }
            }
        }
    }

    fn write(&mut self, number: usize, at: usize, content: &[u8]) {
        assert!(at.is_multiple_of(SECTOR), "a sector is torn");
        for (n, piece) in (at / SECTOR..).zip(content.chunks(SECTOR)) {
            let sector = &mut self.sectors[n];
            let version = self.history.version(n, sector.last, piece);
            let Some(version) = version else {
                panic!("call {number}: sector {n} is torn or foreign");
            };
            sector.last = sector.last.max(version);
            sector.pending.push((number, version));
        }
    }

    /// These writes are durable, and so nothing older can come back.
    fn settle(&mut self, is_durable: impl Fn(usize) -> bool) {
        for sector in &mut self.sectors {
            let last = sector.pending.iter().rposition(|(n, _)| is_durable(*n));
            if let Some(last) = last {
                sector.durable = sector.pending[last].1;
                sector.pending.drain(..=last);
            }
        }
    }

    /// Any of what was written since is there, or nothing of it.
    fn crash(&self, position: usize, random: &mut Random) {
        for (number, sector) in self.sectors.iter().enumerate() {
            let choices = u64::try_from(sector.pending.len()).unwrap() + 1;
            let chosen = usize::try_from(random.below(choices)).unwrap();
            let found = match chosen.checked_sub(1) {
                Some(n) => sector.pending[n].1,
                None => sector.durable,
            };
            assert!(
                found >= sector.promised,
                "event {position}: sector {number} has version {found}, and {} was acknowledged as durable",
                sector.promised
            );
        }
    }
}
