use proptest::prelude::*;

use super::*;

/// Two slices; the first has a service and a scope with a container, the second is empty.
fn host() -> Tree<&'static str> {
    let nodes = [
        (None, "system.slice"),
        (None, "machine.slice"),
        (Some(0), "a.service"),
        (Some(0), "b.scope"),
        (Some(3), "container"),
    ];
    Tree::from_parents(nodes).unwrap()
}

fn names(tree: &Tree<&'static str>, ids: impl Iterator<Item = NodeId>) -> Vec<&'static str> {
    ids.map(|id| tree[id]).collect()
}

#[test]
fn walks() {
    let tree = host();
    let id = |index| tree.node(index).unwrap();
    assert_eq!(
        names(&tree, tree.preorder()),
        [
            "system.slice",
            "a.service",
            "b.scope",
            "container",
            "machine.slice"
        ]
    );
    assert_eq!(
        names(&tree, tree.descendants(id(0))),
        ["a.service", "b.scope", "container"]
    );
    assert_eq!(names(&tree, tree.descendants(id(3))), ["container"]);
    assert!(tree.descendants(id(4)).next().is_none());
    assert!(tree.descendants(id(1)).next().is_none(), "it is the last");
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
    assert_eq!(tree.preorder().count(), 0);
    assert_eq!(tree.parents().collect::<Vec<_>>(), [None]);
    assert_eq!(tree.children(None).count(), 0);
}

#[test]
fn a_parent_must_stand_before_its_child() {
    for (parent, node) in [(0, 0), (1, 0), (2, 1), (usize::MAX, 1)] {
        let nodes = [(None, ()), (None, ())];
        let nodes = nodes.into_iter().take(node).chain([(Some(parent), ())]);
        let error = Tree::from_parents(nodes).unwrap_err();
        assert_eq!(error, ParentError { node, parent });
    }
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

#[test]
fn a_node_goes_with_all_below_it() {
    let mut tree = host();
    let mut asked = Vec::new();
    tree.retain(|name| {
        asked.push(*name);
        *name != "b.scope"
    });
    assert_eq!(
        asked,
        ["system.slice", "machine.slice", "a.service", "b.scope"]
    );
    assert_eq!(
        names(&tree, tree.preorder()),
        ["system.slice", "a.service", "machine.slice"]
    );
    let service = tree.node(2).unwrap();
    assert_eq!(tree.parent(service), tree.node(0));
    assert!(tree.is_leaf(service));
    tree.retain(|_| false);
    assert_eq!(tree, Tree::new());
}

/// Parents as fractions of the index, so that any vector describes a tree of any depth.
fn any_tree() -> impl Strategy<Value = Tree<u64>> {
    let node = (any::<prop::sample::Index>(), 0..1000u64);
    proptest::collection::vec(node, 0..40).prop_map(|nodes| {
        let nodes = nodes.into_iter().enumerate().map(|(i, (parent, value))| {
            let parent = parent.index(i + 1);
            (parent.checked_sub(1), value)
        });
        Tree::from_parents(nodes).unwrap()
    })
}

proptest! {
    #[test]
    fn every_walk_visits_each_node_once(tree in any_tree()) {
        let all: Vec<NodeId> = tree.ids().collect();
        let mut preorder: Vec<NodeId> = tree.preorder().collect();
        preorder.sort_unstable();
        prop_assert_eq!(&preorder, &all);
        let mut children: Vec<NodeId> = tree.parents().flat_map(|p| tree.children(p)).collect();
        children.sort_unstable();
        prop_assert_eq!(&children, &all);
    }

    /// Preorder, descendants and ancestors agree on which node is below which.
    #[test]
    fn walks_agree(tree in any_tree()) {
        let preorder: Vec<NodeId> = tree.preorder().collect();
        for (at, node) in preorder.iter().enumerate() {
            let below: Vec<NodeId> = tree.descendants(*node).collect();
            prop_assert_eq!(&preorder[at + 1..=at + below.len()], &below[..]);
            let is_below = |other: &&NodeId| tree.ancestors(**other).any(|a| a == *node);
            prop_assert_eq!(preorder.iter().filter(is_below).count(), below.len());
        }
    }

    #[test]
    fn a_fold_sums_what_is_below(tree in any_tree()) {
        let sums = tree.fold_up(|sum, child| *sum += child, |_, value, below: u64| value + below);
        for id in tree.ids() {
            let expected: u64 = tree[id] + tree.descendants(id).map(|d| tree[d]).sum::<u64>();
            prop_assert_eq!(sums[id.index()], expected);
        }
    }

    #[test]
    fn what_is_kept_keeps_its_parent(tree in any_tree(), limit in 0..1000u64) {
        let stays = |id| std::iter::once(id).chain(tree.ancestors(id)).all(|a| tree[a] < limit);
        let expected: Vec<NodeId> = tree.ids().filter(|id| stays(*id)).collect();
        let mut numbered = tree.map(|id, value| (id, *value));
        numbered.retain(|(_, value)| *value < limit);
        let old: Vec<NodeId> = numbered.values().map(|(id, _)| *id).collect();
        prop_assert_eq!(old, expected);
        for id in numbered.ids() {
            let parent = numbered.parent(id).map(|p| numbered[p].0);
            prop_assert_eq!(parent, tree.parent(numbered[id].0));
        }
    }
}
