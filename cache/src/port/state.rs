//! The state of a port.

use crate::cache::{PoolStats, VmStats};
use crate::config::StoreKind;
use crate::frontend::VmPools;
use crate::token_bucket::TokenBucket;
use justitia_guest_protocol::puts::sequence::is_later;
use justitia_guest_protocol::puts::{
    Answer, AreaHeader, AreaWriter, MAX_ANSWERS, Name, PORT_SIZE, PoolRow, ReadTime, Status, Store,
    VERSION, Verdict,
};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The burst of a guest's commands.
const BURST: u32 = 256;
/// The long-run interval of commands, 64 a second: containers come and go at a lower rate. Each command takes locks that the
/// host's own changes take.
const EACH: Duration = Duration::from_nanos(1_000_000_000 / 64);

/// The state of a port.
pub(super) struct PortState {
    pub(super) window: Window,
    pub(super) rate: TokenBucket,
    pub(super) header: AreaHeader,
    pub(super) stats: PortStats,
    /// Newest first.
    answers: VecDeque<Answer>,
    rows: Vec<PoolRow>,
    /// The readable area of the port; its first page is updated on a read.
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

    /// Updates the pool table, with these figures or the last ones.
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

    /// The area that a guest reads.
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

    /// The statistics of the port.
    pub(super) fn stats(&self) -> PortStats {
        let mut stats = self.stats.clone();
        stats.set_verdicts(|verdict: Verdict| self.header.verdicts.of(verdict));
        stats
    }
}

/// The times of reads of the VM's disks: misses, and hits.
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
    // For a pool in both stores, the sum. A pool that only uses the SSD may use memory while the SSD does not work.
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

// Statistics of a port.

/// Statistics of a VM's port since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortStats {
    /// The VM.
    pub vm: String,
    /// Messages handled.
    pub messages: u64,
    /// Writes that were no message, and invalid messages.
    pub malformed: u64,
    /// Messages that were handled before, or were too old.
    pub replayed: u64,
    /// Commands executed.
    pub commands: u64,
    /// Commands refused.
    pub commands_refused: u64,
    /// Offered blocks, by verdict.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// Offered blocks whose pool was unknown: the default pool took them.
    pub unknown_pool: u64,
}

impl PortStats {
    /// Counts a command.
    pub(super) const fn command(&mut self, status: Status) {
        match status {
            Status::Done => self.commands += 1,
            _ => self.commands_refused += 1,
        }
    }

    /// Sets all verdicts, including those that did not occur.
    fn set_verdicts(&mut self, of: impl Fn(Verdict) -> u64) {
        self.verdicts = Verdict::ALL.map(|v| (v.name(), of(v))).into();
    }
}

// A window of handled sequence numbers. Each number is handled once, in any order within the window, as in IPsec (RFC 4303,
// 3.4.3). The numbers wrap around, so that none is the last.

/// The numbers below the highest that are still accepted.
const WIDTH: u64 = 1024;

const WORDS: usize = 16;

/// The window.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The latest handled number; 0 is none.
    highest: u64,
    /// A bit for each number of the window, by remainder: it was handled.
    handled: [u64; WORDS],
}

impl Window {
    const fn highest(&self) -> u64 {
        self.highest
    }

    /// Is the number new? If so, marks it as handled. 0 is never new.
    pub(super) fn take(&mut self, number: u64) -> bool {
        if number == 0 {
            return false;
        }
        // The first may be any: a guest continues its numbers after a restart of the daemon.
        if self.highest == 0 || is_later(number, self.highest) {
            // Clear the numbers that the window skips.
            for n in 0..number.wrapping_sub(self.highest).min(WIDTH) {
                self.mark(number.wrapping_sub(n), false);
            }
            self.highest = number;
        } else if self.highest.wrapping_sub(number) >= WIDTH || self.is_marked(number) {
            return false;
        }
        self.mark(number, true);
        true
    }

    /// The word of a number, by its remainder, and its bit.
    fn place(&mut self, number: u64) -> (&mut u64, u64) {
        let [word, ..] = (number % WIDTH / 64).to_le_bytes();
        // Smaller than the number of words.
        let [first, rest @ ..] = &mut self.handled;
        let word = usize::from(word)
            .checked_sub(1)
            .and_then(|n| rest.get_mut(n));
        (word.unwrap_or(first), 1 << (number % 64))
    }

    fn is_marked(&mut self, number: u64) -> bool {
        let (word, bit) = self.place(number);
        *word & bit != 0
    }

    fn mark(&mut self, number: u64, handled: bool) {
        let (word, bit) = self.place(number);
        if handled {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_number_is_handled_once(steps in prop::collection::vec((-1500_i64..1500, any::<bool>()), 1..400)) {
            let mut window = Window::default();
            let mut handled = BTreeSet::new();
            let mut at = 0_u64;
            for (step, jump) in steps {
                at = if jump { at.saturating_add_signed(step) } else { at.saturating_add_signed(step / 300) };
                let highest = handled.last().copied().unwrap_or(0);
                let new = at > 0 && !handled.contains(&at) && highest.saturating_sub(at) < WIDTH;
                prop_assert_eq!(window.take(at), new, "{} below {}", at, highest);
                if new {
                    handled.insert(at);
                }
                prop_assert_eq!(window.highest(), handled.last().copied().unwrap_or(0));
            }
        }
    }

    #[test]
    fn the_highest_number_of_all_ends_nothing() {
        let mut window = Window::default();
        assert!(window.take(u64::MAX) && !window.take(u64::MAX));
        assert!(window.take(u64::MAX - 1023) && !window.take(u64::MAX - 1024));
        assert!(!window.take(0));
        // The numbers go round.
        assert!(window.take(1) && !window.take(1) && window.take(1025));
        assert!(!window.take(u64::MAX - 3) && !window.take(u64::MAX) && window.take(2));
    }

    #[test]
    fn a_number_far_ahead_ends_nothing() {
        let mut window = Window::default();
        assert!(window.take(5000));
        // Behind, as the numbers go round.
        assert!(!window.take(u64::MAX) && window.take(5001));
        // As far as one message comes, and as far as two.
        assert!(window.take(5001 + (1 << 63) - 1) && window.take(u64::MAX));
        assert!(window.take(1) && window.take(2));
    }
}
