//! What is done while there is a port: messages go out, answers come in, and decisions follow from them.

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
/// How often it is decided how much is offered, and which pools there are, once the cost of a put is known.
const PERIOD: Duration = Duration::from_secs(2);
/// How often that is decided before the cost of a put is known.
const SHORT: Duration = Duration::from_millis(250);

/// How the guest agent runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Evicted pages that wait to be offered, bytes: a power of two from 64 KiB to 256 MiB.
    pub buffer: u32,
    /// Whether containers' pools use the host's SSD as well as its memory.
    pub ssd: bool,
    /// The weight of what runs in no managed cgroup, 1 to 10,000.
    pub unmanaged_weight: u32,
    /// What the administrator says of cgroups; the first rule that matches counts.
    pub rules: Vec<Rule>,
    /// The port's device; without one it is looked for.
    pub port: Option<PathBuf>,
    /// The status socket of `justitia run`, which knows what cache is worth having, where it runs in this machine.
    pub agent_socket: PathBuf,
    /// How often the status is reported; `None` never.
    pub report_every: Option<Duration>,
}

/// What lasts from port to port.
pub(crate) struct Machine<'a> {
    pub(crate) options: &'a Options,
    pub(crate) probe: &'a EvictionProbe,
    pub(crate) reader: EvictionReader<'a>,
    pub(crate) batches: &'a RefCell<Batches>,
    pub(crate) cgroups: Cgroups,
    pub(crate) began: Instant,
    pub(crate) status: Status,
    pub(crate) costs: Costs,
    /// Processor time that offering has taken.
    pub(crate) offering: Duration,
}

/// What lasts from one start of the host's daemon to the next.
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
    /// Begins.
    ///
    /// # Errors
    /// When the port does not answer.
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

    /// One round: at most a tenth of a second long while the port answers.
    ///
    /// # Errors
    /// When the port does not answer, or the host's daemon was started anew.
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

    /// How things are.
    pub(crate) const fn status(&self) -> &Status {
        &self.machine.status
    }

    /// Nothing is offered any more.
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

/// The memory of this machine, in blocks; a lot where that cannot be read.
fn memory_blocks() -> u64 {
    let read = ProcFs::open(Path::new("/proc")).and_then(|proc| proc.meminfo());
    read.map_or(u64::MAX, |meminfo| meminfo.mem_total / PAGE_SIZE)
}

/// What was done since the agent has started, and how things are.
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
    /// Evicted pages beyond what is copied of one large folio.
    pub beyond_bound: u64,
    /// Evicted pages whose place on a disk is not known.
    pub unknown_place: u64,
    /// Blocks that were offered, by the host's verdict.
    pub offered: BTreeMap<&'static str, u64>,
    /// Messages that have no answer.
    pub unanswered: u64,
    /// File systems of which less than all is offered.
    pub limited_filesystems: usize,
    /// Pools of which less than all is offered.
    pub limited_pools: usize,
    /// What a put costs, nanoseconds of processor time; `None` while that is not known.
    pub put_ns: Option<u64>,
    /// What a hit saves, nanoseconds; `None` while that is not known.
    pub hit_saves_ns: Option<u64>,
    /// The probe is detached, as nothing is worth offering.
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
