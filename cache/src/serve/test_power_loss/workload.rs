//! Clients that write, flush, and remember acknowledged writes.

use super::crash::Durable;
use crate::block_dev::Recorder;
use crate::nbd::test::client::Client;
use crate::testing::Random;
use crate::testing::front_end::{BlkRequest, FrontEnd, kind, range};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a sector, and sectors of the disk.
pub(super) const SECTOR: usize = 512;
pub(super) const SECTORS: u64 = 384;
/// Clients, each with a part of the sectors, so that none overlaps another's.
pub(super) const CLIENTS: u64 = 3;
/// Sectors of a part of a client's part: one request at a time is under way in each.
const PART: u64 = SECTORS / CLIENTS / 4;

/// All writes.
#[derive(Default)]
pub(super) struct History {
    versions: BTreeSet<(u64, u64)>,
    /// Those that were zeroes.
    zeroes: BTreeSet<(u64, u64)>,
}

impl History {
    /// The content of a sector in a version: the sector and the version, repeated.
    fn content(sector: u64, version: u64) -> Vec<u8> {
        [sector.to_le_bytes(), version.to_le_bytes()]
            .concat()
            .repeat(SECTOR / 16)
    }

    /// The version of a content that is written when the last one was `last`; `None` of one that nobody wrote there.
    pub(super) fn version(&self, sector: usize, last: u64, content: &[u8]) -> Option<u64> {
        let sector = u64::try_from(sector).unwrap();
        if content.iter().all(|byte| *byte == 0) {
            // The next that is zeroes; without one, those before are written again.
            let next = self
                .zeroes
                .range((sector, last + 1)..(sector + 1, 0))
                .next();
            let again = self.zeroes.range((sector, 0)..=(sector, last)).next_back();
            return next.or(again).map(|(_, version)| *version);
        }
        let version = u64::from_le_bytes(content[8..16].try_into().unwrap());
        let whole = content == Self::content(sector, version);
        (whole && self.versions.contains(&(sector, version))).then_some(version)
    }
}

/// A request that is under way.
struct Pending {
    first: u64,
    sectors: u64,
    version: u64,
    durable: bool,
    /// Of a flush: what had been acknowledged when it was sent.
    covers: Option<Durable>,
}

pub(super) struct Workload {
    pub(super) nbd: [Client; 2],
    pub(super) vhost: FrontEnd,
    pub(super) recorder: Arc<Recorder<Durable>>,
    pub(super) history: History,
    acknowledged: BTreeMap<u64, u64>,
    pending: [BTreeMap<u64, Pending>; 3],
    next: u64,
    write_through: bool,
    random: Random,
}

impl Workload {
    pub(super) fn new(
        nbd: [Client; 2],
        vhost: FrontEnd,
        recorder: Arc<Recorder<Durable>>,
        seed: u64,
    ) -> Self {
        Self {
            nbd,
            vhost,
            recorder,
            history: History::default(),
            acknowledged: BTreeMap::new(),
            pending: Default::default(),
            next: 1,
            write_through: false,
            random: Random::new(seed),
        }
    }

    pub(super) fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let client = self.random.below(CLIENTS);
            self.collect(client);
            if client == 2 && self.random.below(8) == 0 {
                self.write_through = !self.write_through;
                let write_back = u8::from(!self.write_through);
                self.vhost.set_config(32, &[write_back]).unwrap();
            }
            for part in 0..4 {
                self.write(client, part);
            }
            if self.random.below(3) == 0 {
                self.flush(client);
            }
            self.submitted(client);
        }
        (0..CLIENTS).for_each(|client| self.collect(client));
    }

    fn write(&mut self, client: u64, part: u64) {
        let sectors = 1 + self.random.below(8);
        let first = client * SECTORS / CLIENTS + part * PART + self.random.below(PART - sectors);
        let zeroes = self.random.below(8) == 0;
        let fua = client < 2 && self.random.below(4) == 0;
        let version = self.next;
        self.next += 1;
        let mut content = Vec::new();
        for sector in first..first + sectors {
            if zeroes {
                self.history.zeroes.insert((sector, version));
            } else {
                self.history.versions.insert((sector, version));
                content.extend(History::content(sector, version));
            }
        }
        let durable = fua || client == 2 && self.write_through;
        let pending = Pending {
            first,
            sectors,
            version,
            durable,
            covers: None,
        };
        let bytes = u32::try_from(sectors * 512).unwrap();
        let number = match (self.client(client), zeroes) {
            (Some(nbd), true) => {
                nbd.send(6, u16::from(fua), version, first * 512, &[], bytes);
                version
            }
            (Some(nbd), false) => {
                nbd.send(1, u16::from(fua), version, first * 512, &content, bytes);
                version
            }
            (None, true) => {
                let count = u32::try_from(sectors).unwrap();
                self.submit(kind::WRITE_ZEROES, 0, &range(first, count, 0))
            }
            (None, false) => self.submit(kind::OUT, first, &content),
        };
        self.pending[usize::try_from(client).unwrap()].insert(number, pending);
    }

    fn flush(&mut self, client: u64) {
        let covers = self.acknowledged.iter().map(|(s, v)| (*s, *v)).collect();
        let version = self.next;
        self.next += 1;
        let pending = Pending {
            first: 0,
            sectors: 0,
            version,
            durable: false,
            covers: Some(covers),
        };
        let number = match self.client(client) {
            Some(nbd) => {
                nbd.send(3, 0, version, 0, &[], 0);
                version
            }
            None => self.submit(kind::FLUSH, 0, &[]),
        };
        self.pending[usize::try_from(client).unwrap()].insert(number, pending);
    }

    fn client(&mut self, number: u64) -> Option<&mut Client> {
        self.nbd.get_mut(usize::try_from(number).unwrap())
    }

    fn submit(&mut self, kind: u32, sector: u64, data: &[u8]) -> u64 {
        let queue = &mut self.vhost.queues[0];
        let slot = queue.take_slot().unwrap();
        queue.write_data(slot, data).unwrap();
        let bytes = u32::try_from(data.len()).unwrap();
        let request = BlkRequest::new(kind, sector, bytes);
        queue.submit(slot, request).unwrap();
        slot.into()
    }

    fn submitted(&self, client: u64) {
        if client == 2 {
            self.vhost.queues[0].kick.write(1).unwrap();
        }
    }

    /// Takes all answers of a client.
    fn collect(&mut self, client: u64) {
        let at = usize::try_from(client).unwrap();
        while !self.pending[at].is_empty() {
            let answered = match self.client(client) {
                Some(nbd) => {
                    let reply = nbd.reply(0);
                    assert_eq!(reply.error, 0);
                    vec![reply.cookie]
                }
                None => self.completed(),
            };
            for number in answered {
                let done = self.pending[at].remove(&number).unwrap();
                self.done(done);
            }
        }
    }

    fn completed(&mut self) -> Vec<u64> {
        let queue = &mut self.vhost.queues[0];
        assert!(queue.wait(Duration::from_secs(20)).unwrap());
        let mut found = Vec::new();
        queue.completed(&mut found).unwrap();
        assert!(found.iter().all(|done| done.status == 0), "{found:?}");
        found.iter().map(|done| done.slot.into()).collect()
    }

    fn done(&mut self, done: Pending) {
        let sectors = done.first..done.first + done.sectors;
        let written: Durable = sectors.map(|sector| (sector, done.version)).collect();
        self.acknowledged.extend(written.iter().copied());
        if done.durable {
            self.recorder.note(written);
        }
        if let Some(covers) = done.covers {
            self.recorder.note(covers);
        }
    }
}
