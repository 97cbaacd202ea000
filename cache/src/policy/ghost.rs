//! For exclusive caches: a block that was hit or evicted before and is put again is protected, and kept longer than one that
//! is put for the first time, by as much as [`AdaptiveSplit`](super::AdaptiveSplit) finds useful.

use super::ghost_list::RemovalReason;
use super::{EvictionPolicy, Lists, PROBATIONARY};

pub(super) struct Ghost;

impl EvictionPolicy for Ghost {
    fn has_ghost_list(&self) -> bool {
        true
    }

    fn list(&self, of: &Lists<'_>) -> usize {
        let [probationary, protected] = (of.oldest)();
        usize::from(of.split.evicts_protected(probationary, protected))
    }

    fn remembers_evicted(&self, list: usize) -> Option<RemovalReason> {
        Some(match list {
            PROBATIONARY => RemovalReason::Probationary,
            _ => RemovalReason::Protected,
        })
    }

    fn remembers_taken(&self) -> bool {
        true
    }
}
