//! Containers in requests: the tag that a guest's kernel passes along, and the pool it stands for.

use crate::ids::PoolId;
use arc_swap::ArcSwap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where the I/O priority has its class (`include/uapi/linux/ioprio.h`).
const CLASS_SHIFT: u32 = 13;
/// The best-effort class.
const CLASS_BE: u32 = 2;
/// Where it has its hint, above three bits of level.
const HINT_SHIFT: u32 = 3;

/// A container's tag: the hint of a request's I/O priority, 1 to 1023. A guest may forge those of its own containers,
/// and reaches no pool of another VM by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerTag(u16);

impl ContainerTag {
    /// The largest tag.
    pub const MAX: u16 = 1023;

    /// A tag; `None` unless it is 1 to 1023.
    #[must_use]
    pub const fn new(tag: u16) -> Option<Self> {
        if 1 <= tag && tag <= Self::MAX {
            Some(Self(tag))
        } else {
            None
        }
    }

    /// The tag in the I/O priority of a request, which must be of the best-effort class; hint 0 is none.
    #[must_use]
    pub(crate) fn of_priority(priority: u32) -> Option<Self> {
        let hint = u16::try_from((priority >> HINT_SHIFT) & u32::from(Self::MAX)).ok()?;
        (priority >> CLASS_SHIFT == CLASS_BE)
            .then(|| Self::new(hint))
            .flatten()
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// The pools of a VM by tag. Read by every tagged request, changed seldom.
#[derive(Default)]
pub(crate) struct PoolTags(ArcSwap<BTreeMap<ContainerTag, PoolId>>);

impl PoolTags {
    pub(crate) fn get(&self, tag: ContainerTag) -> Option<PoolId> {
        self.0.load().get(&tag).copied()
    }

    /// The pool takes the blocks that are read with this tag from now on.
    pub(crate) fn set(&self, tag: ContainerTag, pool: PoolId) {
        self.0.rcu(|tags| {
            let mut tags = BTreeMap::clone(tags);
            tags.insert(tag, pool);
            Arc::new(tags)
        });
    }

    /// The pool has no tags any more.
    pub(crate) fn remove(&self, pool: PoolId) {
        self.0.rcu(|tags| {
            let mut tags = BTreeMap::clone(tags);
            tags.retain(|_, of| *of != pool);
            Arc::new(tags)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_the_hint_of_a_best_effort_priority() {
        let priority = |class: u32, hint: u32, level: u32| class << 13 | hint << 3 | level;
        let tag = |p| ContainerTag::of_priority(p).map(ContainerTag::get);
        assert_eq!(tag(priority(2, 1, 4)), Some(1));
        assert_eq!(tag(priority(2, 1023, 7)), Some(1023));
        for none in [
            0,
            priority(2, 0, 4),
            priority(1, 5, 0),
            priority(3, 5, 0),
            priority(2, 5, 0) | 1 << 16,
            u32::MAX,
        ] {
            assert_eq!(tag(none), None, "{none:#x}");
        }
        assert_eq!(
            (ContainerTag::new(0), ContainerTag::new(1024)),
            (None, None)
        );
    }
}
