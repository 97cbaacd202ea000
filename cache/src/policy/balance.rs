//! How long newcomers and proven blocks may stay: the ghost policy's scales.
//!
//! A block's age is counted in evictions: as long as none is needed, nobody grows older. The next to go is the oldest newcomer, or the oldest proven block when
//! that is `patience` times as old. With a patience of 1 the two lists are one queue, the paper's FIFO. It
//! grows while proven blocks that were evicted come back more often than newcomers that were, and shrinks
//! while they come back less often: both lists' last blocks are worth the same in the end.

use super::ghost::Gone;

/// Ticks of the clock in one turn of the pool: the grain of a block's age.
const TICKS: u32 = 256;

/// Ages are counted modulo this: eight turns, more than patience lets any block see.
pub(crate) const CLOCK: u32 = 2048;

/// Patience in 256ths: 1 to 6, at first 1.
const MIN: u32 = 256;
const MAX: u32 = 1536;

pub(crate) struct Balance {
    clock: u32,
    evictions: u32,
    patience: u32,
    /// Evicted lately, and of these come back: newcomers, proven ones.
    gone: [u32; 2],
    back: [u32; 2],
}

impl Default for Balance {
    fn default() -> Self {
        Self {
            clock: 0,
            evictions: 0,
            patience: MIN,
            gone: [0; 2],
            back: [0; 2],
        }
    }
}

impl Balance {
    /// The time now, to be kept with a block.
    pub(crate) const fn now(&self) -> u32 {
        self.clock
    }

    /// Does the proven block of the second time go before the newcomer of the first?
    pub(crate) fn proven_goes(&self, newcomer: u32, proven: u32) -> bool {
        let age = |time: u32| u64::from((self.clock + CLOCK - time) % CLOCK) + 1;
        age(proven) * 256 > age(newcomer) * u64::from(self.patience)
    }

    /// A block of the list was evicted, and `len` are left.
    pub(crate) fn evicted(&mut self, list: usize, len: u32) {
        self.evictions += 1;
        if self.evictions > len / TICKS {
            self.evictions = 0;
            self.clock = (self.clock + 1) % CLOCK;
        }
        self.gone[list] += 1;
        if self.gone[0] + self.gone[1] > len.max(16) {
            for n in self.gone.iter_mut().chain(&mut self.back) {
                *n /= 2;
            }
        }
    }

    /// A block came back that had gone like this, to a pool of `len`.
    pub(crate) fn returned(&mut self, how: Gone, len: u32) {
        let list = match how {
            Gone::New => 0,
            Gone::Proven => 1,
            Gone::Taken => return,
        };
        self.back[list] += 1;
        // While no proven block was evicted lately, none has returned: patience shrinks until some are.
        let [new, proven] = [0, 1].map(|i| (u64::from(self.back[i]), u64::from(self.gone[i]) + 1));
        let step = (4 * MAX / len.max(1)).clamp(1, 64);
        // By a quarter more often: where both return alike, as in loops, one queue is best.
        self.patience = if proven.0 * new.1 * 4 > new.0 * proven.1 * 5 {
            (self.patience + step).min(MAX)
        } else {
            (self.patience - step.min(self.patience)).max(MIN)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evicts one of each list again and again, and has these come back.
    fn after(returning: &[Gone]) -> Balance {
        let mut balance = Balance::default();
        for _ in 0..4000 {
            balance.evicted(0, 1000);
            balance.evicted(1, 1000);
            for how in returning {
                balance.returned(*how, 1000);
            }
        }
        balance
    }

    #[test]
    fn whichever_returns_more_often_is_kept_longer() {
        assert_eq!(after(&[Gone::New]).patience, MIN);
        assert_eq!(after(&[Gone::Proven]).patience, MAX);
        assert_eq!(
            after(&[Gone::Taken]).patience,
            MIN,
            "hits say nothing of evictions"
        );
        assert_eq!(after(&[Gone::New, Gone::Proven]).patience, MIN, "a loop");
    }

    #[test]
    fn the_older_goes_unless_it_is_proven() {
        let one_queue = after(&[Gone::New]);
        let now = one_queue.now();
        let before = |ticks| (now + CLOCK - ticks) % CLOCK;
        assert!(one_queue.proven_goes(before(100), before(101)));
        assert!(!one_queue.proven_goes(before(100), before(100)));
        let patient = after(&[Gone::Proven]);
        assert_eq!(patient.now(), now);
        assert!(!patient.proven_goes(before(100), before(500)));
        assert!(patient.proven_goes(before(100), before(700)));
    }
}
