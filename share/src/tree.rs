//! The weight tree: host → slice → container, or host → VM → container.

use crate::Weight;

/// A node of a [`Tree`]: an index into every vector that is computed from that tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) usize);

impl NodeId {
    /// The root of every tree.
    pub const ROOT: Self = Self(0);

    /// The position of this node in the vectors that are computed from its tree.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// What a tenant brings to the division. The unit is the caller's: bytes, credits, blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Weight among the siblings.
    pub weight: Weight,
    /// What it gets before anything is divided by weight (for an inner node, at least the sum of its
    /// children's floors).
    pub floor: u64,
    /// What it is known to have a use for: served, by weight, before anybody's demand beyond that (for an inner node, the
    /// sum of its children's, whatever is claimed here).
    pub useful: u64,
    /// What it can use at most (for an inner node, a cap on the sum of its children's demands).
    pub demand: u64,
}

impl Claim {
    /// A tenant of this weight that takes whatever it can get: Justitia's tenants (section III-B1).
    #[must_use]
    pub const fn unlimited(weight: Weight) -> Self {
        Self {
            weight,
            floor: 0,
            useful: 0,
            demand: u64::MAX,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) parent: usize,
    pub(crate) claim: Claim,
    pub(crate) wish: u64,
}

/// A weight tree. Nodes are added parents first, so every node's index is above its parent's.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) nodes: Vec<Node>,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// A tree with only its root.
    #[must_use]
    pub fn new() -> Self {
        let claim = Claim::unlimited(Weight::default());
        Self {
            nodes: vec![Node {
                parent: 0,
                claim,
                wish: 0,
            }],
        }
    }

    /// Adds a tenant below `parent`.
    ///
    /// # Panics
    /// If `parent` comes from another, larger tree.
    pub fn add(&mut self, parent: NodeId, claim: Claim) -> NodeId {
        assert!(
            parent.0 < self.nodes.len(),
            "the parent is a node of this tree"
        );
        self.nodes.push(Node {
            parent: parent.0,
            claim,
            wish: 0,
        });
        NodeId(self.nodes.len() - 1)
    }

    /// The number of nodes, the root included.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a tree always has its root")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The parent of a node; the root's is the root.
    #[must_use]
    pub fn parent(&self, node: NodeId) -> NodeId {
        NodeId(self.nodes[node.0].parent)
    }

    /// What a node claims.
    #[must_use]
    pub fn claim(&self, node: NodeId) -> Claim {
        self.nodes[node.0].claim
    }

    /// Changes what a node claims.
    pub fn set_claim(&mut self, node: NodeId, claim: Claim) {
        self.nodes[node.0].claim = claim;
    }

    /// What a node asks to get first, as its floor, but among its siblings only: it is never carried up to the
    /// parent, and gives way to the siblings' floors. For the word of who may decide inside the parent, but not
    /// how much the parent gets.
    pub fn set_wish(&mut self, node: NodeId, wish: u64) {
        self.nodes[node.0].wish = wish;
    }

    /// Every node but the root, parents first.
    pub fn tenants(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (1..self.nodes.len()).map(NodeId)
    }

    /// The children of every node, each group in the order in which it was added.
    pub(crate) fn groups(&self) -> Groups {
        let mut starts = vec![0; self.nodes.len() + 1];
        for node in &self.nodes[1..] {
            starts[node.parent + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut members = vec![0; self.nodes.len() - 1];
        for (i, node) in self.nodes.iter().enumerate().skip(1) {
            members[next[node.parent]] = i;
            next[node.parent] += 1;
        }
        Groups { starts, members }
    }
}

/// The sibling groups of a tree, in two flat vectors.
pub(crate) struct Groups {
    starts: Vec<usize>,
    members: Vec<usize>,
}

impl Groups {
    pub(crate) fn children(&self, node: usize) -> &[usize] {
        &self.members[self.starts[node]..self.starts[node + 1]]
    }
}
