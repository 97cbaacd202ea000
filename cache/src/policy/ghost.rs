//! For exclusive caches: a block that is put again after a hit or an eviction is protected. It stays longer than a block that
//! is put for the first time; [`AdaptiveSplit`](super::AdaptiveSplit) decides by how much.

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
