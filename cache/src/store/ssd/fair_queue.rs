//! Orders writes to the SSD: start-time fair queueing (Goyal, Vin, Cheng: Start-time Fair Queuing, SIGCOMM 1996), hierarchical
//! (section 3): first a VM is chosen by weight, then a pool of it. Every item is a segment, so all grants are of equal size.

use justitia_share::{Queueing, VirtualTime, WaitQueue, Weight};
use std::collections::{HashMap, VecDeque};

/// The least number of remembered owners without a backlog: their recent service counts when they come back.
const REMEMBERED: usize = 64;

/// The waiting items of one owner or of several.
pub(super) trait Backlog: Default {
    /// A waiting item.
    type Item;

    /// The number of waiting items.
    fn len(&self) -> usize;

    /// Takes the next item.
    fn pop(&mut self) -> Option<Self::Item>;
}

impl<T> Backlog for VecDeque<T> {
    type Item = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn pop(&mut self) -> Option<T> {
        self.pop_front()
    }
}

/// The backlogs of several owners. The next owner is chosen by weight.
pub(super) struct FairQueue<Q> {
    owners: HashMap<u32, Owner<Q>>,
    /// Owners with a backlog, and perhaps some whose backlog was removed.
    ready: WaitQueue<u32>,
    len: usize,
    /// The total weight of owners with a backlog.
    weight: u64,
}

struct Owner<Q> {
    weight: Weight,
    next_start: VirtualTime,
    is_ready: bool,
    backlog: Q,
}

impl<Q> Default for FairQueue<Q> {
    fn default() -> Self {
        Self {
            owners: HashMap::new(),
            ready: WaitQueue::new(Queueing::Sfq),
            len: 0,
            weight: 0,
        }
    }
}

impl<Q: Backlog> FairQueue<Q> {
    /// The part of `total` that an owner of this weight may have waiting: by weight among the owners with a backlog and itself.
    pub(super) fn part(&self, owner: u32, weight: Weight, total: usize) -> usize {
        let own = self.owners.get(&owner).filter(|o| o.backlog.len() > 0);
        let others = self.weight - own.map_or(0, |own| own.weight.get());
        let all = usize::try_from(others + weight.get()).unwrap_or(usize::MAX);
        let weight = usize::try_from(weight.get()).unwrap_or(usize::MAX);
        total.saturating_mul(weight) / all
    }

    /// The backlog of an owner.
    pub(super) fn backlog(&self, owner: u32) -> Option<&Q> {
        self.owners.get(&owner).map(|owner| &owner.backlog)
    }

    /// Changes an owner's backlog, and sets its weight.
    pub(super) fn change<R>(
        &mut self,
        id: u32,
        weight: Weight,
        change: impl FnOnce(&mut Q) -> R,
    ) -> R {
        self.forget_idle(id);
        let owner = self.owners.entry(id).or_insert_with(|| Owner {
            weight,
            next_start: VirtualTime::default(),
            is_ready: false,
            backlog: Q::default(),
        });
        let before = owner.backlog.len();
        self.weight -= counted(owner);
        owner.weight = weight;
        let result = change(&mut owner.backlog);
        self.weight += counted(owner);
        self.len = self.len - before + owner.backlog.len();
        make_ready(&mut self.ready, id, owner);
        result
    }

    /// Makes room for an unknown owner, by forgetting the owners without a backlog.
    fn forget_idle(&mut self, newcomer: u32) {
        let most = REMEMBERED.max(2 * self.ready.len());
        if self.owners.len() >= most && !self.owners.contains_key(&newcomer) {
            self.owners.retain(|_, owner| owner.is_ready);
        }
    }
}

/// The weight of an owner, if it has a backlog.
fn counted<Q: Backlog>(owner: &Owner<Q>) -> u64 {
    match owner.backlog.len() {
        0 => 0,
        _ => owner.weight.get(),
    }
}

/// Queues an owner with a backlog for its turn, once.
fn make_ready<Q: Backlog>(ready: &mut WaitQueue<u32>, id: u32, owner: &mut Owner<Q>) {
    if owner.backlog.len() > 0 && !owner.is_ready {
        owner.is_ready = true;
        owner.next_start = ready.push_from(owner.weight, owner.next_start, id);
    }
}

impl<Q: Backlog> Backlog for FairQueue<Q> {
    type Item = Q::Item;

    fn len(&self) -> usize {
        self.len
    }

    fn pop(&mut self) -> Option<Q::Item> {
        while let Some(id) = self.ready.pop() {
            let Some(owner) = self.owners.get_mut(&id) else {
                continue;
            };
            owner.is_ready = false;
            self.weight -= counted(owner);
            let item = owner.backlog.pop();
            self.weight += counted(owner);
            make_ready(&mut self.ready, id, owner);
            if item.is_some() {
                self.len -= 1;
                return item;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Flat = FairQueue<VecDeque<u32>>;
    type Tree = FairQueue<Flat>;

    fn weight(value: u64) -> Weight {
        Weight::try_from(value).unwrap()
    }

    fn put(queue: &mut Flat, owner: u32, w: u64) {
        queue.change(owner, weight(w), |waiting| waiting.push_back(owner));
    }

    /// The number of grants of each owner, of `grants`, when all always have two items waiting.
    fn saturated(weights: &[u64], grants: usize) -> Vec<u64> {
        let mut queue = Flat::default();
        let all = (0..).zip(weights);
        all.clone().for_each(|(n, w)| put(&mut queue, n, *w));
        all.for_each(|(n, w)| put(&mut queue, n, *w));
        let mut got = vec![0; weights.len()];
        for _ in 0..grants {
            let n = queue.pop().unwrap();
            let at = usize::try_from(n).unwrap();
            got[at] += 1;
            put(&mut queue, n, weights[at]);
        }
        got
    }

    #[test]
    fn owners_that_always_have_something_waiting_get_their_weight() {
        for (weights, grants, expected) in [
            (vec![1, 10], 11_000, vec![1000, 10_000]),
            (vec![1, 1], 1000, vec![500, 500]),
            (vec![100, 300, 600], 10_000, vec![1000, 3000, 6000]),
            (vec![1, 10_000], 20_002, vec![2, 20_000]),
            (vec![7], 100, vec![100]),
        ] {
            let got = saturated(&weights, grants);
            let close = got.iter().zip(&expected).all(|(a, b)| a.abs_diff(*b) <= 2);
            assert!(close, "{weights:?}: {got:?}");
        }
    }

    #[test]
    fn a_vm_s_part_is_divided_among_its_pools() {
        let mut queue = Tree::default();
        // VM 1 has pools of 100 and 300, VM 2 has one of 10,000, which counts inside of it alone.
        let owners = [(1, 10, 100), (1, 11, 300), (2, 20, 10_000)];
        let put = |queue: &mut Tree, (vm, pool, w): (u32, u32, u64)| {
            queue.change(vm, weight(100), |pools| put(pools, pool, w));
        };
        owners.iter().for_each(|owner| put(&mut queue, *owner));
        let mut got = HashMap::new();
        for _ in 0..8000 {
            let pool = queue.pop().unwrap();
            *got.entry(pool).or_insert(0_u32) += 1;
            put(
                &mut queue,
                owners[owners.iter().position(|o| o.1 == pool).unwrap()],
            );
        }
        for (pool, expected) in [(10, 1000), (11, 3000), (20, 4000_u32)] {
            assert!(got[&pool].abs_diff(expected) <= 2, "{got:?}");
        }
    }

    #[test]
    fn who_is_alone_gets_everything_and_owes_nothing_for_it() {
        let mut queue = Flat::default();
        for _ in 0..1000 {
            put(&mut queue, 1, 100);
            assert_eq!(queue.pop(), Some(1));
        }
        for _ in 0..20 {
            put(&mut queue, 1, 100);
            put(&mut queue, 2, 100);
        }
        let first: Vec<_> = (0..20).filter_map(|_| queue.pop()).collect();
        assert!(first.iter().filter(|n| **n == 1).count() >= 7, "{first:?}");
    }

    #[test]
    fn the_part_of_the_queue_is_by_weight_among_those_that_wait() {
        let mut queue = Flat::default();
        assert_eq!(queue.part(1, weight(1), 128), 128, "alone");
        put(&mut queue, 2, 9);
        for (owner, w, part) in [(1, 1, 12), (2, 9, 128), (3, 27, 96)] {
            assert_eq!(queue.part(owner, weight(w), 128), part, "{owner}");
        }
        put(&mut queue, 1, 1);
        assert_eq!(queue.part(2, weight(9), 128), 115);
        // A removed backlog does not count.
        queue.change(1, weight(1), VecDeque::clear);
        assert_eq!(
            (queue.part(2, weight(9), 128), Backlog::len(&queue)),
            (128, 1)
        );
        assert_eq!((queue.pop(), queue.pop()), (Some(2), None));
        assert_eq!((queue.weight, Backlog::len(&queue)), (0, 0));
    }

    #[test]
    fn owners_that_are_gone_are_forgotten() {
        let mut queue = Flat::default();
        for owner in 0..10_000 {
            put(&mut queue, owner, 100);
            assert_eq!(queue.pop(), Some(owner));
            assert!(queue.owners.len() <= REMEMBERED);
        }
    }

    proptest! {
        /// Nothing is lost or given twice, each owner's come in order, and the sums are right.
        #[test]
        fn everything_comes_once_in_the_order_of_its_owner(
            steps in prop::collection::vec((0_u32..5, 1_u64..=10_000, 0_u8..4), 1..300),
        ) {
            let mut queue = FairQueue::<VecDeque<(u32, usize)>>::default();
            let mut model: HashMap<u32, VecDeque<usize>> = HashMap::new();
            for (n, (owner, w, what)) in steps.into_iter().enumerate() {
                match what {
                    0 => {
                        let popped = queue.pop();
                        let all: usize = model.values().map(VecDeque::len).sum();
                        prop_assert_eq!(popped.is_some(), all > 0);
                        if let Some((owner, n)) = popped {
                            prop_assert_eq!(model.get_mut(&owner).unwrap().pop_front(), Some(n));
                        }
                    }
                    1 => {
                        let clear = |waiting: &mut VecDeque<_>| waiting.pop_back().map(|(_, n)| n);
                        let taken = queue.change(owner, weight(w), clear);
                        prop_assert_eq!(taken, model.entry(owner).or_default().pop_back());
                    }
                    _ => {
                        queue.change(owner, weight(w), |waiting| waiting.push_back((owner, n)));
                        model.entry(owner).or_default().push_back(n);
                    }
                }
                let waiting = |id: &u32| model.get(id).map_or(0, VecDeque::len);
                prop_assert_eq!(Backlog::len(&queue), (0..5).map(|id| waiting(&id)).sum::<usize>());
                let weights = queue.owners.iter().filter(|(id, _)| waiting(id) > 0);
                prop_assert_eq!(queue.weight, weights.map(|(_, o)| o.weight.get()).sum::<u64>());
            }
        }

        /// However owners with something waiting are chosen from, each gets its part, but for what one of them may be ahead.
        #[test]
        fn shares_follow_any_weights(weights in prop::collection::vec(1_u64..=10_000, 2..8)) {
            let total: u64 = weights.iter().sum();
            let got = saturated(&weights, 20_000);
            for (w, got) in weights.iter().zip(&got) {
                let due = w * 20_000 / total;
                let slack = u64::try_from(weights.len()).unwrap() + 1 + due / 1000;
                prop_assert!(got.abs_diff(due) <= slack, "{weights:?} {got}");
            }
        }
    }
}
