//! The work while a port is open: messages are sent, answers are read, and decisions follow from them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_cgroup_tree::Rule;
use justitia_guest_protocol::puts::{Tally, Verdict};
use justitia_kernel::PAGE_SIZE;
use justitia_kernel::probes::{EvictionCounts, EvictionProbe, EvictionReader};
use justitia_kernel::proc::ProcFs;
use rustix::time::ClockId;
use serde::Serialize;

use crate::batch::{Batch, Batches};
use crate::offers::costs::{self, Costs, Counted};
use crate::offers::decide::{Guest, Offers};
use crate::offers::disks::Disks;
use crate::offers::verdicts::Filesystems;
use crate::pools::cgroups::Cgroups;
use crate::pools::table::PoolTable;
use crate::port::{Ended, Session};

/// How long a message waits to be filled.
const MAX_AGE: Duration = Duration::from_millis(200);
/// How long the reader sleeps when little is evicted.
const SLEEP: Duration = Duration::from_millis(100);
/// The interval between decisions about offers and pools, once the cost of a put is known.
const PERIOD: Duration = Duration::from_secs(2);
/// The same before the cost of a put is known.
const SHORT: Duration = Duration::from_millis(250);

/// The options of the guest agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of evicted pages that may wait to be offered: a power of two from 64 KiB to 256 MiB.
    pub buffer: u32,
    /// Whether containers' pools use the host's SSD as well as its memory.
    pub ssd: bool,
    /// The weight of processes outside managed cgroups, 1 to 10,000.
    pub unmanaged_weight: u32,
    /// The administrator's rules for cgroups. The first match counts.
    pub rules: Vec<Rule>,
    /// The port's device; `None`: it is looked for.
    pub port: Option<PathBuf>,
    /// The status socket of `justitia run`, if it runs in this machine: it knows the worth of cache.
    pub agent_socket: PathBuf,
    /// The interval between status reports; `None`: never.
    pub report_every: Option<Duration>,
}

/// State that lasts across ports.
pub(crate) struct Machine<'a> {
    pub(crate) options: &'a Options,
    pub(crate) probe: &'a EvictionProbe,
    pub(crate) reader: EvictionReader<'a>,
    pub(crate) batches: &'a RefCell<Batches>,
    pub(crate) cgroups: Cgroups,
    pub(crate) began: Instant,
    pub(crate) status: Status,
    pub(crate) costs: Costs,
    /// Processor time spent on offering.
    pub(crate) offering: Duration,
}

/// State that lasts across one run of the host's daemon.
pub(crate) struct Serving<'a, 'b> {
    machine: &'b mut Machine<'a>,
    session: Session,
    disks: Disks,
    filesystems: Filesystems,
    pools: PoolTable,
    offers: Offers,
    decided: Option<Instant>,
}

impl<'a, 'b> Serving<'a, 'b> {
    /// Begins to serve the port.
    ///
    /// # Errors
    /// If the port does not answer.
    pub(crate) fn begin(machine: &'b mut Machine<'a>, mut session: Session) -> Result<Self, Ended> {
        let (_, rows) = session.stats()?;
        let pools = PoolTable::adopt(
            &rows,
            &machine.cgroups.view(),
            machine.options.ssd,
            &mut session,
        )?;
        Ok(Self {
            machine,
            session,
            disks: Disks::default(),
            filesystems: Filesystems::default(),
            pools,
            offers: Offers::default(),
            decided: None,
        })
    }

    /// One round, at most a tenth of a second long while the port answers.
    ///
    /// # Errors
    /// If the port does not answer, or the host's daemon was restarted.
    pub(crate) fn round(&mut self) -> Result<(), Ended> {
        let begun = processor_time();
        self.machine.reader.read(SLEEP);
        let now = Instant::now();
        self.machine.batches.borrow_mut().close_older(MAX_AGE, now);
        self.send()?;
        self.collect(now)?;
        self.machine.offering += processor_time().saturating_sub(begun);
        if self.is_due(now) {
            self.decided = Some(now);
            self.decide(now)?;
        }
        Ok(())
    }

    fn is_due(&self, now: Instant) -> bool {
        let machine = &self.machine;
        let is_new =
            machine.costs.put_ns().is_none() && machine.probe.counts().copied >= costs::ENOUGH;
        let period = match is_new {
            true => SHORT,
            false => PERIOD,
        };
        self.decided
            .is_none_or(|at| now.saturating_duration_since(at) >= period)
    }

    fn send(&mut self) -> Result<(), Ended> {
        loop {
            let next: Option<Batch> = self.machine.batches.borrow_mut().next_ready();
            let Some(mut batch) = next else {
                return Ok(());
            };
            let sent = self.session.put(&mut batch);
            self.machine.batches.borrow_mut().recycle(batch);
            sent?;
            if self.session.is_full() {
                self.collect(Instant::now())?;
            }
        }
    }

    fn collect(&mut self, now: Instant) -> Result<(), Ended> {
        for put in self.session.answers()? {
            let verdicts = &put.answer.verdicts;
            self.machine.status.add(verdicts);
            if verdicts.of(Verdict::NoDisk) > 0 {
                let batches = &mut self.machine.batches.borrow_mut();
                self.disks
                    .unserved(put.origin.disk, self.machine.probe, batches, now);
            } else {
                self.filesystems.add(&put.origin, verdicts);
            }
        }
        self.machine.status.unanswered += std::mem::take(&mut self.session.unanswered);
        Ok(())
    }

    fn decide(&mut self, now: Instant) -> Result<(), Ended> {
        let machine = &mut *self.machine;
        let batches = &mut machine.batches.borrow_mut();
        self.disks
            .refresh(&mut self.session, machine.probe, batches, now)?;
        machine.cgroups.follow(&machine.options.rules, now);
        let view = machine.cgroups.view();
        let unmanaged = machine.options.unmanaged_weight;
        self.pools
            .follow(&view, unmanaged, &mut self.session, batches)?;
        let (header, rows) = self.session.stats()?;
        self.pools.see(&rows);
        let counts = machine.probe.counts();
        machine.costs.update(&Counted {
            missed: header.missed,
            hit: header.hit,
            copied: counts.copied,
            dropped: counts.ring_full,
            others: counts.not_sampled + counts.beyond_bound + counts.unknown_place,
            probe_ns: counts.programs_ns,
            agent_ns: u64::try_from(machine.offering.as_nanos()).unwrap_or(u64::MAX),
        });
        let since_start = now.saturating_duration_since(machine.began);
        let of = self.pools.pools();
        let numbers = of.values().map(|pool| pool.number).collect();
        self.filesystems
            .decide(&numbers, machine.probe, since_start);
        let refused = self.filesystems.refused_pools();
        let guest = Guest {
            cgroups: &machine.cgroups,
            refused: &refused,
            memory: memory_blocks(),
            costs: &machine.costs,
            now: since_start,
        };
        self.offers
            .decide(&rows, &guest, of, &batches.pools, machine.probe);
        let status = &mut machine.status;
        status.count(&counts);
        status.put_ns = machine.costs.put_ns();
        status.hit_saves_ns = machine.costs.saving_ns();
        status.disks = self.disks.served();
        status.pools = self.pools.pools().len();
        status.limited_filesystems = self.filesystems.limited();
        status.limited_pools = self.offers.limited();
        status.detached = self.offers.is_detached();
        Ok(())
    }

    /// The current status.
    pub(crate) const fn status(&self) -> &Status {
        &self.machine.status
    }

    /// Ends serving: nothing is offered any more.
    pub(crate) fn end(mut self) -> Session {
        let machine = self.machine;
        self.disks.unwatch(machine.probe);
        self.filesystems.reset(machine.probe);
        self.offers.reset(machine.probe);
        machine.batches.borrow_mut().clear();
        machine.status.disks.clear();
        self.session
    }
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The memory of this machine, in blocks; `u64::MAX` if it cannot be read.
fn memory_blocks() -> u64 {
    let read = ProcFs::open(Path::new("/proc")).and_then(|proc| proc.meminfo());
    read.map_or(u64::MAX, |meminfo| meminfo.mem_total / PAGE_SIZE)
}

/// Counters since the agent's start, and its current state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The port's device; `None` while there is none.
    pub port: Option<String>,
    /// Names of the disks that are offered.
    pub disks: Vec<String>,
    /// Pools that were made for containers.
    pub pools: usize,
    /// Evicted pages that were copied.
    pub copied: u64,
    /// Evicted pages that were dropped, as the ring was full.
    pub ring_full: u64,
    /// Evicted pages that were held back, as offering them is worth little.
    pub held_back: u64,
    /// Evicted pages beyond the copied part of one large folio.
    pub beyond_bound: u64,
    /// Evicted pages without a known place on a disk.
    pub unknown_place: u64,
    /// Blocks that were offered, by the host's verdict.
    pub offered: BTreeMap<&'static str, u64>,
    /// Messages without an answer.
    pub unanswered: u64,
    /// File systems that are not offered in full.
    pub limited_filesystems: usize,
    /// Pools that are not offered in full.
    pub limited_pools: usize,
    /// The cost of a put, nanoseconds of processor time; `None` while unknown.
    pub put_ns: Option<u64>,
    /// The time that a hit saves, nanoseconds; `None` while unknown.
    pub hit_saves_ns: Option<u64>,
    /// Whether the probe is detached, as nothing is worth offering.
    pub detached: bool,
}

impl Status {
    pub(crate) const fn count(&mut self, counts: &EvictionCounts) {
        self.copied = counts.copied;
        self.ring_full = counts.ring_full;
        self.held_back = counts.not_sampled;
        self.beyond_bound = counts.beyond_bound;
        self.unknown_place = counts.unknown_place;
    }

    pub(crate) fn add(&mut self, verdicts: &Tally) {
        for verdict in Verdict::ALL {
            *self.offered.entry(verdict.name()).or_default() += verdicts.of(verdict);
        }
    }
}
