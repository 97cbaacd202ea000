//! When the probe is detached: while nothing of any pool is worth its cost, and no other pool needs it.

use std::time::Duration;

/// A pool of which nothing came for so long does not keep the probe.
const IDLE: Duration = Duration::from_secs(60);
/// But it may begin to evict: it is looked for so often.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// How it is with a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolState {
    /// Nothing is offered of it.
    pub(crate) paused: bool,
    /// When a block of it was last accepted, or a pause ended; by any clock.
    pub(crate) active: Duration,
}

/// Whether the probe is detached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) detached: bool,
    /// Since when.
    since: Duration,
}

/// What follows on the pools' states.
pub(crate) fn decide(
    before: Rest,
    pools: impl IntoIterator<Item = PoolState>,
    now: Duration,
) -> Rest {
    let (mut paused, mut others, mut wanted) = (false, false, false);
    for pool in pools {
        paused |= pool.paused;
        others |= !pool.paused;
        wanted |= !pool.paused
            && if before.detached {
                pool.active > before.since
            } else {
                now.saturating_sub(pool.active.max(before.since)) < IDLE
            };
    }
    let look = before.detached && others && now.saturating_sub(before.since) >= LOOK_AGAIN;
    let detached = paused && !wanted && !look;
    if detached == before.detached {
        before
    } else {
        Rest {
            detached,
            since: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const fn pool(paused: bool, active: u64) -> PoolState {
        let active = at(active);
        PoolState { paused, active }
    }

    const fn rest(detached: bool, since: u64) -> Rest {
        let since = at(since);
        Rest { detached, since }
    }

    #[test]
    fn the_probe_is_detached_while_nobody_needs_it() {
        for (before, pools, now, expected) in [
            // It is needed, or nothing says that it is not.
            (rest(false, 0), &[][..], 1000, rest(false, 0)),
            (rest(false, 0), &[pool(false, 0)], 1000, rest(false, 0)),
            (
                rest(false, 0),
                &[pool(true, 0), pool(false, 990)],
                1000,
                rest(false, 0),
            ),
            // All pause, or have been idle.
            (rest(false, 0), &[pool(true, 990)], 1000, rest(true, 1000)),
            (
                rest(false, 0),
                &[pool(true, 990), pool(false, 940)],
                1000,
                rest(true, 1000),
            ),
            // Attached a moment ago, to look.
            (
                rest(false, 990),
                &[pool(true, 0), pool(false, 0)],
                1000,
                rest(false, 990),
            ),
            // For as long as all pause.
            (rest(true, 10), &[pool(true, 0)], 5000, rest(true, 10)),
            (
                rest(true, 900),
                &[pool(true, 0), pool(false, 800)],
                1000,
                rest(true, 900),
            ),
            // A pause ends; a pool that was idle is looked for; the pool that paused is gone.
            (
                rest(true, 900),
                &[pool(true, 0), pool(false, 1000)],
                1000,
                rest(false, 1000),
            ),
            (
                rest(true, 700),
                &[pool(true, 0), pool(false, 0)],
                1000,
                rest(false, 1000),
            ),
            (rest(true, 900), &[pool(false, 0)], 1000, rest(false, 1000)),
        ] {
            assert_eq!(
                decide(before, pools.iter().copied(), at(now)),
                expected,
                "{before:?} {pools:?}"
            );
        }
    }
}
