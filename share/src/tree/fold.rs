//! What is computed from a whole tree, or makes another one of it.

use super::{NodeId, Tree};

impl<T> Tree<T> {
    /// Computes one result a node from the bottom up. `merge` adds a child's result to the sum of its parent's children,
    /// which is the default at first; `result` makes a node's own of that sum. Siblings are merged last one first.
    ///
    /// The results are indexed by [`NodeId::index`].
    pub fn fold_up<A: Default>(
        &self,
        mut merge: impl FnMut(&mut A, &A),
        mut result: impl FnMut(NodeId, &T, A) -> A,
    ) -> Vec<A> {
        let mut results = defaults(self.len());
        for (id, value) in self.iter().rev() {
            let below = std::mem::take(&mut results[id.index()]);
            put(
                &mut results,
                id,
                self.parent(id),
                result(id, value, below),
                &mut merge,
            );
        }
        results
    }

    /// [`Tree::fold_up`] that may change the values on its way.
    pub fn fold_up_mut<A: Default>(
        &mut self,
        mut merge: impl FnMut(&mut A, &A),
        mut result: impl FnMut(NodeId, &mut T, A) -> A,
    ) -> Vec<A> {
        let mut results = defaults(self.len());
        for id in self.ids().rev() {
            let below = std::mem::take(&mut results[id.index()]);
            let found = result(id, &mut self[id], below);
            put(&mut results, id, self.parent(id), found, &mut merge);
        }
        results
    }

    /// A tree of the same shape and with the same ids, its values made from this one's, parents first.
    pub fn map<U>(&self, mut value: impl FnMut(NodeId, &T) -> U) -> Tree<U> {
        let nodes = self.ids().zip(&self.nodes).map(|(id, node)| super::Node {
            value: value(id, &node.value),
            parent: node.parent,
            children: node.children,
            next_sibling: node.next_sibling,
        });
        Tree {
            nodes: nodes.collect(),
            top: self.top,
        }
    }
}

fn defaults<A: Default>(len: usize) -> Vec<A> {
    std::iter::repeat_with(A::default).take(len).collect()
}

/// Adds a node's result to its parent's sum, and stores it.
fn put<A>(
    results: &mut [A],
    id: NodeId,
    parent: Option<NodeId>,
    result: A,
    merge: &mut impl FnMut(&mut A, &A),
) {
    if let Some(parent) = parent {
        merge(&mut results[parent.index()], &result);
    }
    results[id.index()] = result;
}
