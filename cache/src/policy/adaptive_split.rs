//! The stay of probationary and protected blocks: the adaptive part of the ghost policy.
//!
//! A block's age is counted in evictions. The next victim is the oldest probationary block, or the oldest protected one if that
//! is `age_factor` times as old. With an age factor of 1 the two lists are one queue, the paper's FIFO. The factor grows while
//! evicted protected blocks are put again more often than evicted probationary ones, and shrinks in the opposite case. So the
//! oldest blocks of both lists become equally useful.

use super::ghost_list::RemovalReason;

/// Ticks of the clock in one turn of the pool: the grain of a block's age.
const TICKS: u32 = 256;

/// Ages are counted modulo this: eight turns, more than the age factor lets any block reach.
const CLOCK: u32 = 2048;

/// The age factor in 256ths: 1 to 6, at first 1.
const MIN: u32 = 256;
const MAX: u32 = 1536;

pub(crate) struct AdaptiveSplit {
    clock: u32,
    evictions: u32,
    age_factor: u32,
    /// Recently evicted blocks, and those of them that were put again: of the probationary list, of the protected list.
    gone: [u32; 2],
    back: [u32; 2],
}

impl Default for AdaptiveSplit {
    fn default() -> Self {
        Self {
            clock: 0,
            evictions: 0,
            age_factor: MIN,
            gone: [0; 2],
            back: [0; 2],
        }
    }
}

impl AdaptiveSplit {
    /// The current time, to be stored with a block.
    pub(crate) const fn now(&self) -> u32 {
        self.clock
    }

    /// Is the protected block with the second time evicted before the probationary one with the first?
    pub(crate) fn evicts_protected(&self, probationary: u32, protected: u32) -> bool {
        let age = |time: u32| u64::from((self.clock + CLOCK - time) % CLOCK) + 1;
        age(protected) * 256 > age(probationary) * u64::from(self.age_factor)
    }

    /// Notes that a block of the list was evicted; `len` blocks remain.
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

    /// Notes that a block was put again that was removed for this reason, in a pool of `len` blocks.
    pub(crate) fn returned(&mut self, how: RemovalReason, len: u32) {
        let list = match how {
            RemovalReason::Probationary => 0,
            RemovalReason::Protected => 1,
            RemovalReason::TakenByHit | RemovalReason::Distant => return,
        };
        self.back[list] += 1;
        // While no protected block was evicted recently, none is put again: the factor shrinks until some are.
        let [probationary, protected] =
            [0, 1].map(|i| (u64::from(self.back[i]), u64::from(self.gone[i]) + 1));
        let step = (4 * MAX / len.max(1)).clamp(1, 64);
        // The threshold is a quarter more often: where both are put again equally often, as in loops, one queue is best.
        self.age_factor = if protected.0 * probationary.1 * 4 > probationary.0 * protected.1 * 5 {
            (self.age_factor + step).min(MAX)
        } else {
            (self.age_factor - step.min(self.age_factor)).max(MIN)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evicts one of each list again and again, and has these come back.
    fn after(returning: &[RemovalReason]) -> AdaptiveSplit {
        let mut split = AdaptiveSplit::default();
        for _ in 0..4000 {
            split.evicted(0, 1000);
            split.evicted(1, 1000);
            for how in returning {
                split.returned(*how, 1000);
            }
        }
        split
    }

    #[test]
    fn the_list_whose_blocks_are_reused_more_is_kept_longer() {
        assert_eq!(after(&[RemovalReason::Probationary]).age_factor, MIN);
        assert_eq!(after(&[RemovalReason::Protected]).age_factor, MAX);
        assert_eq!(
            after(&[RemovalReason::TakenByHit]).age_factor,
            MIN,
            "hits say nothing of evictions"
        );
        assert_eq!(
            after(&[RemovalReason::Probationary, RemovalReason::Protected]).age_factor,
            MIN,
            "a loop"
        );
    }

    #[test]
    fn the_older_block_is_evicted_unless_it_is_protected() {
        let one_queue = after(&[RemovalReason::Probationary]);
        let now = one_queue.now();
        let before = |ticks| (now + CLOCK - ticks) % CLOCK;
        assert!(one_queue.evicts_protected(before(100), before(101)));
        assert!(!one_queue.evicts_protected(before(100), before(100)));
        let patient = after(&[RemovalReason::Protected]);
        assert_eq!(patient.now(), now);
        assert!(!patient.evicts_protected(before(100), before(500)));
        assert!(patient.evicts_protected(before(100), before(700)));
    }
}
