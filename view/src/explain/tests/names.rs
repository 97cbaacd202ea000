//! How a tenant is found, and what is said of one that is not managed.

use super::*;

#[test]
fn a_cgroup_that_is_not_managed_is_explained() {
    let facts = Unmanaged {
        exists: true,
        ..Unmanaged::default()
    };
    let with = |change: fn(&mut Unmanaged)| {
        let mut changed = facts.clone();
        change(&mut changed);
        changed
    };
    let excluded = with(|facts| (facts.excluded, facts.memory) = (true, true));
    let too_deep = with(|facts| (facts.too_deep, facts.memory) = (true, true));
    let cases = [
        (Unmanaged::default(), "no cgroup this path"),
        (
            with(|facts| facts.root = true),
            "the root cgroup is no tenant",
        ),
        (facts.clone(), "does not have the memory controller"),
        (excluded, "exclude = true"),
        (too_deep, "it is too deep below the root"),
        (
            with(|facts| facts.memory = true),
            "created after the last scan",
        ),
    ];
    for (facts, says) in cases {
        let text = unmanaged("a/b", &facts);
        assert!(text.contains(says), "{text}");
    }
    says(
        &unmanaged("/a/b", &facts),
        &[
            "a/b\n  not managed",
            "at the root cgroup",
            "`echo +memory >/sys/fs/cgroup/cgroup.subtree_control`, then `echo +memory \
             >/sys/fs/cgroup/a/cgroup.subtree_control`",
            "b is no unit by its name",
        ],
    );
    says(
        &unmanaged("a", &facts),
        &["/sys/fs/cgroup/cgroup.subtree_control"],
    );
    let below = Unmanaged {
        above: "a.slice".into(),
        ..facts
    };
    says(
        &unmanaged("a.slice/b.service", &below),
        &[
            "counts its pages at a.slice, the nearest cgroup above that has it\n",
            "to change it: `echo +memory >/sys/fs/cgroup/a.slice/cgroup.subtree_control`; under systemd, \
             MemoryAccounting=yes in its unit b.service",
        ],
    );
}

#[test]
fn a_cgroup_beyond_a_bound_is_told_which() {
    let long = "Tenants: a cgroup in a has a path longer than 512 bytes: a is one tenant";
    let limitations = [long.to_owned(), "Device bandwidth: io.cost".to_owned()];
    let facts = Unmanaged {
        exists: true,
        memory: true,
        bounds: bounds(&limitations),
        ..Unmanaged::default()
    };
    let told = unmanaged("a/b", &facts);
    says(
        &told,
        &["\n    a cgroup in a has a path longer than 512 bytes: a is one tenant"],
    );
    assert!(!told.contains("io.cost"), "{told}");
}

#[test]
fn a_tenant_is_found_by_path_end_or_part() {
    let status = status();
    for (name, index) in [
        ("/sys/fs/cgroup/a.slice/db", 2),
        ("a.slice", 0),
        ("db", 2),
        ("bat", 1),
    ] {
        assert_eq!(find(&status, name), Ok(index), "{name}");
    }
    let unmanaged = TenantStatus {
        path: "-".into(),
        ..TenantStatus::default()
    };
    let mut with_unmanaged = status.clone();
    with_unmanaged.tenants.push(unmanaged);
    for name in ["unmanaged", "(unmanaged)", "-"] {
        assert_eq!(find(&with_unmanaged, name), Ok(3), "{name}");
    }
    // The root is no tenant, and nothing is named by nothing.
    for name in ["", "/", "/sys/fs/cgroup", "/sys/fs/cgroup/"] {
        assert_eq!(find(&with_unmanaged, name), Err(vec![]), "{name}");
    }
    assert_eq!(find(&status, "slice/").map_err(|p| p.len()), Err(3));
    assert_eq!(find(&status, "nobody"), Err(vec![]));
}

/// Recordings are sent from one to another.
#[test]
fn a_status_in_which_tenants_are_their_own_ancestors_is_explained() {
    let mut status = status();
    for (tenant, parent) in status.tenants.iter_mut().zip([Some(0), Some(0), Some(999)]) {
        (tenant.id, tenant.parent) = (7, parent);
        (tenant.sums_weights, tenant.weight) = (true, u64::MAX);
    }
    for index in 0..status.tenants.len() {
        assert!(!explain(&status, index, &CurrentValues::default()).is_empty());
    }
}

#[test]
fn the_nearest_names_are_offered() {
    let tenant = |path: &str| TenantStatus {
        path: path.to_owned(),
        ..TenantStatus::default()
    };
    let paths = [
        "-",
        "system.slice",
        "system.slice/postgres.service",
        "system.slice/cron.service",
        "user.slice",
        "z",
    ];
    let status = Status {
        tenants: paths.map(tenant).to_vec(),
        ..Status::default()
    };
    let names = nearest(&status, "/sys/fs/cgroup/postgers.service");
    assert_eq!(names[0], "system.slice/postgres.service");
    assert_eq!(names.len(), 5);
    assert_eq!(nearest(&status, "unmanagd")[0], "unmanaged");
    let facts = Unmanaged {
        nearest: vec!["a".into(), "b/c".into()],
        ..Unmanaged::default()
    };
    let told = unmanaged("x", &facts);
    assert_eq!(
        told,
        "x: no tenant has this name, and no cgroup this path; the nearest names of tenants are\n  a\n  b/c"
    );
}

/// A container, whose owner chose its name and labels.
fn container(name: &str, path: &str) -> TenantStatus {
    TenantStatus {
        kind: TenantKind::DockerContainer,
        name: name.into(),
        image: Some("nginx:1.25".into()),
        labels: vec!["app=web".into()],
        weight_source: WeightSource::Runtime,
        declared: Some(DeclaredWeight {
            weight: 400,
            source: WeightSource::Runtime,
            file: "/run/docker/runtime-runc/moby/x/state.json".into(),
            converted: Some(3940),
            io_weight: Some(3940),
            ..DeclaredWeight::default()
        }),
        ..tenant(path, 400, 10, 10)
    }
}

#[test]
fn a_container_is_explained_with_what_was_declared_and_what_the_kernel_has() {
    let mut status = status();
    status
        .tenants
        .push(container("web", "a.slice/docker-1.scope"));
    let text = |status: &Status| {
        let index = find(status, "web").unwrap();
        explain(status, index, &CurrentValues::default())
    };
    let told = text(&status);
    says(
        &told,
        &[
            "web\n  Docker container of nginx:1.25, cgroup a.slice/docker-1.scope\n  labels app=web\n  weight 400 (as its runtime was \
             told)",
            "declared: 400 in /run/docker/runtime-runc/moby/x/state.json (runtimes write 3940 to io.weight for it); the kernel \
             has io.weight 3940, io.bfq.weight none",
        ],
    );
    assert!(!told.contains("drift"), "{told}");
    let declared = status.tenants.last_mut().and_then(|t| t.declared.as_mut());
    let declared = declared.unwrap();
    (declared.io_weight, declared.drift) = (Some(100), true);
    says(
        &text(&status),
        &[
            "drift: neither is what was declared",
            "Justitia divides by what was declared",
            "`[weights] restore = true`",
        ],
    );
    // A line cannot be forged by a name.
    let bad = "x\n  weight 9999\u{202e}\u{1b}[2J";
    let mut hostile = container(bad, "a.slice/docker-2.scope");
    (hostile.image, hostile.labels) = (Some(bad.into()), vec![bad.into()]);
    status.tenants.push(hostile);
    let index = status.tenants.len() - 1;
    let told = explain(&status, index, &CurrentValues::default());
    assert!(
        !told.lines().any(|line| line.starts_with("  weight 9999")),
        "{told}"
    );
    assert!(!told.contains(['\u{202e}', '\u{1b}']), "{told}");
}

#[test]
fn a_tenant_is_found_by_its_name_and_two_of_one_name_are_told_apart() {
    let mut status = status();
    status
        .tenants
        .push(container("web", "a.slice/docker-1.scope"));
    let mut part = container("web", "a.slice/docker-1.scope/container");
    part.part = Some("container".into());
    status.tenants.push(part);
    assert_eq!(find(&status, "web"), Ok(3));
    assert_eq!(find(&status, "web/container"), Ok(4));
    status.tenants.push(container("web", "b/docker-3"));
    let both = ["a.slice/docker-1.scope", "b/docker-3"].map(str::to_owned);
    assert_eq!(find(&status, "web"), Err(both.to_vec()));
    assert_eq!(nearest(&status, "webb")[0], "web");
}
