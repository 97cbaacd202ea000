use super::*;
use proptest::prelude::*;

fn weight(value: u64) -> Weight {
    Weight::try_from(value).unwrap()
}

/// Algorithm 1 to the letter: a list, a scan for the first greatest weight, then aging.
#[derive(Default)]
struct Literal {
    list: Vec<(u64, usize)>,
}

impl Literal {
    fn pop(&mut self, increment: u64) -> Option<usize> {
        let mut best: Option<usize> = None;
        for (at, (weight, _)) in self.list.iter().enumerate() {
            if best.is_none_or(|b| self.list[b].0 < *weight) {
                best = Some(at);
            }
        }
        let (_, value) = self.list.remove(best?);
        for (weight, _) in &mut self.list {
            *weight += increment;
        }
        Some(value)
    }
}

/// Grants of each contender when all come back at once after each of their grants.
fn closed_loop(queueing: Queueing, weights: &[u64], grants: usize) -> Vec<u64> {
    let mut queue = WaitQueue::new(queueing);
    let mut starts = vec![VirtualTime::default(); weights.len()];
    let mut served = vec![0; weights.len()];
    for (client, w) in weights.iter().enumerate() {
        starts[client] = queue.push_from(weight(*w), starts[client], client);
    }
    for _ in 0..grants {
        let client = queue.pop().unwrap();
        served[client] += 1;
        starts[client] = queue.push_from(weight(weights[client]), starts[client], client);
    }
    served
}

const WITHOUT_AGING: Queueing = Queueing::PriorityAging { increment: 0 };

const FIG12: [u64; 8] = [100, 1000, 1000, 1000, 1000, 1000, 1000, 1000];

#[test]
fn table_of_disciplines() {
    let waiting = [(100, 'a'), (1000, 'b'), (300, 'c'), (1000, 'd')];
    for (queueing, expected) in [
        (WITHOUT_AGING, "bdca"),
        (Queueing::default(), "bdca"),
        (Queueing::Sfq, "bdca"),
    ] {
        let mut queue = WaitQueue::new(queueing);
        for (w, name) in waiting {
            queue.push(weight(w), name);
        }
        let served: String = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(served, expected, "{queueing:?}");
        assert!(queue.is_empty());
    }
}

#[test]
fn the_passed_over_overtake_newcomers_by_the_increment() {
    let mut queue = WaitQueue::new(Queueing::PriorityAging { increment: 100 });
    queue.push(weight(100), "old");
    for _ in 0..9 {
        queue.push(weight(1000), "new");
        assert_eq!(queue.pop(), Some("new"));
    }
    // Nine grants passed it over: 100 + 900 equals a newcomer's 1000, and it came first.
    queue.push(weight(1000), "new");
    assert_eq!(queue.pop(), Some("old"));
}

#[test]
fn figure_12_in_grants() {
    let without = closed_loop(WITHOUT_AGING, &FIG12, 71_000);
    assert_eq!(without[0], 0, "without aging the light one starves");

    // Waits differ by (1000 - 100) / 100 = 9 grants, whatever the weights' ratio: far from 1 : 10.
    let aged = closed_loop(Queueing::default(), &FIG12, 71_000);
    assert!(aged[0] > 0);
    assert!(
        aged[1] < aged[0] * 3,
        "Algorithm 1 gives about 1 : 2.3, got {aged:?}"
    );

    let fair = closed_loop(Queueing::Sfq, &FIG12, 71_000);
    assert!(fair[0].abs_diff(1_000) <= 1, "{fair:?}");
    assert!(
        fair[1..].iter().all(|n| n.abs_diff(10_000) <= 10),
        "{fair:?}"
    );
}

/// Alone for long, the light one must not be made to pay for it for long.
#[test]
fn virtual_time_forgets_what_nobody_else_wanted() {
    let mut queue = WaitQueue::new(Queueing::Sfq);
    let mut light = VirtualTime::default();
    for _ in 0..1_000 {
        light = queue.push_from(weight(100), light, "light");
        assert_eq!(queue.pop(), Some("light"));
    }
    queue.push_from(weight(100), light, "light");
    let mut heavy = VirtualTime::default();
    let mut served = 0;
    loop {
        heavy = queue.push_from(weight(1000), heavy, "heavy");
        if queue.pop() == Some("light") {
            break;
        }
        served += 1;
    }
    assert!(served <= 50, "the light one waited for {served} grants");
}

proptest! {
    #[test]
    fn same_as_algorithm_1(
        steps in prop::collection::vec(prop::option::weighted(0.6, 1u64..=1000), 1..200),
        increment in 0u32..300,
    ) {
        let mut queue = WaitQueue::new(Queueing::PriorityAging { increment });
        let mut literal = Literal::default();
        for (id, step) in steps.into_iter().enumerate() {
            match step {
                Some(w) => {
                    queue.push(weight(w), id);
                    literal.list.push((w, id));
                }
                None => prop_assert_eq!(queue.pop(), literal.pop(increment.into())),
            }
            prop_assert_eq!(queue.len(), literal.list.len());
        }
        while let Some(id) = queue.pop() {
            prop_assert_eq!(Some(id), literal.pop(increment.into()));
        }
    }

    #[test]
    fn equals_are_served_as_they_came(
        w in 1u64..=10_000, count in 1usize..100, which in 0usize..3,
    ) {
        let queueing = [
            WITHOUT_AGING,
            Queueing::default(),
            Queueing::Sfq,
        ][which];
        let mut queue = WaitQueue::new(queueing);
        for id in 0..count {
            queue.push(weight(w), id);
        }
        let served: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        prop_assert_eq!(served, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn nobody_starves(
        weights in prop::collection::vec(1u64..=10_000, 2..12), increment in 1u32..1000,
    ) {
        // The documented bound: every contender is served within it, again and again.
        let bound = (10_000 / u64::from(increment) + 1) * weights.len() as u64;
        let mut queue = WaitQueue::new(Queueing::PriorityAging { increment });
        let mut last = vec![0u64; weights.len()];
        for (client, w) in weights.iter().enumerate() {
            queue.push(weight(*w), client);
        }
        for now in 1..=bound * 3 {
            let client = queue.pop().unwrap();
            prop_assert!(now - last[client] <= bound, "{client} waited {} of {bound}", now - last[client]);
            last[client] = now;
            queue.push(weight(weights[client]), client);
            for (other, at) in last.iter().enumerate() {
                prop_assert!(now - at <= bound, "{other} has waited {} of {bound}", now - at);
            }
        }
    }

    #[test]
    fn virtual_time_is_proportional(weights in prop::collection::vec(1u64..=10_000, 2..10)) {
        let total: u64 = weights.iter().sum();
        let served = closed_loop(Queueing::Sfq, &weights, 20_000);
        for (w, got) in weights.iter().zip(&served) {
            let due = w * 20_000 / total;
            // Never further from its due than the contenders together can be ahead: one grant each.
            let slack = weights.len() as u64 + 1 + due / 1000;
            prop_assert!(got.abs_diff(due) <= slack, "{weights:?} {served:?}");
        }
    }
}
