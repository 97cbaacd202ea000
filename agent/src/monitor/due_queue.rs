//! When each cgroup is due next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;

/// Cgroups in the order of their due times, each once.
#[derive(Debug, Default)]
pub struct DueQueue {
    /// Replaced entries stay in it until they are due.
    heap: BinaryHeap<Reverse<(Instant, CgroupId)>>,
    due: HashMap<CgroupId, Instant>,
}

impl DueQueue {
    /// Sets the due time of a cgroup, and replaces an earlier one. So a cgroup that is dropped and comes back is not sampled
    /// twice as often.
    pub fn put(&mut self, id: CgroupId, at: Instant) {
        self.due.insert(id, at);
        self.heap.push(Reverse((at, id)));
    }

    /// Removes and returns the cgroup that has been due for longest; `None` if none is due.
    pub fn take(&mut self, now: Instant) -> Option<CgroupId> {
        while let Some(&Reverse((at, id))) = self.heap.peek() {
            if at > now {
                return None;
            }
            self.heap.pop();
            if self.due.get(&id) == Some(&at) {
                self.due.remove(&id);
                return Some(id);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_cgroup_that_comes_back_is_due_once() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let (one, other) = (CgroupId(1), CgroupId(2));
        let mut queue = DueQueue::default();
        queue.put(one, at(5));
        queue.put(other, at(3));
        // It is removed, and added again, twice.
        queue.put(one, at(4));
        queue.put(one, at(4));
        assert_eq!(queue.take(at(2)), None);
        assert_eq!(queue.take(at(9)), Some(other));
        assert_eq!(queue.take(at(9)), Some(one));
        assert_eq!(queue.take(at(9)), None);
        assert!(queue.heap.is_empty() && queue.due.is_empty());
        queue.put(one, at(10));
        assert_eq!(queue.take(at(10)), Some(one));
    }
}
