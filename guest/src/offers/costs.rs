//! The cost of a put to the guest, and the time that a hit saves: both measured over the latest blocks.

use justitia_guest_protocol::puts::ReadTime;

use super::reuse::{Mean, Price};

/// The least number of copied pages between two measurements: with fewer, the agent's periodic work would count as their cost.
pub(crate) const ENOUGH: u64 = 512;

/// The counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Reads that missed and reads that hit, as the host says.
    pub(crate) missed: ReadTime,
    pub(crate) hit: ReadTime,
    /// Evicted pages that were copied.
    pub(crate) copied: u64,
    /// Evicted pages that were dropped, as the ring was full.
    pub(crate) dropped: u64,
    /// Evicted pages that were not sampled, or could not be copied.
    pub(crate) others: u64,
    /// Time of the probe's programs, nanoseconds.
    pub(crate) probe_ns: u64,
    /// Processor time of the agent for copied pages, nanoseconds.
    pub(crate) agent_ns: u64,
}

/// The costs known so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Costs {
    before: Counted,
    /// The cost of an evicted page in the probe, and of a copied one in the agent.
    probe: Mean,
    agent: Mean,
    /// The number of these measurements.
    measured: u64,
    missed: Mean,
    hit: Mean,
}

impl Costs {
    /// Takes in the current counters.
    pub(crate) fn update(&mut self, now: &Counted) {
        let before = std::mem::replace(&mut self.before, *now);
        let since = |of: fn(&Counted) -> u64| of(now).saturating_sub(of(&before));
        let copied = since(|at| at.copied);
        // If little is offered, or many places are unknown, most of the probe's time is not for puts.
        if copied >= ENOUGH.max(since(|at| at.others)) {
            let evicted = copied.saturating_add(since(|at| at.dropped));
            self.measured += 1;
            self.probe.add(evicted, since(|at| at.probe_ns));
            self.agent.add(copied, since(|at| at.agent_ns));
        }
        add(&mut self.missed, before.missed, now.missed);
        add(&mut self.hit, before.hit, now.hit);
    }

    /// The number of measurements of a put's cost.
    pub(crate) const fn measured(&self) -> u64 {
        self.measured
    }

    /// The cost of a put, nanoseconds; `None` while unknown.
    pub(crate) fn put_ns(&self) -> Option<u64> {
        Some(self.probe.get()?.saturating_add(self.agent.get()?))
    }

    /// The time that a hit saves, nanoseconds; `None` while no read has missed.
    pub(crate) fn saving_ns(&self) -> Option<u64> {
        let hit = self.hit.get().unwrap_or(0);
        self.missed.get().map(|missed| missed.saturating_sub(hit))
    }

    /// The cost of a put, and the time that a hit saves.
    pub(crate) fn price(&self) -> Price {
        Price::new(self.put_ns(), self.saving_ns())
    }
}

/// Adds the increase. Counters that went back add nothing: they do when a pool or the host's daemon is gone.
fn add(mean: &mut Mean, before: ReadTime, now: ReadTime) {
    let since = |now: u64, before: u64| now.checked_sub(before);
    if let (Some(blocks), Some(ns)) = (since(now.blocks, before.blocks), since(now.ns, before.ns)) {
        mean.add(blocks, ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn read(blocks: u64, ns: u64) -> ReadTime {
        ReadTime { blocks, ns }
    }

    #[test]
    fn a_hit_saves_what_a_miss_takes_longer() {
        let mut costs = Costs::default();
        assert_eq!((costs.put_ns(), costs.saving_ns()), (None, None));
        for (missed, hit, expected) in [
            (read(10, 1_000_000), read(0, 0), None),
            (read(100, 10_000_000), read(0, 0), Some(100_000)),
            (read(100, 10_000_000), read(1000, 2_000_000), Some(98_000)),
            // The daemon was started anew.
            (read(50, 5000), read(10, 100), Some(98_000)),
            (read(150, 10_005_000), read(10, 100), Some(98_000)),
            // Nonsense: a hit takes longer than a miss.
            (read(150, 10_005_000), read(10, u64::MAX), Some(0)),
        ] {
            costs.update(&Counted {
                missed,
                hit,
                ..Counted::default()
            });
            assert_eq!(costs.saving_ns(), expected, "{missed:?} {hit:?}");
        }
    }

    #[test]
    fn a_put_costs_what_the_probe_and_the_agent_take() {
        let mut costs = Costs::default();
        for (copied, dropped, others, probe_ns, agent_ns, expected) in [
            // Too few; and then the page cache is still of pages whose places are not known.
            (511, 0, 0, 90_000_000, 90_000_000, None),
            (1511, 0, 6000, 180_000_000, 180_000_000, None),
            (2511, 0, 6000, 185_000_000, 195_000_000, Some(20_000)),
            // Most is held back: most of the probe's time is not for copied pages.
            (3511, 0, 16_000, 285_000_000, 295_000_000, Some(20_000)),
            (4511, 0, 16_500, 290_000_000, 310_000_000, Some(20_000)),
            // Dropped ones take the probe's time alone.
            (5511, 3000, 16_500, 310_000_000, 325_000_000, Some(20_000)),
            // An idle guest.
            (5511, 3000, 16_500, 310_000_000, 325_000_000, Some(20_000)),
        ] {
            costs.update(&Counted {
                copied,
                dropped,
                others,
                probe_ns,
                agent_ns,
                ..Counted::default()
            });
            assert_eq!(costs.put_ns(), expected, "{copied}");
        }
        assert_eq!(costs.price(), Price::default(), "no miss is known");
        costs.update(&Counted {
            missed: read(100, 100_000_000),
            ..costs.before
        });
        assert_eq!(costs.price(), Price::new(Some(20_000), Some(1_000_000)));
    }
}
