//! Whose threads are looked at in a round, where there are more than a round is to take.

use justitia_kernel::cgroup::CgroupId;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Who had the last one.
    last: Option<CgroupId>,
}

impl Turns {
    /// One round. `look` looks at up to so many threads of a cgroup, always the same ones first, and says at how many it
    /// did. Of each of `ids`, ascending and fewer than `most`, it looks at a fair part of `most`. What is left over goes
    /// to those that have more threads, in turns: they are looked at from the first on again. All in all that is at most
    /// twice `most`.
    pub(crate) fn round(
        &mut self,
        ids: &[CgroupId],
        most: usize,
        mut look: impl FnMut(CgroupId, usize) -> usize,
    ) {
        let fair = (most / ids.len().max(1)).max(1);
        let mut left = most;
        let mut larger = Vec::new();
        for id in ids {
            let found = look(*id, fair);
            if found < fair {
                left = left.saturating_sub(found);
            } else {
                larger.push(*id);
            }
        }
        let (before, after): (Vec<_>, Vec<_>) = larger
            .into_iter()
            .partition(|id| self.last.is_some_and(|last| *id <= last));
        for id in after.into_iter().chain(before) {
            if left == 0 {
                return;
            }
            left = left.saturating_sub(look(id, left));
            self.last = Some(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MOST: usize = 4096;

    /// At how many threads was looked, of cgroups 0, 1, 2 and so on with so many.
    fn looked(threads: &[usize], rounds: usize) -> Vec<usize> {
        let of: BTreeMap<CgroupId, usize> = (0..).map(CgroupId).zip(threads.to_vec()).collect();
        let ids: Vec<CgroupId> = of.keys().copied().collect();
        let mut seen: BTreeMap<CgroupId, usize> = ids.iter().map(|id| (*id, 0)).collect();
        let mut turns = Turns::default();
        for _ in 0..rounds {
            let mut all = 0;
            turns.round(&ids, MOST, |id, most| {
                let found = of[&id].min(most);
                seen.insert(id, seen[&id].max(found));
                all += found;
                found
            });
            assert!(all <= 2 * MOST, "{all}");
        }
        seen.into_values().collect()
    }

    #[test]
    fn one_with_many_threads_takes_no_ones_turn() {
        for (threads, rounds, expected) in [
            (&[4096, 1][..], 2, &[4095, 1][..]),
            // However many there are of them.
            (
                &[9000, 9000, 9000, 9000, 100],
                1,
                &[3996, 819, 819, 819, 100],
            ),
            (
                &[9000, 9000, 9000, 9000, 100],
                4,
                &[3996, 3996, 3996, 3996, 100],
            ),
            // One with some more than its part has all looked at once the others had their turn.
            (&[9000, 3000, 2], 2, &[4094, 3000, 2]),
            (&[4096], 1, &[4096]),
            (&[10, 0, 30], 1, &[10, 0, 30]),
            (&[], 3, &[]),
        ] {
            assert_eq!(looked(threads, rounds), expected, "{threads:?}");
        }
    }
}
