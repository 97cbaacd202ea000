//! What a port remembers between messages.

use super::stats::PortStats;
use super::window::Window;
use crate::cache::{PoolStats, VmStats};
use crate::config::StoreKind;
use crate::frontend::VmPools;
use crate::token_bucket::TokenBucket;
use justitia_link::{
    Answer, AreaHeader, AreaWriter, MAX_ANSWERS, Name, PORT_SIZE, PoolRow, ReadTime, Store,
    VERSION, Verdict,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Commands that a guest may send at once ...
const BURST: u32 = 256;
/// ... and one more in each such time in the long run, 64 a second: containers come and go at a lower rate. Each takes
/// locks that the host's own changes take.
const EACH: Duration = Duration::from_nanos(1_000_000_000 / 64);

/// What a port remembers.
pub(super) struct PortState {
    pub(super) window: Window,
    pub(super) rate: TokenBucket,
    pub(super) header: AreaHeader,
    pub(super) stats: PortStats,
    /// Newest first.
    answers: VecDeque<Answer>,
    rows: Vec<PoolRow>,
    /// What is read from the port; the first page is brought up to date when it is read.
    area: Box<[u8; PORT_SIZE]>,
}

impl PortState {
    pub(super) fn new(vm: &str, start: u64, pools: &VmPools) -> Self {
        let mut area = Box::new([0; PORT_SIZE]);
        // Marks it as an area.
        AreaWriter::new(&mut area);
        let mut state = Self {
            window: Window::default(),
            rate: TokenBucket::new(BURST, EACH, Instant::now()),
            header: AreaHeader {
                daemon_start_id: start,
                max_message_version: VERSION.into(),
                ..AreaHeader::default()
            },
            stats: PortStats {
                vm: vm.to_owned(),
                ..PortStats::default()
            },
            answers: VecDeque::new(),
            rows: Vec::new(),
            area,
        };
        state.list(pools, None);
        state
    }

    /// Remembers an answer to a message.
    pub(super) fn answer(&mut self, answer: Answer) {
        self.answers.truncate(MAX_ANSWERS - 1);
        self.answers.push_front(answer);
    }

    /// Brings the pool table up to date: with these figures, or with the last ones.
    pub(super) fn list(&mut self, pools: &VmPools, figures: Option<&VmStats>) {
        if let Some(figures) = figures {
            (self.header.missed, self.header.hit) = read_times(figures);
        }
        let old = std::mem::take(&mut self.rows);
        for (number, of) in pools.iter() {
            let (pool, spec) = (&of.pool, of.pool.spec());
            let before = old.iter().find(|row| row.number == number);
            let name = Name::cut(&pool.name);
            let Some(mut row) = before
                .copied()
                .or_else(|| Some(PoolRow::new(number, name?)))
            else {
                continue;
            };
            row.weight = spec.first_weight().into();
            row.store = match spec.first_store() {
                StoreKind::Memory => Store::Memory,
                StoreKind::Ssd => Store::Ssd,
            };
            let ssd = spec.weight(StoreKind::Ssd);
            let ssd = ssd.filter(|_| spec.is_hybrid());
            row.ssd_weight = ssd.map_or(0, u32::from);
            row.created_over_port = of.created_over_port;
            row.offered = of.offered;
            row.accepted = of.accepted;
            let mut all = figures.into_iter().flat_map(|vm| &vm.pools);
            if let Some(found) = all.find(|found| found.id == pool.id) {
                fill_in(&mut row, found);
            }
            self.rows.push(row);
        }
        AreaWriter::again(&mut self.area).pools(self.rows.iter().copied());
    }

    /// What a guest reads.
    pub(super) fn area(&mut self) -> &[u8; PORT_SIZE] {
        self.header.sequence = self.window.highest();
        self.header.messages = self.stats.messages;
        self.header.malformed = self.stats.malformed;
        self.header.replayed = self.stats.replayed;
        self.header.unknown_pool = self.stats.unknown_pool;
        let mut writer = AreaWriter::again(&mut self.area);
        writer.header(&self.header);
        writer.answers(self.answers.iter());
        &self.area
    }

    /// What came over the port so far.
    pub(super) fn stats(&self) -> PortStats {
        let mut stats = self.stats.clone();
        stats.set_verdicts(|verdict: Verdict| self.header.verdicts.of(verdict));
        stats
    }
}

/// How long reads of the VM's disks take that miss, and those that hit.
fn read_times(vm: &VmStats) -> (ReadTime, ReadTime) {
    let (mut missed, mut hit) = (ReadTime::default(), ReadTime::default());
    let busy = vm.disks.iter().map(|disk| disk.read_busy_us);
    missed.ns = busy.sum::<u64>().saturating_mul(1000);
    for counts in vm.pools.iter().map(|pool| &pool.counts) {
        missed.blocks += counts.disk_read_blocks;
        hit.blocks += counts.timed_hit_blocks;
        hit.ns += counts.timed_hit_ns;
    }
    (missed, hit)
}

fn fill_in(row: &mut PoolRow, found: &PoolStats) {
    // Of a pool in both stores the sum. One that uses only the SSD may use memory while that does not work.
    let parts = [found.memory_entitlement_bytes, found.ssd_entitlement_bytes];
    row.entitlement_bytes = parts.iter().sum();
    row.memory_bytes = found.memory_bytes;
    row.ssd_bytes = found.ssd_bytes;
    row.gets = found.counts.gets;
    row.hits = found.counts.memory_hits + found.counts.ssd_hits;
    row.taken = Some(found.counts.taken);
    row.insertions = found.counts.insertions;
    row.insertions_dropped = found.counts.insertions_dropped;
    row.evictions = found.counts.evictions;
    row.invalidations = found.counts.invalidations;
}
