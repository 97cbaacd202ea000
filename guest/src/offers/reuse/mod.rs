//! How much of a pool's pages is offered: as long as what hits save is at least what puts cost.
//!
//! A put costs processor time of the guest, and a hit saves what a read of the disk takes longer than one that the cache
//! answers: both are measured ([`Price`]). Where a put costs more than a hit saves, as beside an image in the host's memory,
//! no reuse makes up for it: that is known after some dozen puts. Elsewhere the price says how many of the puts must be hit.
//!
//! The outcome of a put is known when it is hit (an exclusive cache then gives it back), evicted, or removed by a write.
//! Hits among the outcomes are what puts are worth. Blocks are sampled by a hash of their number, so what little is
//! offered shows what the rest would be worth. What is worth nothing even then is not offered for a while.
//!
//! In a pause nothing is copied, but three things still show that puts would be worth it: the host's hits of what was put
//! before, the guest's own refaults, which its kernel counts of everything that it evicts, and a disk that has become slow.

use std::time::Duration;

use justitia_share::RecentMean;

use super::acceptance::{self, LEAST, NOTHING};

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests;

/// Outcomes after which is decided, where all is offered.
const ENOUGH: u64 = 1024;
/// Outcomes after which is decided, where little is offered.
const ENOUGH_SAMPLED: u64 = 64;

/// More is offered where hits save this many times what puts cost, less where they save less than it. A pool between the two
/// keeps what it has: figures of samples vary. The same part of refaults among evicted pages shows that more would be worth it.
const MORE: u32 = 2;

/// As many puts as should have this number of hits, where they are just worth it, are seen before hits count as too few.
const LEAST_HITS: u64 = 3;

/// This many times the guest's memory are evicted or put without a hit, before that counts as an outcome. A working set of twice the memory
/// has come round by then; a larger one is seen by refaults.
const MEMORIES: u64 = 2;
/// The same while the guest reads again what it has evicted.
const MEMORIES_REFAULTED: u64 = 4;

/// What has happened to a pool's pages, as it grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Blocks that were accepted.
    pub(crate) accepted: u64,
    /// Blocks that were hit.
    pub(crate) hits: u64,
    /// Blocks that were evicted from the host's cache or removed by writes.
    pub(crate) lost: u64,
    /// Pages that the guest has reclaimed.
    pub(crate) reclaimed: u64,
    /// Of these, file pages that were read again.
    pub(crate) refaults: u64,
}

impl Figures {
    /// What has come since.
    const fn since(&self, before: &Self) -> Self {
        Self {
            accepted: self.accepted.saturating_sub(before.accepted),
            hits: self.hits.saturating_sub(before.hits),
            lost: self.lost.saturating_sub(before.lost),
            reclaimed: self.reclaimed.saturating_sub(before.reclaimed),
            refaults: self.refaults.saturating_sub(before.refaults),
        }
    }

    /// Puts whose outcome is known.
    const fn outcomes(&self) -> u64 {
        self.hits.saturating_add(self.lost)
    }

    /// Whether the guest reads enough of what it evicts again to make puts worth it.
    fn refault(&self, at: &Terms) -> bool {
        self.refaults >= enough_refaults(at.memory)
            && at.price.is_worth(self.refaults, self.reclaimed, MORE)
    }
}

/// What a decision is made of besides a pool's figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The guest's memory, in blocks.
    pub(crate) memory: u64,
    pub(crate) price: Price,
    /// How often it was measured by now what a put costs.
    pub(crate) measured: u64,
    /// The time, by any clock.
    pub(crate) clock: Duration,
}

/// Why nothing is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Too little of it was read again. `refaulted`: the guest read again what it had evicted, and yet nothing was hit: that
    /// it does so is no news.
    Unread { refaulted: bool },
    /// A put costs more than a hit saves.
    Price,
}

/// Nothing is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    until: Duration,
    why: Why,
}

/// How much is offered, and the figures at the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OfferRate {
    /// One block in `2^shift`.
    shift: u32,
    pause: Option<Pause>,
    /// A pause is over, and nothing has been decided since.
    look: bool,
    /// Pauses so far, without a hit that was worth it in between.
    pauses: u32,
    /// Measurements of what a put costs, when it began to be offered.
    measured: u64,
    since: Figures,
}

impl OfferRate {
    /// Of a pool whose figures are these.
    pub(crate) const fn from(since: Figures) -> Self {
        Self {
            shift: 0,
            pause: None,
            look: false,
            pauses: 0,
            measured: 0,
            since,
        }
    }

    /// Of a pool that is new: nothing is offered of it where puts are known to be worth nothing.
    pub(crate) fn of_new(since: Figures, at: &Terms) -> Self {
        match at.price.is_hopeless() {
            true => Self::from(since).pausing(Why::Price, since, at.clock),
            false => Self::from(since),
        }
    }

    /// The shift for the kernel's map.
    pub(crate) const fn in_kernel(&self) -> u32 {
        match self.pause {
            Some(_) => NOTHING,
            None => self.shift,
        }
    }

    fn pausing(&self, why: Why, since: Figures, clock: Duration) -> Self {
        let pauses = self.pauses.saturating_add(1);
        let until = clock.saturating_add(acceptance::pause_length(pauses));
        Self {
            shift: LEAST,
            pause: Some(Pause { until, why }),
            look: false,
            pauses,
            measured: self.measured,
            since,
        }
    }

    const fn offering(&self, shift: u32, since: Figures) -> Self {
        Self {
            shift,
            pause: None,
            look: false,
            pauses: self.pauses,
            measured: self.measured,
            since,
        }
    }
}

/// What follows on a pool's figures.
pub(crate) fn decide(before: OfferRate, now: Figures, at: &Terms) -> OfferRate {
    match before.pause {
        Some(pause) => paused(before, pause, now, at),
        None => offered(before, now, at),
    }
}

fn offered(before: OfferRate, now: Figures, at: &Terms) -> OfferRate {
    let seen = now.since(&before.since);
    if at.price.is_hopeless() && at.measured > before.measured {
        return before.pausing(Why::Price, now, at.clock);
    }
    let refaulted = seen.refault(at);
    if before.look && refaulted {
        return before.offering(0, now);
    }
    let Some(of) = put_outcomes(&before, &seen, refaulted, at) else {
        return before;
    };
    if at.price.is_worth(seen.hits, of.puts, MORE) {
        let more = before.offering(before.shift.saturating_sub(2), now);
        OfferRate { pauses: 0, ..more }
    } else if at.price.is_worth(seen.hits, of.puts, 1) {
        OfferRate {
            since: now,
            ..before
        }
    } else if of.all_round || before.shift >= LEAST {
        before.pausing(Why::Unread { refaulted }, now, at.clock)
    } else {
        before.offering((before.shift + 2).min(LEAST), now)
    }
}

/// Puts whose outcome is known.
struct PutOutcomes {
    puts: u64,
    /// What was put has come round, if it ever does.
    all_round: bool,
}

/// `None` while too few are known.
fn put_outcomes(
    before: &OfferRate,
    seen: &Figures,
    refaulted: bool,
    at: &Terms,
) -> Option<PutOutcomes> {
    let sampled = |blocks: u64, least: u64| (blocks >> before.shift).max(least);
    let memories = match refaulted {
        true => MEMORIES_REFAULTED,
        false => MEMORIES,
    };
    let round = at.memory.saturating_mul(memories);
    let enough = sampled(round, ENOUGH_SAMPLED);
    // Blocks that were dropped on their way have come round, too.
    let some = seen.reclaimed >= round && seen.accepted >= (enough / 8).max(ENOUGH_SAMPLED);
    let all_round = seen.accepted >= enough || some;
    let outcomes_enough = sampled(ENOUGH, ENOUGH_SAMPLED).max(at.price.puts_of(LEAST_HITS));
    let puts = match all_round {
        true => seen.outcomes().max(seen.accepted / 2),
        false => seen.outcomes(),
    };
    (all_round || seen.outcomes() >= outcomes_enough).then_some(PutOutcomes { puts, all_round })
}

/// After a pause a little is offered, if nothing shows before that all should be.
fn paused(before: OfferRate, pause: Pause, now: Figures, at: &Terms) -> OfferRate {
    let seen = now.since(&before.since);
    let over = at.clock >= pause.until;
    let refaulted = match pause.why {
        // What it costs is found out with all: that takes a moment.
        Why::Price if over || at.price.is_worth(1, 1, MORE) => {
            return OfferRate {
                measured: at.measured,
                ..before.offering(0, now)
            };
        }
        Why::Price => return before,
        Why::Unread { refaulted } => refaulted,
    };
    let hit = seen.hits >= ENOUGH_SAMPLED && at.price.is_worth(seen.hits, seen.outcomes(), MORE);
    if hit || seen.refault(at) && (over || !refaulted) {
        before.offering(0, now)
    } else if over {
        let little = before.offering(LEAST, now);
        OfferRate {
            look: true,
            ..little
        }
    } else if seen.reclaimed >= at.memory {
        // What was long ago must not hide what is now.
        OfferRate {
            since: now,
            ..before
        }
    } else {
        before
    }
}

/// Refaults that are no accident: a 64th of the guest's memory.
const fn enough_refaults(memory: u64) -> u64 {
    let part = memory / 64;
    if part > ENOUGH_SAMPLED {
        part
    } else {
        ENOUGH_SAMPLED
    }
}

// The price: the cost of a put beside the saving of a hit, and so the part of the puts that must be hit.

/// Where fewer than one put in this many is hit, hits say nothing: a sample has as many by chance. So a host that says
/// that a hit saves ages is not believed, and what is never read again is not offered for ever.
const MOST: u64 = 500;

/// The mean time of the latest blocks: those of 64 MiB, some seconds of a busy guest.
pub(crate) type Mean = RecentMean<16_384>;

/// What a put costs beside what a hit saves, in the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Price {
    cost: u64,
    saving: u64,
}

impl Default for Price {
    /// One put in 20 must be hit: what is taken for true while it is not known. Of a processor and a disk of today it is
    /// rather less.
    fn default() -> Self {
        Self {
            cost: 1,
            saving: 20,
        }
    }
}

impl Price {
    /// Of what a put costs and a hit saves, nanoseconds; [`default`](Self::default) while one of them is not known.
    pub(crate) fn new(cost: Option<u64>, saving: Option<u64>) -> Self {
        let (Some(cost), Some(saving)) = (cost, saving) else {
            return Self::default();
        };
        let cost = cost.max(1);
        Self {
            cost,
            saving: saving.min(cost.saturating_mul(MOST)),
        }
    }

    /// A put costs more than a hit saves: no reuse makes up for it.
    pub(crate) const fn is_hopeless(self) -> bool {
        self.saving < self.cost
    }

    /// Whether `hits` save at least `times` what `puts` cost.
    pub(crate) fn is_worth(self, hits: u64, puts: u64, times: u32) -> bool {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        // Both are far below 2^128: the factor is small.
        product(hits, self.saving) >= product(puts, self.cost).saturating_mul(times.into())
    }

    /// The number of puts that have `hits`, where they are just worth it.
    pub(crate) fn puts_of(self, hits: u64) -> u64 {
        let puts = u128::from(hits) * u128::from(self.saving) / u128::from(self.cost);
        u64::try_from(puts).unwrap_or(u64::MAX)
    }
}
