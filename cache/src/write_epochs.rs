//! Decides which reads may fill the cache: keeps reads that raced with a write out of it.
//!
//! A disk's blocks are divided into *write epochs*, some neighbours to one ([`Grain`]). A write epoch counts the writes in
//! flight, and every beginning of a write advances it. A fill takes a *fill token* ([`FillToken`]) before it reads the backing
//! store. It presents the token when it inserts, under the lock of the block's index shard. The token is valid only if no write
//! was in flight and none has begun since.
//!
//! Why that suffices: a writer first advances the epoch and only then takes the shard's lock to remove the block. A fill that
//! checks before the advance has inserted before the writer looks, so its block is removed. A fill that checks after it sees
//! the advance. The shard's lock orders the two. Until the write has ended no block can be inserted, so none needs to be
//! removed at its end.

use crate::block;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The layout of a disk's write epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grain {
    /// Neighbouring blocks that share an epoch.
    blocks: u64,
    /// The number of epochs. Distant ranges share one, which costs a fill now and then.
    ranges: u64,
}

impl Grain {
    /// 256 KiB an epoch, 8 KiB of memory.
    pub(crate) const COARSE: Self = Self {
        blocks: 64,
        ranges: 1024,
    };

    /// 32 KiB an epoch, 32 KiB of memory: neighbouring writes do not count as racing, so that their contents are known for a
    /// guest that may put.
    pub(crate) const FINE: Self = Self {
        blocks: 8,
        ranges: 4096,
    };
}

/// The low bits count writes in flight, the rest beginnings: 2^40 of them.
const IN_FLIGHT: u64 = (1 << 24) - 1;
const BEGINNING: u64 = 1 << 24;

/// The write epoch of a range when a fill began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FillToken(u64);

/// Tokens with which a write may set its blocks' hashes once it has ended. For each range it has the expected state if no other
/// write was in flight at any time.
#[derive(Debug, Default)]
pub(crate) struct WriteTokens {
    /// The first range.
    first: u64,
    /// Blocks of a range; 0 when there are no tokens.
    grain: u64,
    tokens: Vec<FillToken>,
}

impl WriteTokens {
    /// The token for a block; `None` when the write does not touch it, or was too large to have tokens.
    pub(crate) fn of(&self, block: u64) -> Option<FillToken> {
        let range = block.checked_div(self.grain)?.checked_sub(self.first)?;
        self.tokens.get(usize::try_from(range).ok()?).copied()
    }
}

/// The write epochs of one disk.
pub(crate) struct WriteEpochs {
    epochs: Box<[AtomicU64]>,
    grain: Grain,
}

impl WriteEpochs {
    pub(crate) fn new(grain: Grain) -> Self {
        Self {
            epochs: (0..grain.ranges).map(|_| AtomicU64::new(0)).collect(),
            grain,
        }
    }

    fn epoch(&self, block: u64) -> &AtomicU64 {
        // The remainder is below the number of epochs.
        let i = usize::try_from(block / self.grain.blocks % self.grain.ranges).unwrap_or(0);
        &self.epochs[i]
    }

    /// Takes a token, before the backing store is read.
    pub(crate) fn token(&self, block: u64) -> FillToken {
        FillToken(self.epoch(block).load(Ordering::SeqCst))
    }

    /// May content that was read under `token` be inserted now? Call it under the shard's lock.
    pub(crate) fn allows_fill(&self, block: u64, token: FillToken) -> bool {
        token.0 & IN_FLIGHT == 0 && self.token(block) == token
    }

    /// Notes that a write to the byte range is about to be submitted.
    pub(crate) fn begin(&self, off: u64, len: u64) {
        self.each(off, len, |c| {
            c.fetch_add(BEGINNING + 1, Ordering::SeqCst);
        });
    }

    /// As [`begin`](Self::begin), with the tokens to set hashes of the written blocks.
    pub(crate) fn begin_with_tokens(&self, off: u64, len: u64) -> WriteTokens {
        let blocks = block::touching(off, len);
        let mut found = WriteTokens {
            first: blocks.start / self.grain.blocks,
            grain: self.grain.blocks,
            tokens: Vec::new(),
        };
        let in_order = blocks.end - blocks.start < (self.grain.ranges - 1) * self.grain.blocks;
        self.each(off, len, |c| {
            let before = c.fetch_add(BEGINNING + 1, Ordering::SeqCst);
            if in_order {
                // The state when this write alone has ended.
                found.tokens.push(FillToken(before.wrapping_add(BEGINNING)));
            }
        });
        found
    }

    /// Notes that the write of [`begin`](Self::begin) has ended, successfully or not.
    pub(crate) fn end(&self, off: u64, len: u64) {
        self.each(off, len, |c| {
            c.fetch_sub(1, Ordering::SeqCst);
        });
    }

    /// Calls `f` once for every write epoch that the range touches.
    fn each(&self, off: u64, len: u64, mut f: impl FnMut(&AtomicU64)) {
        let Range { start, end } = block::touching(off, len);
        if start == end {
            return;
        }
        let Grain { blocks, ranges } = self.grain;
        let first = start / blocks;
        let last = (end - 1) / blocks;
        if last - first + 1 >= ranges {
            self.epochs.iter().for_each(f);
        } else {
            (first..=last).for_each(|r| f(self.epoch(r * blocks)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_token_ends_with_the_first_write_that_touches_its_range() {
        let g = WriteEpochs::new(Grain::COARSE);
        let token = g.token(3);
        assert!(g.allows_fill(3, token));
        g.begin(3 * 4096 + 100, 1);
        assert!(!g.allows_fill(3, token));
        assert!(
            !g.allows_fill(3, g.token(3)),
            "taken while a write is in flight"
        );
        g.end(3 * 4096 + 100, 1);
        assert!(!g.allows_fill(3, token));
        assert!(g.allows_fill(3, g.token(3)));
        assert!(g.allows_fill(64, g.token(64)));
    }

    #[test]
    fn a_write_over_everything_touches_every_epoch_once() {
        let g = WriteEpochs::new(Grain::COARSE);
        let size = 64 * 1024 * 4096 * 3;
        g.begin(0, size);
        assert!(
            g.epochs
                .iter()
                .all(|c| c.load(Ordering::SeqCst) == BEGINNING + 1)
        );
        g.end(0, size);
        assert!(
            g.epochs
                .iter()
                .all(|c| c.load(Ordering::SeqCst) == BEGINNING)
        );
    }

    #[test]
    fn a_write_may_say_what_it_has_written_if_it_was_alone() {
        let g = WriteEpochs::new(Grain::FINE);
        let whole = |block: u64| (block * 4096, 4096);
        let begin = |block: u64| g.begin_with_tokens(whole(block).0, whole(block).1);
        let end = |block: u64| g.end(whole(block).0, whole(block).1);
        let tokens = begin(9);
        let mine = tokens.of(9).unwrap();
        assert_eq!((tokens.of(7), tokens.of(16)), (None, None));
        assert!(!g.allows_fill(9, mine), "it has not ended");
        end(9);
        assert!(g.allows_fill(9, mine));
        // Another began before it and ended after it, and one began while it was in flight.
        let outer = begin(9);
        let inner = begin(9);
        end(9);
        assert!(!g.allows_fill(9, inner.of(9).unwrap()));
        end(9);
        for tokens in [outer, inner] {
            assert!(!g.allows_fill(9, tokens.of(9).unwrap()));
        }
        let huge = g.begin_with_tokens(0, 8 * 4096 * 4096);
        assert_eq!(huge.of(0), None);
    }

    #[test]
    fn nothing_written_nothing_touched() {
        let g = WriteEpochs::new(Grain::COARSE);
        let token = g.token(0);
        g.begin(0, 0);
        assert!(g.allows_fill(0, token));
    }
}
