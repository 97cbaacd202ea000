//! Circles in a graph.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// From, and to.
pub type Edge<N> = (N, N);

fn next_of<N: Ord + Clone>(edges: &BTreeSet<Edge<N>>) -> BTreeMap<N, Vec<N>> {
    let mut next: BTreeMap<N, Vec<N>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from.clone()).or_default().push(to.clone());
    }
    next
}

/// The edges that are part of any circle.
#[must_use]
pub fn edges_in_circles<N: Ord + Clone>(edges: &BTreeSet<Edge<N>>) -> BTreeSet<Edge<N>> {
    let in_circle = |edge: &&Edge<N>| circle_through(edges, edge).is_some();
    edges.iter().filter(in_circle).cloned().collect()
}

/// The shortest circle that begins with an edge, if there is one: its nodes, the first one again at the end.
#[must_use]
pub fn circle_through<N: Ord + Clone>(
    edges: &BTreeSet<Edge<N>>,
    (from, to): &Edge<N>,
) -> Option<Vec<N>> {
    let next = next_of(edges);
    let mut before: BTreeMap<&N, Option<&N>> = BTreeMap::from([(to, None)]);
    let mut queue = VecDeque::from([to]);
    while let Some(at) = queue.pop_front() {
        if at == from {
            let way = std::iter::successors(Some(at), |at| before.get(at).copied().flatten());
            let mut circle: Vec<N> = way.cloned().collect();
            circle.push(from.clone());
            // The way leads from the end to the start.
            circle.reverse();
            return Some(circle);
        }
        for follower in next.get(at).into_iter().flatten() {
            if !before.contains_key(follower) {
                before.insert(follower, Some(at));
                queue.push_back(follower);
            }
        }
    }
    None
}
