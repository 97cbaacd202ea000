//! Names and declared weights, from files beside the tree.

use std::time::Duration;

use justitia_api::TenantKind;

use super::*;

const ID: &str = "46ec00ce0123456789abcdef0123456789abcdef0123456789abcdef01234567";

/// A file of a runtime: the tree's root is the root of its files, too.
fn file(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    write(path, text).unwrap();
}

fn docker(root: &Path, weight: u64) -> String {
    let path = format!("system.slice/docker-{ID}.scope");
    let state = format!(
        r#"{{"cgroup_paths":{{"":"/sys/fs/cgroup/{path}"}},"config":{{"cgroups":{{"blkio_weight":{weight}}}}}}}"#
    );
    file(
        root,
        &format!("run/docker/runtime-runc/moby/{ID}/state.json"),
        &state,
    );
    file(
        root,
        &format!("var/lib/docker/containers/{ID}/config.v2.json"),
        r#"{"Name":"/web","Config":{"Image":"nginx:1.25","Labels":{"app":"web"}}}"#,
    );
    path
}

/// 910 is what runc writes for 100. A reload of systemd writes 100.
#[test]
fn a_declared_weight_counts_whatever_stands_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("system.slice"), 0, 100);
    let path = docker(root, 400);
    for (standing, drift) in [(3940, false), (400, false), (100, true), (700, true)] {
        cgroup(&root.join(&path), 0, standing);
        let seen = Fixture::of(root, &[]);
        assert_eq!(seen.weight(&path), (400, WeightSource::Runtime));
        let declared = seen.0.declared(seen.node(&path)).unwrap();
        assert_eq!((declared.weight, declared.converted), (400, Some(3940)));
        assert_eq!(
            (declared.io_weight, declared.drift),
            (Some(standing), drift)
        );
    }
    // So it does for a group that has no other member.
    cgroup(&root.join(&path), 0, 3940);
    let seen = Fixture::of(root, &[]);
    assert_eq!(seen.weight("system.slice"), (400, WeightSource::OnlyChild));
    // BFQ's file has the number as it was declared.
    write(root.join(&path).join("io.bfq.weight"), "400\n").unwrap();
    let seen = Fixture::of(root, &[]);
    assert!(!seen.0.declared(seen.node(&path)).unwrap().drift);
    // A rule comes first.
    let rules = [rule("system.slice/docker-*", weighs(50))];
    let seen = Fixture::of(root, &rules);
    assert_eq!(seen.weight(&path), (50, WeightSource::Configuration));
}

/// Docker's `--blkio-weight-device` and `IODeviceWeight=` come to a line of the file.
#[test]
fn a_line_of_one_device_counts_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("system.slice"), 0, 100);
    let path = docker(root, 400);
    cgroup(&root.join(&path), 0, 3940);
    let write_to = |file: &str, text: &str| write(root.join(&path).join(file), text).unwrap();
    write_to("io.weight", "default 3940\n8:0 50\n");
    write_to("io.bfq.weight", "default 400\n8:0 60\n8:16 70\n");
    let on = |seen: &Fixture, device: &str| {
        let (weight, from) = seen.0.weight_on(seen.node(&path), device.parse().unwrap());
        (weight.get(), from)
    };
    let mut seen = Fixture::of(root, &[]);
    for (bfq, device, expected) in [
        (false, "8:0", (50, WeightSource::Cgroup)),
        (true, "8:0", (60, WeightSource::Cgroup)),
        (false, "8:16", (70, WeightSource::Cgroup)),
        (true, "8:32", (400, WeightSource::Runtime)),
    ] {
        seen.0.set_bfq(bfq, &mut Changes::default());
        assert_eq!(on(&seen, device), expected, "{device}, BFQ {bfq}");
    }
    // A change of such a line is one of weights.
    write_to("io.weight", "default 3940\n8:0 51\n");
    let mut changes = Changes::default();
    seen.0.rescan(&[], Instant::now(), &mut changes);
    assert!(changes.weights_changed);
    // A rule counts on all devices, and a line that another may write does not.
    let ruled = Fixture::of(root, &[rule("system.slice/docker-*", weighs(9))]);
    assert_eq!(on(&ruled, "8:0"), (9, WeightSource::Configuration));
    delegate(&root.join(&path), &["io.weight", "io.bfq.weight"]);
    let given_away = Fixture::of(root, &[]);
    assert_eq!(on(&given_away, "8:0"), (400, WeightSource::Runtime));
}

#[test]
fn a_units_weight_comes_before_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("system.slice"), 0, 100);
    cgroup(&root.join("system.slice/db.service"), 0, 300);
    file(
        root,
        "etc/systemd/system/db.service",
        "[Service]\nIOWeight=700\n",
    );
    let seen = Fixture::of(root, &[]);
    let path = "system.slice/db.service";
    assert_eq!(seen.weight(path), (700, WeightSource::Unit));
    assert!(seen.0.declared(seen.node(path)).unwrap().drift);
    assert_eq!(seen.node("system.slice").identity().kind, TenantKind::Slice);
    std::fs::remove_file(root.join("etc/systemd/system/db.service")).unwrap();
    let seen = Fixture::of(root, &[]);
    assert_eq!(seen.weight(path), (300, WeightSource::Cgroup));
}

/// crun writes it to the cgroup inside, of which 2930 is 300.
#[test]
fn what_crun_writes_inside_is_no_drift() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let path = format!("machine.slice/libpod-{ID}.scope");
    cgroup(&root.join("machine.slice"), 0, 100);
    cgroup(&root.join(&path), 0, 100);
    cgroup(&root.join(&path).join("container"), 0, 2930);
    let store = "var/lib/containers/storage/overlay-containers";
    let bundle = format!(
        r#"{{"linux":{{"cgroupsPath":"machine.slice:libpod:{ID}","resources":{{"blockIO":{{"weight":300}}}}}}}}"#
    );
    file(root, &format!("{store}/{ID}/userdata/config.json"), &bundle);
    let list = format!(r#"[{{"id":"{ID}","names":["db"]}}]"#);
    file(root, &format!("{store}/containers.json"), &list);
    let seen = Fixture::of(root, &[]);
    let declared = seen.0.declared(seen.node(&path)).unwrap();
    assert_eq!((declared.weight, declared.drift), (300, false));
    assert_eq!(seen.weight(&path), (300, WeightSource::Runtime));
    let inner = format!("{path}/container");
    assert_eq!(seen.weight(&inner), (300, WeightSource::Runtime));
    write(root.join(&inner).join("io.weight"), "default 100\n").unwrap();
    let seen = Fixture::of(root, &[]);
    assert!(seen.0.declared(seen.node(&path)).unwrap().drift);
}

/// Not a clock's: the times are made here.
#[test]
fn files_that_come_late_are_found_and_a_write_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("system.slice"), 0, 100);
    let path = format!("system.slice/docker-{ID}.scope");
    cgroup(&root.join(&path), 0, 3940);
    let mut seen = Fixture::of(root, &[]);
    let start = Instant::now();
    assert_eq!(seen.weight(&path), (3940, WeightSource::Cgroup));
    assert_eq!(seen.node(&path).identity().name, ID[..12]);

    docker(root, 400);
    let after = |ms| start + Duration::from_millis(ms);
    let changes = seen.0.process_events(&[], after(300));
    assert!(changes.weights_changed);
    assert_eq!(seen.weight(&path), (400, WeightSource::Runtime));
    assert_eq!(seen.node(&path).identity().name, "web");
    assert!(!seen.0.process_events(&[], after(9000)).weights_changed);

    // `docker update`: the file first, runc's state a moment later.
    write(root.join(&path).join("io.weight"), "default 1920\n").unwrap();
    seen.0.process_events(&[], after(10_000));
    assert_eq!(seen.weight(&path), (400, WeightSource::Runtime));
    docker(root, 200);
    seen.0.process_events(&[], after(11_500));
    assert_eq!(seen.weight(&path), (200, WeightSource::Runtime));

    // Nothing tells of another name. It is found within minutes.
    let config = format!("var/lib/docker/containers/{ID}/config.v2.json");
    file(root, &config, r#"{"Name":"/shop"}"#);
    seen.0.process_events(&[], after(20_000));
    assert_eq!(seen.node(&path).identity().name, "web");
    seen.0.process_events(&[], after(400_000));
    assert_eq!(seen.node(&path).identity().name, "shop");
}

#[test]
fn a_missing_file_is_asked_for_a_bounded_number_of_times_and_in_bounded_turns() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("system.slice"), 0, 100);
    let mut seen = Fixture::of(root, &[]);
    for n in 0..100 {
        let id = format!("{n:064}");
        cgroup(
            &root.join(format!("system.slice/docker-{id}.scope")),
            0,
            100,
        );
    }
    let start = Instant::now();
    let mut turns = 0;
    let named = |seen: &Fixture| {
        let nodes = seen.0.nodes.values();
        let containers = nodes.filter(|n| n.identity().kind == TenantKind::DockerContainer);
        containers.count()
    };
    while named(&seen) < 100 {
        let before = named(&seen);
        seen.0.process_events(&[], start);
        turns += 1;
        assert!(named(&seen) - before <= 32 && turns < 1000, "{turns}");
    }
    assert!(turns >= 4, "{turns}");
    // Then only the slow round is left.
    let mut asked = 0;
    let mut at = start;
    while at < start + Duration::from_secs(120) {
        at += Duration::from_millis(100);
        let before = seen.0.next_inquiry();
        seen.0.process_events(&[], at);
        asked += usize::from(before.is_some_and(|due| due <= at));
    }
    let next = seen.0.next_inquiry().unwrap();
    assert!(next > at + Duration::from_secs(60), "{asked}");
    assert!(asked <= 7 * 4, "{asked}");
}

fn container(glob: &str) -> Matches {
    Matches {
        container: Pattern::of_names(glob).ok(),
        ..Matches::default()
    }
}

#[test]
fn a_rule_by_name_counts_once_the_name_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    cgroup(&root.join("system.slice"), 0, 100);
    let path = docker(root, 400);
    cgroup(&root.join(&path), 0, 3940);
    cgroup(&root.join(&path).join("inner"), 0, 100);
    let weight = with_minimum(weighs(50));
    let seen = Fixture::of(root, &[Rule::new(container("we*"), weight)]);
    assert_eq!(seen.weight(&path), (50, WeightSource::Configuration));
    assert_eq!(seen.minimums(&path), (64, 0));
    assert_eq!(seen.weight(&format!("{path}/inner")).0, 100);
    let seen = Fixture::of(root, &[Rule::new(container("shop"), weight)]);
    assert_eq!(seen.weight(&path), (400, WeightSource::Runtime));

    // Excluded by name, it is no tenant, after rescans neither, and its pages are not its parent's.
    let rules = [Rule::new(container("web"), EXCLUDE)];
    let mut seen = Fixture::of(root, &rules);
    for _ in 0..2 {
        assert_eq!(seen.0.len(), 1);
        assert_eq!(seen.node("system.slice").excluded.len(), 1);
        seen.0
            .rescan(&rules, Instant::now(), &mut Changes::default());
    }

    // As a delegated one.
    let seen = Fixture::of(root, &[Rule::new(container("web"), delegates(true))]);
    assert!(seen.node(&format!("{path}/inner")).in_delegation);
}

/// Its owner chose its name.
#[test]
fn no_rule_by_name_excludes_a_rootless_container() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let uid = rustix::process::geteuid().as_raw();
    let user = format!("user.slice/user-{uid}.slice/user@{uid}.service");
    let path = format!("{user}/user.slice/libpod-{ID}.scope");
    for at in Path::new(&path)
        .ancestors()
        .take_while(|at| *at != Path::new(""))
    {
        cgroup(&root.join(at), 0, 100);
    }
    delegate(&root.join(&user), &["."]);
    let home = "home/u/.local/share/containers/storage/overlay-containers";
    file(
        root,
        "etc/passwd",
        &format!("u:x:{uid}:{uid}::/home/u:/bin/sh\n"),
    );
    let bundle = format!(r#"{{"linux":{{"cgroupsPath":"user.slice:libpod:{ID}"}}}}"#);
    file(root, &format!("{home}/{ID}/userdata/config.json"), &bundle);
    let list = format!(r#"[{{"id":"{ID}","names":["web"]}}]"#);
    file(root, &format!("{home}/containers.json"), &list);
    let seen = Fixture::of(root, &[Rule::new(container("user-*/web"), EXCLUDE)]);
    let found = seen.node(&path).identity();
    assert_eq!(found.name, format!("user-{uid}/web"));
}
