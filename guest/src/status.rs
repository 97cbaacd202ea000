//! What the guest agent has done, for its log.

use std::collections::BTreeMap;

use justitia_kernel::probes::EvictionCounts;
use justitia_link::{Tally, Verdict};
use serde::Serialize;

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
