//! Decides how much of a pool's pages is offered: hits must save at least the cost of puts.
//!
//! A put costs processor time of the guest. A hit saves the difference between a read from the disk and one from the cache. Both
//! are measured ([`Price`]). If a put costs more than a hit saves, as with an image in the host's memory, no reuse makes up for
//! it: some dozen puts show that. Otherwise the price tells which part of the puts must be hit.
//!
//! The outcome of a put is a hit (an exclusive cache then gives the block back), an eviction, or a removal by a write. The part
//! of hits is the worth of puts. Blocks are sampled by a hash of their number: a small sample shows the worth of the rest. If the
//! sample is worth nothing, offering pauses.
//!
//! In a pause nothing is copied, but three signs can still show that puts would be worth it. They are hits of earlier puts, the
//! guest's refaults, which its kernel counts for all evicted pages, and a disk that has become slow.

use std::time::Duration;

use justitia_share::RecentMean;

use super::acceptance::{self, LEAST, NOTHING};

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests;

/// Outcomes before a decision, if all is offered.
const ENOUGH: u64 = 1024;
/// Outcomes before a decision, if little is offered.
const ENOUGH_SAMPLED: u64 = 64;

/// More is offered if hits save this many times the cost of puts, less if they save less than the cost. In between a pool keeps
/// its rate: samples vary. The same part of refaults among evicted pages shows that more would be worth it.
const MORE: u32 = 2;

/// The number of hits that puts should have at break-even before fewer hits count as too few.
const LEAST_HITS: u64 = 3;

/// Without hits, this many times the guest's memory must be evicted or put before that counts as an outcome. By then a working
/// set of twice the memory has come round; refaults show a larger one.
const MEMORIES: u64 = 2;
/// The same while the guest refaults.
const MEMORIES_REFAULTED: u64 = 4;

/// Counters of a pool's pages.
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
    /// The increase since `before`.
    const fn since(&self, before: &Self) -> Self {
        Self {
            accepted: self.accepted.saturating_sub(before.accepted),
            hits: self.hits.saturating_sub(before.hits),
            lost: self.lost.saturating_sub(before.lost),
            reclaimed: self.reclaimed.saturating_sub(before.reclaimed),
            refaults: self.refaults.saturating_sub(before.refaults),
        }
    }

    /// Puts with a known outcome.
    const fn outcomes(&self) -> u64 {
        self.hits.saturating_add(self.lost)
    }

    /// Whether the guest refaults enough to make puts worth it.
    fn refault(&self, at: &Terms) -> bool {
        self.refaults >= enough_refaults(at.memory)
            && at.price.is_worth(self.refaults, self.reclaimed, MORE)
    }
}

/// The basis of a decision besides a pool's figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The guest's memory, in blocks.
    pub(crate) memory: u64,
    pub(crate) price: Price,
    /// The number of measurements of a put's cost.
    pub(crate) measured: u64,
    /// The time, by any clock.
    pub(crate) clock: Duration,
}

/// Why nothing is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Too little of it was read again. `refaulted`: the guest refaulted, and yet nothing was hit: more refaults are no sign
    /// then.
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
    /// The number of measurements of a put's cost when offering began.
    measured: u64,
    since: Figures,
}

impl OfferRate {
    /// For a pool with these figures.
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

    /// For a new pool: nothing is offered if puts are known to be worth nothing.
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

/// The next rate, from a pool's figures.
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

/// Puts with a known outcome.
struct PutOutcomes {
    puts: u64,
    /// All put blocks have come round, if they ever do.
    all_round: bool,
}

/// `None` while too few outcomes are known.
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
    // Dropped blocks have come round, too.
    let some = seen.reclaimed >= round && seen.accepted >= (enough / 8).max(ENOUGH_SAMPLED);
    let all_round = seen.accepted >= enough || some;
    let outcomes_enough = sampled(ENOUGH, ENOUGH_SAMPLED).max(at.price.puts_of(LEAST_HITS));
    let puts = match all_round {
        true => seen.outcomes().max(seen.accepted / 2),
        false => seen.outcomes(),
    };
    (all_round || seen.outcomes() >= outcomes_enough).then_some(PutOutcomes { puts, all_round })
}

/// After a pause a little is offered, unless signs show that all should be.
fn paused(before: OfferRate, pause: Pause, now: Figures, at: &Terms) -> OfferRate {
    let seen = now.since(&before.since);
    let over = at.clock >= pause.until;
    let refaulted = match pause.why {
        // The cost is measured with everything offered: that takes a moment.
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
        // Old figures must not hide new ones.
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

// The price: the cost of a put and the saving of a hit. It tells which part of the puts must be hit.

/// With fewer than one hit in this many puts, hits may be chance. So a host that claims huge savings is not believed, and pages
/// that are never read again are not offered for ever.
const MOST: u64 = 500;

/// The mean time of the latest blocks: those of 64 MiB, some seconds of a busy guest.
pub(crate) type Mean = RecentMean<16_384>;

/// The cost of a put and the saving of a hit, in the same unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Price {
    cost: u64,
    saving: u64,
}

impl Default for Price {
    /// One put in 20 must be hit: an assumption while the price is unknown. Today's processors and disks need rather fewer.
    fn default() -> Self {
        Self {
            cost: 1,
            saving: 20,
        }
    }
}

impl Price {
    /// From the cost of a put and the saving of a hit, nanoseconds; [`default`](Self::default) while one is unknown.
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

    /// Whether `hits` save at least `times` the cost of `puts`.
    pub(crate) fn is_worth(self, hits: u64, puts: u64, times: u32) -> bool {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        // Both are far below 2^128: the factor is small.
        product(hits, self.saving) >= product(puts, self.cost).saturating_mul(times.into())
    }

    /// The number of puts that `hits` just make worth it.
    pub(crate) fn puts_of(self, hits: u64) -> u64 {
        let puts = u128::from(hits) * u128::from(self.saving) / u128::from(self.cost);
        u64::try_from(puts).unwrap_or(u64::MAX)
    }
}
