//! The ways through a tree.

use std::iter::successors;

use super::{NodeId, Tree};

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
