use proptest::prelude::*;

use super::*;

impl<T> Tree<T> {
    /// A tree from the values in order, each with the index of its parent, `None` right below the root.
    pub(crate) fn from_parents(nodes: impl IntoIterator<Item = (Option<usize>, T)>) -> Self {
        let mut tree = Self::new();
        for (parent, value) in nodes {
            let parent = parent.map(|parent| tree.node(parent).expect("parents stand first"));
            tree.push(parent, value);
        }
        tree
    }
}

/// Two slices; the first has a service and a scope with a container, the second is empty.
fn host() -> Tree<&'static str> {
    let nodes = [
        (None, "system.slice"),
        (None, "machine.slice"),
        (Some(0), "a.service"),
        (Some(0), "b.scope"),
        (Some(3), "container"),
    ];
    Tree::from_parents(nodes)
}

/// The nodes below a node.
fn below<T>(tree: &Tree<T>, top: NodeId) -> impl Iterator<Item = NodeId> {
    tree.ids()
        .filter(move |node| tree.ancestors(*node).any(|above| above == top))
}

fn names(tree: &Tree<&'static str>, ids: impl Iterator<Item = NodeId>) -> Vec<&'static str> {
    ids.map(|id| tree[id]).collect()
}

#[test]
fn walks() {
    let tree = host();
    let id = |index| tree.node(index).unwrap();
    assert_eq!(
        names(&tree, tree.ancestors(id(4))),
        ["b.scope", "system.slice"]
    );
    assert_eq!(
        names(&tree, tree.children(None)),
        ["system.slice", "machine.slice"]
    );
    assert_eq!(
        names(&tree, tree.children(Some(id(0)))),
        ["a.service", "b.scope"]
    );
    let parents: Vec<_> = tree.parents().collect();
    assert_eq!(parents, [None, Some(id(0)), Some(id(3))]);
    assert_eq!(tree.node(5), None);
}

#[test]
fn an_empty_tree_has_only_the_root() {
    let tree = Tree::<u8>::default();
    assert!(tree.is_empty());
    assert_eq!(tree.ids().count(), 0);
    assert_eq!(tree.parents().collect::<Vec<_>>(), [None]);
    assert_eq!(tree.children(None).count(), 0);
}

#[test]
fn what_changes_on_the_way_up_has_seen_the_children() {
    let mut tree = host().map(|id, _| id.index());
    let sums = tree.fold_up_mut(
        |sum, child| *sum += child,
        |_, value, below: usize| {
            *value += below;
            *value
        },
    );
    assert_eq!(sums, [9, 1, 2, 7, 4]);
    assert_eq!(tree.values().copied().collect::<Vec<_>>(), sums);
}

/// Parents as fractions of the index, so that any vector describes a tree of any depth.
fn any_tree() -> impl Strategy<Value = Tree<u64>> {
    let node = (any::<prop::sample::Index>(), 0..1000u64);
    proptest::collection::vec(node, 0..40).prop_map(|nodes| {
        let nodes = nodes.into_iter().enumerate().map(|(i, (parent, value))| {
            let parent = parent.index(i + 1);
            (parent.checked_sub(1), value)
        });
        Tree::from_parents(nodes)
    })
}

proptest! {
    #[test]
    fn every_walk_visits_each_node_once(tree in any_tree()) {
        let all: Vec<NodeId> = tree.ids().collect();
        let mut children: Vec<NodeId> = tree.parents().flat_map(|p| tree.children(p)).collect();
        children.sort_unstable();
        prop_assert_eq!(&children, &all);
    }

    #[test]
    fn a_fold_sums_what_is_below(tree in any_tree()) {
        let sums = tree.fold_up(|sum, child| *sum += child, |_, value, below: u64| value + below);
        for id in tree.ids() {
            let expected: u64 = tree[id] + below(&tree, id).map(|d| tree[d]).sum::<u64>();
            prop_assert_eq!(sums[id.index()], expected);
        }
    }
}
