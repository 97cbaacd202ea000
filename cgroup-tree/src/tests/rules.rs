//! What rules of the configuration, and containers of root, do to the tree.

use std::path::PathBuf;

use super::*;

/// The pages of an excluded cgroup are not its parent's, nor may they be taken with the parent's.
#[test]
fn pages_of_an_excluded_child_are_counted_apart() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cgroup");
    let stat = |path: &str, mib: u64| {
        let text = format!(
            "anon 0\nfile 0\ninactive_file {}\nactive_file 0\n",
            mib * MIB
        );
        write(root.join(path).join("memory.stat"), text).unwrap();
        write(
            root.join(path).join("memory.current"),
            format!("{}\n", mib * MIB),
        )
        .unwrap();
        write(root.join(path).join("cpu.stat"), "usage_usec 0\n").unwrap();
    };
    for (path, mib) in [("a", 100), ("a/ours", 30), ("a/backup", 20)] {
        cgroup(&root.join(path), 0, 100);
        stat(path, mib);
    }
    let rules = [rule("a/backup", EXCLUDE)];
    let mut seen = Fixture::of(&root, &rules);
    let a = seen.node("a").cgroup.id();
    let sample = |seen: &mut Fixture| {
        let node = seen.0.get_mut(a).unwrap();
        node.read_excluded();
        (node.excluded_cache / MIB, node.has_unmanaged_children())
    };
    assert_eq!(seen.0.len(), 2);
    assert_eq!(sample(&mut seen), (20, true));
    seen.0
        .rescan(&rules, Instant::now(), &mut Changes::default());
    stat("a/backup", 25);
    assert_eq!(sample(&mut seen), (25, true), "known once");
    std::fs::remove_dir_all(root.join("a/backup")).unwrap();
    assert_eq!(sample(&mut seen), (0, false));
}

/// Six cgroups below `dir`, of which `user` is delegated; their root.
fn delegated(dir: &Path) -> PathBuf {
    let root = dir.join("cgroup");
    for path in [
        "user",
        "user/backup",
        "user/web",
        "user/db",
        "backup",
        "user/web/backup",
    ] {
        cgroup(&root.join(path), 0, 100);
    }
    delegate(&root.join("user"), &["."]);
    root
}

/// A delegatee chooses the names: an `exclude` with wildcards does not apply in a delegated subtree.
#[test]
fn a_delegatee_gains_nothing_by_a_name_that_a_rule_matches() {
    let dir = tempfile::tempdir().unwrap();
    let root = delegated(dir.path());
    let paths = |excluded: &str| {
        let seen = Fixture::of(&root, &[rule(excluded, EXCLUDE)]);
        let nodes = seen.0.nodes.values();
        let mut paths: Vec<String> = nodes
            .map(|n| n.cgroup.path().display().to_string())
            .collect();
        paths.sort();
        paths.join(" ")
    };
    let all = "backup user user/backup user/db user/web user/web/backup";
    for (excluded, expected) in [
        (
            "**/backup",
            "user user/backup user/db user/web user/web/backup",
        ),
        ("*/backup", all),
        ("user/{backup,web}", all),
        ("user/b?ckup", all),
        (
            "user/backup",
            "backup user user/db user/web user/web/backup",
        ),
        ("us*/backup", all),
        (
            "user/web/backup",
            "backup user user/backup user/db user/web",
        ),
        ("**/web/backup", all),
        ("u*", "backup"),
    ] {
        assert_eq!(paths(excluded), expected, "{excluded}");
    }
}

/// Neither a weight nor a minimum in a delegated subtree changes what the subtree gets.
#[test]
fn a_delegatee_gains_nothing_by_a_weight_or_a_minimum_in_its_subtree() {
    let dir = tempfile::tempdir().unwrap();
    let root = delegated(dir.path());
    let everywhere = with_minimum(weighs(10_000));
    let seen = Fixture::of(&root, &[rule("**", everywhere)]);
    assert_eq!(
        seen.minimums("user/db"),
        (0, 64),
        "requested among its siblings"
    );
    assert_eq!(seen.weight("user/db").0, 10_000, "as its siblings have");
    // The only child's weight is not the parent's, wherever it is set.
    let rules = [
        rule("user/web/*", weighs(7000)),
        rule("user/*", weighs(10_000)),
    ];
    let seen = Fixture::of(&root, &rules);
    assert_eq!(seen.weight("user"), (100, WeightSource::Default));
}

/// Root in a container without a user namespace owns the files as the administrator does.
#[test]
fn settings_of_roots_containers_count_inside_them() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cgroup");
    cgroup(&root.join("scope"), 10, 100);
    cgroup(&root.join("scope/c"), 30, 10_000);
    cgroup(&root.join("scope/c/d"), 40, 9000);
    let delegated = |delegated: bool| [rule("scope", delegates(delegated))];
    let said = |seen: &Fixture| {
        let minimums = ["scope", "scope/c", "scope/c/d"].map(|path| seen.minimums(path));
        (seen.weight("scope"), minimums)
    };
    let administrators = (
        (10_000, WeightSource::OnlyChild),
        [(10, 0), (30, 0), (40, 0)],
    );
    let containers = ((100, WeightSource::Default), [(10, 0), (0, 30), (0, 40)]);
    assert_eq!(said(&Fixture::of(&root, &[])), administrators);
    assert_eq!(said(&Fixture::of(&root, &delegated(true))), containers);

    // Found later: systemd's attribute, or a namespace whose root is the scope.
    let later = |rules: &[Rule], marked: bool, namespace_root: &str| {
        let mut seen = Fixture::of(&root, rules);
        let scope = seen.node("scope").cgroup.id();
        let inner = seen
            .0
            .nodes
            .values()
            .find(|n| n.cgroup.path() == Path::new(namespace_root));
        let inner = inner.map(|n| n.cgroup.id());
        seen.0.get_mut(scope).unwrap().delegate_xattr = marked;
        if let Some(node) = inner.and_then(|id| seen.0.get_mut(id)) {
            node.namespace_root = true;
        }
        seen.0.apply_delegation(scope, &mut Changes::default());
        said(&seen)
    };
    assert_eq!(later(&[], true, ""), containers);
    assert_eq!(later(&[], false, "scope"), containers);
    assert_eq!(later(&[], true, "scope"), containers);
    assert_eq!(later(&delegated(false), true, "scope"), administrators);
    // The scope is the runtime's, and the container lives in the child and cannot write it: podman with crun.
    let runtimes = (
        (10_000, WeightSource::OnlyChild),
        [(10, 0), (30, 0), (0, 40)],
    );
    assert_eq!(later(&[], true, "scope/c"), runtimes);
    assert_eq!(later(&[], false, "scope/c").1, [(10, 0), (30, 0), (0, 40)]);
}

/// What the tree shows of each cgroup, in the order of their paths.
fn shown(seen: &Fixture) -> Vec<String> {
    let mut shown: Vec<String> = seen
        .0
        .nodes
        .values()
        .map(|node| {
            let excluded: Vec<_> = node.excluded.iter().map(|c| c.path().to_owned()).collect();
            format!(
                "{} {:?} {:?} delegated: {} excluded: {excluded:?}",
                node.cgroup.path().display(),
                node.minimums(0, Protection::ROOT, 0),
                seen.0.weight(node),
                node.in_delegation,
            )
        })
        .collect();
    shown.sort();
    let top: Vec<_> = seen.0.excluded.iter().map(|c| c.path()).collect();
    shown.push(format!("excluded: {top:?}"));
    shown
}

/// Names and unit files of a subtree prove nothing where others may make cgroups, and do where they may not.
#[test]
fn what_a_cgroup_is_follows_whose_subtree_it_is_in() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let path = "system.slice/db.service";
    cgroup(&root.join("system.slice"), 0, 100);
    cgroup(&root.join(path), 0, 300);
    let units = root.join("etc/systemd/system");
    std::fs::create_dir_all(&units).unwrap();
    write(units.join("db.service"), "[Service]\nIOWeight=700\n").unwrap();
    let mut seen = Fixture::of(root, &[]);
    let before = seen.weight(path);
    let delegated = [rule("system.slice", delegates(true))];
    for (rules, expected) in [
        (&delegated[..], Fixture::of(root, &delegated).weight(path)),
        (&[], before),
    ] {
        let now = Instant::now();
        seen.0.apply_rules(rules, now, &mut Changes::default());
        seen.0.process_events(rules, now);
        assert_eq!(seen.weight(path), expected);
    }
    assert_ne!(before, Fixture::of(root, &delegated).weight(path));
}

/// Whatever the rules were before, a tree with other rules is as one that had them from the start; and no cgroup goes but
/// those that they exclude.
#[test]
fn other_rules_are_as_if_they_had_always_been() {
    let dir = tempfile::tempdir().unwrap();
    let root = delegated(dir.path());
    cgroup(&root.join("user/web"), 30, 9000);
    let minimum = with_minimum(weighs(700));
    let all = [
        vec![],
        vec![rule("backup", EXCLUDE), rule("user/web", weighs(300))],
        vec![rule("user", EXCLUDE)],
        vec![rule("user/web", EXCLUDE), rule("backup", minimum)],
        vec![rule("user/web", delegates(true)), rule("**", minimum)],
        vec![rule("user", delegates(false)), rule("*/backup", EXCLUDE)],
        vec![rule("**/backup", EXCLUDE), rule("backup", delegates(true))],
    ];
    for old in &all {
        for new in &all {
            let mut seen = Fixture::of(&root, old);
            let before: Vec<CgroupId> = seen.0.breadth_first();
            let mut changes = Changes::default();
            seen.0.apply_rules(new, Instant::now(), &mut changes);
            assert_eq!(
                shown(&seen),
                shown(&Fixture::of(&root, new)),
                "{old:?} {new:?}"
            );
            let after = seen.0.breadth_first();
            let gone = before.iter().filter(|id| !after.contains(id));
            let mut gone: Vec<CgroupId> = gone.copied().collect();
            gone.sort();
            changes.removed.sort();
            assert_eq!(changes.removed, gone, "{old:?} {new:?}");
        }
    }
}
