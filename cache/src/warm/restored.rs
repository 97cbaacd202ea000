//! What became of what an earlier daemon has left.

use std::collections::BTreeMap;

/// What became of what was saved of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// Blocks that are cached again.
    pub(crate) blocks: u64,
    /// Blocks that were dropped, by the reason.
    pub(crate) dropped: BTreeMap<String, u64>,
}

impl Restored {
    /// So many blocks were dropped.
    pub(crate) fn drop(&mut self, blocks: u64, why: impl Into<String>) {
        if blocks > 0 {
            *self.dropped.entry(why.into()).or_default() += blocks;
        }
    }

    /// Says it in the log. `store` is what it was saved of.
    pub(crate) fn log(&self, store: &str) {
        if self.blocks > 0 {
            tracing::info!("{} blocks of {store} are cached as before", self.blocks);
        }
        for (why, blocks) in &self.dropped {
            tracing::warn!("{blocks} blocks of {store} are not used again: {why}");
        }
    }
}
