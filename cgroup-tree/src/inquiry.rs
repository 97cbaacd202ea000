//! When it is asked what a cgroup is.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupId;

/// When a cgroup is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inquiry {
    /// The next time, if any.
    pub due: Option<Instant>,
    /// The last time.
    pub done: Option<Instant>,
    /// How often files were missing.
    pub tries: u8,
    /// Whether it is asked for once more, whatever comes out.
    pub confirm: bool,
}

/// The cgroups that are to be asked for, the earliest first. An entry counts if it is the node's [`Inquiry`].
#[derive(Debug, Default)]
pub(crate) struct Inquiries(pub BinaryHeap<Reverse<(Instant, CgroupId)>>, pub Pauses);

/// Inquiries in a delegated subtree may take one second in this many. Its owner can make many cgroups there, and long
/// files for each.
const PART: u32 = 50;
/// A rest saves up this much time: after it, inquiries may take a fiftieth of it at once, 20 ms.
const BURST: Duration = Duration::from_secs(1);

/// Until when inquiries in delegated subtrees have used up their time, by the cgroup that is delegated.
#[derive(Debug, Default)]
pub(crate) struct Pauses(HashMap<CgroupId, Instant>);

impl Pauses {
    /// When the next cgroup of a subtree may be asked for, if not at `now`.
    pub(crate) fn until(&self, root: CgroupId, now: Instant) -> Option<Instant> {
        let used_up = self.0.get(&root)?;
        used_up.checked_sub(BURST).filter(|until| *until > now)
    }

    /// An inquiry in a subtree has taken so long.
    pub(crate) fn charge(&mut self, root: CgroupId, took: Duration, now: Instant) {
        self.0.retain(|_, used_up| *used_up > now);
        *self.0.entry(root).or_insert(now) += took * PART;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subtree_has_its_part_of_the_time_and_holds_up_no_other() {
        let (busy, other) = (CgroupId(1), CgroupId(2));
        let begin = Instant::now();
        let mut pauses = Pauses::default();
        let (mut now, mut took) = (begin, Duration::ZERO);
        while now - begin < Duration::from_secs(100) {
            match pauses.until(busy, now) {
                Some(later) => now = later,
                None => {
                    let one = Duration::from_millis(7);
                    pauses.charge(busy, one, now);
                    (now, took) = (now + one, took + one);
                }
            }
            assert_eq!(pauses.until(other, now), None);
        }
        let seconds = took.as_secs_f64();
        assert!((1.9..2.1).contains(&seconds), "{seconds} of 100");
        pauses.charge(other, Duration::ZERO, now + Duration::from_secs(100));
        assert_eq!(pauses.0.len(), 1, "who rests is forgotten");
    }
}
