//! A tree in flat vectors: cgroups, tenants, VMs and their pools.

#[cfg(test)]
mod tests;

use std::iter::successors;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// A node of a [`Tree`].
///
/// An id stays valid as long as its tree; in another tree it means another node, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(NonZeroU32);

impl NodeId {
    /// The id of the node at `index`.
    ///
    /// # Panics
    /// If that is above 2³² − 2.
    #[expect(
        clippy::expect_used,
        reason = "a tree does not grow that large in memory"
    )]
    fn new(index: usize) -> Self {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("fewer than 2³² nodes"))
    }

    /// The position of this node in its tree, and in every vector that is computed from that tree: 0 for the first node
    /// that was pushed.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0.get() - 1) as usize
    }
}

/// A node and its links. Children stand in a singly linked list, in the order in which they were pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node<T> {
    value: T,
    parent: Option<NodeId>,
    children: List,
    next_sibling: Option<NodeId>,
}

/// The first and the last of a list of siblings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct List {
    first: Option<NodeId>,
    last: Option<NodeId>,
}

/// A tree of values, stored parents first: a node's index is above its parent's.
///
/// The root has no node and no value. It is the host as a whole, as the root cgroup is: a node without a parent is right
/// below the root. So a tree may be empty, and a vector with an entry for each tenant is indexed as the tree is.
///
/// Every walk and fold is linear in the nodes that it visits; only [`Tree::fold_up`], [`Tree::map`] and their like
/// allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree<T> {
    nodes: Vec<Node<T>>,
    top: List,
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Tree<T> {
    /// An empty tree.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            top: List {
                first: None,
                last: None,
            },
        }
    }

    /// An empty tree with room for `nodes` nodes.
    #[must_use]
    pub fn with_capacity(nodes: usize) -> Self {
        Self {
            nodes: Vec::with_capacity(nodes),
            ..Self::new()
        }
    }

    /// Adds a node below `parent`, right below the root if that is `None`, after its siblings.
    ///
    /// # Panics
    /// If `parent` comes from another, larger tree, or the tree has 2³² − 1 nodes already.
    pub fn push(&mut self, parent: Option<NodeId>, value: T) -> NodeId {
        let id = NodeId::new(self.len());
        let siblings = match parent {
            Some(parent) => &mut self.nodes[parent.index()].children,
            None => &mut self.top,
        };
        let before = siblings.last.replace(id);
        match before {
            Some(before) => self.nodes[before.index()].next_sibling = Some(id),
            None => siblings.first = Some(id),
        }
        self.nodes.push(Node {
            value,
            parent,
            children: List::default(),
            next_sibling: None,
        });
        id
    }

    /// The number of nodes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node at this index.
    #[must_use]
    pub fn node(&self, index: usize) -> Option<NodeId> {
        (index < self.len()).then(|| NodeId::new(index))
    }

    /// The value of a node, if the tree has it.
    #[must_use]
    pub fn get(&self, node: NodeId) -> Option<&T> {
        self.nodes.get(node.index()).map(|n| &n.value)
    }

    /// The values in the order of their indices: parents first.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.nodes.iter().map(|n| &n.value)
    }

    /// [`Tree::values`], to be changed.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> + ExactSizeIterator {
        self.nodes.iter_mut().map(|n| &mut n.value)
    }
}

impl<T> Index<NodeId> for Tree<T> {
    type Output = T;

    fn index(&self, node: NodeId) -> &T {
        &self.nodes[node.index()].value
    }
}

impl<T> IndexMut<NodeId> for Tree<T> {
    fn index_mut(&mut self, node: NodeId) -> &mut T {
        &mut self.nodes[node.index()].value
    }
}

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
        let nodes = self.ids().zip(&self.nodes).map(|(id, node)| Node {
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

impl<T> Tree<T> {
    /// Every node in the order of the indices: parents first.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + use<T> {
        (0..self.len()).map(NodeId::new)
    }

    /// Every node with its value, in the order of the indices.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &T)> {
        self.ids().zip(self.values())
    }

    /// The parent of a node; `None` right below the root.
    #[must_use]
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.nodes[node.index()].parent
    }

    /// Whether a node has no children.
    #[must_use]
    pub fn is_leaf(&self, node: NodeId) -> bool {
        self.nodes[node.index()].children.first.is_none()
    }

    /// The children of a node, of the root for `None`, in the order in which they were pushed.
    pub fn children(&self, parent: Option<NodeId>) -> impl Iterator<Item = NodeId> + Clone {
        let list = parent.map_or(self.top, |parent| self.nodes[parent.index()].children);
        successors(list.first, |node| self.nodes[node.index()].next_sibling)
    }

    /// The root and every node that has children, parents first; the root is `None`.
    pub fn parents(&self) -> impl Iterator<Item = Option<NodeId>> {
        let inner = self.ids().filter(|node| !self.is_leaf(*node)).map(Some);
        std::iter::once(None).chain(inner)
    }

    /// The nodes above a node: its parent first.
    pub fn ancestors(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        successors(self.parent(node), |node| self.parent(*node))
    }
}
