//! How much of a pool's pages is offered, by what becomes of accepted puts: those that are never read again cost the guest
//! and gain it nothing.
//!
//! The fate of a put is known when it is hit (an exclusive cache then gives it back), evicted, or removed by a write.
//! Hits of the fates are what puts are worth. Blocks are sampled by a hash of their number, so what little is
//! offered shows what the rest would be worth. What is worth nothing even then is not offered for a while.
//!
//! In a pause nothing is copied, but two things still show that puts would be worth it: the host's hits of what was put
//! before, and the guest's own refaults, which its kernel counts of everything that it evicts.

use std::time::Duration;

use super::acceptance::{LEAST, NOTHING};
use super::pause;

/// Fates after which is decided, where all is offered.
const ENOUGH: u64 = 1024;
/// And where little is.
const ENOUGH_SAMPLED: u64 = 64;

/// Of 100 fates so many hits are worth all the puts; of fewer than half of it they are not. The same part of refaults
/// among evicted pages shows that they would be.
const WORTH: u64 = 10;

/// So many times the guest's memory are evicted or put without a hit, before that counts as a fate. A working set of twice the memory
/// has come round by then; a larger one is seen by refaults.
const MEMORIES: u64 = 2;
/// And so many while the guest reads again what it has evicted.
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

    /// Puts whose fate is known.
    const fn fates(&self) -> u64 {
        self.hits.saturating_add(self.lost)
    }

    /// Is what the guest evicts read again?
    const fn refault(&self, enough: u64) -> bool {
        self.refaults >= enough && worth(self.refaults, self.reclaimed)
    }
}

/// Are so many hits of so many worth it?
const fn worth(hits: u64, of: u64) -> bool {
    hits.saturating_mul(100) >= of.saturating_mul(WORTH)
}

/// Nothing is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    until: Duration,
    /// The guest read again what it had evicted, and yet nothing was hit: that it does so is no news.
    refaulted: bool,
}

/// How much is offered, and the figures at the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Worth {
    /// One block in `2^shift`.
    shift: u32,
    pause: Option<Pause>,
    /// A pause is over, and nothing has been decided since.
    look: bool,
    /// Pauses so far, without a hit that was worth it in between.
    pauses: u32,
    since: Figures,
}

impl Worth {
    /// Of a pool whose figures are these.
    pub(crate) const fn from(since: Figures) -> Self {
        Self {
            shift: 0,
            pause: None,
            look: false,
            pauses: 0,
            since,
        }
    }

    /// The shift for the kernel's map.
    pub(crate) const fn in_kernel(&self) -> u32 {
        match self.pause {
            Some(_) => NOTHING,
            None => self.shift,
        }
    }

    const fn offering(&self, shift: u32, since: Figures) -> Self {
        Self {
            shift,
            pause: None,
            look: false,
            pauses: self.pauses,
            since,
        }
    }
}

/// What follows on a pool's figures. `memory` is the guest's, in blocks; `clock` is any clock's time.
pub(crate) fn decide(before: Worth, now: Figures, memory: u64, clock: Duration) -> Worth {
    match before.pause {
        Some(pause) => paused(before, pause, now, memory, clock),
        None => offered(before, now, memory, clock),
    }
}

fn offered(before: Worth, now: Figures, memory: u64, clock: Duration) -> Worth {
    let seen = now.since(&before.since);
    let sampled = |blocks: u64, least: u64| (blocks >> before.shift).max(least);
    let refaulted = seen.refault(enough_refaults(memory));
    if before.look && refaulted {
        return before.offering(0, now);
    }
    let memories = match refaulted {
        true => MEMORIES_REFAULTED,
        false => MEMORIES,
    };
    let round = memory.saturating_mul(memories);
    let enough = sampled(round, ENOUGH_SAMPLED);
    // Blocks that were dropped on their way have come round, too.
    let some = seen.reclaimed >= round && seen.accepted >= (enough / 8).max(ENOUGH_SAMPLED);
    let many = seen.accepted >= enough || some;
    if seen.fates() < sampled(ENOUGH, ENOUGH_SAMPLED) && !many {
        return before;
    }
    let of = match many {
        true => seen.fates().max(seen.accepted / 2),
        false => seen.fates(),
    };
    if worth(seen.hits, of) {
        let more = before.offering(before.shift.saturating_sub(2), now);
        Worth { pauses: 0, ..more }
    } else if worth(seen.hits.saturating_mul(2), of) {
        Worth {
            since: now,
            ..before
        }
    } else if many || before.shift >= LEAST {
        let pauses = before.pauses.saturating_add(1);
        let pause = Pause {
            until: clock.saturating_add(pause::length(pauses)),
            refaulted,
        };
        Worth {
            shift: LEAST,
            pause: Some(pause),
            look: false,
            pauses,
            since: now,
        }
    } else {
        before.offering((before.shift + 2).min(LEAST), now)
    }
}

/// After a pause a little is offered, if nothing shows before that all should be.
fn paused(before: Worth, pause: Pause, now: Figures, memory: u64, clock: Duration) -> Worth {
    let seen = now.since(&before.since);
    let hit = seen.hits >= ENOUGH_SAMPLED && worth(seen.hits, seen.fates());
    let over = clock >= pause.until;
    let refault = seen.refault(enough_refaults(memory));
    if hit || refault && (over || !pause.refaulted) {
        before.offering(0, now)
    } else if over {
        let little = before.offering(LEAST, now);
        Worth {
            look: true,
            ..little
        }
    } else if seen.reclaimed >= memory {
        // What was long ago must not hide what is now.
        Worth {
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

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
