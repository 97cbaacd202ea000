//! How a tenant is found, and what is said of one that is not managed.

use super::*;

#[test]
fn a_cgroup_that_is_not_managed_is_explained() {
    let facts = Unmanaged {
        exists: true,
        ..Unmanaged::default()
    };
    let cases = [
        (Unmanaged::default(), "no such cgroup"),
        (
            Unmanaged {
                root: true,
                ..facts.clone()
            },
            "the root cgroup is no tenant",
        ),
        (facts.clone(), "does not have the memory controller"),
        (
            Unmanaged {
                excluded: true,
                memory: true,
                ..facts.clone()
            },
            "exclude = true",
        ),
        (
            Unmanaged {
                memory: true,
                ..facts.clone()
            },
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
    let told = unmanaged(
        "a/b",
        &Unmanaged {
            exists: true,
            memory: true,
            bounds: bounds(&limitations),
            ..Unmanaged::default()
        },
    );
    says(
        &told,
        &["\n    a cgroup in a has a path longer than 512 bytes: a is one tenant"],
    );
    assert!(!told.contains("io.cost"), "{told}");
    let deep = Unmanaged {
        exists: true,
        memory: true,
        too_deep: true,
        ..Unmanaged::default()
    };
    says(&unmanaged("a/b", &deep), &["it is too deep below the root"]);
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
    assert_eq!(find(&status, "slice/").map_err(|p| p.len()), Err(3));
    assert_eq!(find(&status, "nobody"), Err(vec![]));
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
        "x: no such cgroup; the nearest names of tenants are\n  a\n  b/c"
    );
}
