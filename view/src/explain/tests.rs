//! Three scenarios, and that each answer has its facts.

use super::*;
use justitia_api::{
    Action, AppStatus, Decision, ExcessReason, KnobStatus, MemoryStatus, ProtectionReason, Reason,
    Rule,
};

const MIB: u64 = 1 << 20;

fn status() -> Status {
    let tenant = |path: &str, weight, usage: u64, entitlement: u64| TenantStatus {
        path: path.to_owned(),
        weight,
        leaf: true,
        usage: usage * MIB,
        entitlement: entitlement * MIB,
        protected: entitlement * MIB,
        other: 20 * MIB,
        ..TenantStatus::default()
    };
    let mut light = tenant("a.slice/batch", 100, 300, 100);
    light.growing = true;
    light.reclaimed = 64 * MIB;
    light.knobs = vec![KnobStatus {
        knob: "memory.low".into(),
        value: (120 * MIB).to_string(),
        owner: KnobOwner::Agent,
        original: Some("0".into()),
        reason: Some(
            Rule::Protection(ProtectionReason {
                protected: 100 * MIB,
                other: 20 * MIB,
            })
            .into(),
        ),
    }];
    let mut heavy = tenant("a.slice/db", 300, 250, 300);
    heavy.weight_source = WeightSource::Cgroup;
    heavy.observed_for = 200.0;
    heavy.knobs = vec![KnobStatus {
        knob: "memory.low".into(),
        value: "1048576".into(),
        owner: KnobOwner::External,
        original: None,
        reason: None,
    }];
    let slice = TenantStatus {
        leaf: false,
        ..tenant("a.slice", 100, 550, 400)
    };
    for child in [&mut light, &mut heavy] {
        child.parent = Some(0);
    }
    Status {
        time: 86_400.0 + 7200.0,
        uptime: 3600.0,
        memory: MemoryStatus {
            free: 10 * MIB,
            free_headroom: 16 * MIB,
            cache_divisible: 400 * MIB,
            ..MemoryStatus::default()
        },
        tenants: vec![slice, light, heavy],
        decisions: vec![Decision {
            at: 3590.0,
            since: 3580.0,
            path: "a.slice/batch".into(),
            action: Action::Reclaim { bytes: 64 * MIB },
            steps: 9,
            dry_run: false,
            reason: Rule::Excess(ExcessReason {
                usage: 300 * MIB,
                entitlement: 100 * MIB,
                orphaned: false,
                free: 10 * MIB,
                free_headroom: 16 * MIB,
            })
            .into(),
        }],
        ..Status::default()
    }
}

fn knobs(standing: &[(&str, &str)]) -> CurrentValues {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    CurrentValues {
        knobs: standing.iter().map(owned).collect(),
        disks: vec![("8:0".to_owned(), "sda".to_owned())],
    }
}

fn says(text: &str, facts: &[&str]) {
    for fact in facts {
        assert!(text.contains(fact), "{fact:?} is not in\n{text}");
    }
}

#[test]
fn who_is_limited_further_up_learns_where() {
    let mut status = status();
    assert!(!explain(&status, 1, &CurrentValues::default()).contains("limits it as well"));
    status.tenants[0].knobs = vec![KnobStatus {
        knob: "io.max 8:0".into(),
        value: "8:0 rbps=max wbps=1048576 riops=max wiops=max".into(),
        owner: KnobOwner::Agent,
        original: Some("8:0 rbps=max wbps=max riops=max wiops=max".into()),
        reason: Some(Reason::Text("the disk is contended".into())),
    }];
    let text = explain(&status, 1, &CurrentValues::default());
    says(
        &text,
        &["io.max of a.slice, which it is in", "explain a.slice`"],
    );
}

#[test]
fn a_tenant_above_its_entitlement_learns_what_was_taken_and_why() {
    let text = explain(
        &status(),
        1,
        &knobs(&[("memory.low", &(120 * MIB).to_string())]),
    );
    says(
        &text,
        &[
            "weight 100 (the default",
            "25.0 % of the 400 that it and its siblings weigh together, idle ones included",
            "now: 100/400 of 400M: those that demand their part by weight, or more, weigh 400 together\n",
            "holds 300M, entitled to 100M of the 400M of a.slice",
            "its cache grows, so it demands all it can get",
            "memory.low = 125829120 (120M)",
            "put there by the agent; before, and again when the agent ends: 0\n",
            "because, when it was set: 100.0 MiB of file pages protected",
            "    now: that is what it should be\n",
            "(now 100M)",
            "off by more than 1/32 of it and more than 1 MiB",
            "would change it: its weight",
            "free memory (10.0M now) falls below the reserve that the agent keeps free (16.0M)",
            "up to 200M can be taken from it now",
            "01:59:40 to 01:59:50 (10 s ago): reclaim 65536 KiB in 9 steps",
            "holds 300 MiB, entitled to 100 MiB",
        ],
    );
}

#[test]
fn a_yielded_knob_and_an_operators_limit_are_told_as_theirs() {
    let standing = knobs(&[
        ("memory.low", "1048576"),
        ("memory.max", &(900 * MIB).to_string()),
        ("memory.high", "max"),
    ]);
    let text = explain(&status(), 2, &standing);
    says(
        &text,
        &[
            "weight 300 (from its cgroup's io.weight",
            "first round, what is used again: 0 (by the kernel's lists, of the last 3 min)",
            "second round, what is left: its cache does not grow, so it demands no more\n",
            "memory.low = 1048576 (1.00M)\n    put there by someone else: the agent leaves it",
            "is a minimum for the agent too",
            "memory.max = 943718400 (900M)\n    set by its operator",
            "nothing is taken from it: it holds no more than its entitlement (300M)",
            "none about it in the 60 min",
        ],
    );
    assert!(!text.contains("none that the agent has set"));
    says(
        &explain(&status(), 0, &CurrentValues::default()),
        &["Knobs\n  none that the agent has set\n"],
    );
    assert!(
        !text.contains("memory.high"),
        "what bounds nothing is not told"
    );
}

#[test]
fn limits_of_the_disk_say_whence_they_come() {
    let mut status = status();
    let knob = |knob: &str, value: &str, original: &str, why: &str| KnobStatus {
        knob: knob.into(),
        value: value.into(),
        owner: KnobOwner::Agent,
        original: Some(original.into()),
        reason: Some(Reason::Text(why.into())),
    };
    let limit = "8:0 rbps=max wbps=7340032 riops=max wiops=max";
    let none = "8:0 rbps=max wbps=max riops=max wiops=max";
    status.tenants[1].knobs = vec![
        knob("io.max 8:0", limit, none, "the disk is contended"),
        knob("memory.high", "41943040", "max", "writers contend"),
    ];
    let set = |knob: &str, from: Option<&str>, to: &str| Action::Set {
        knob: knob.into(),
        from: from.map(Into::into),
        to: to.into(),
    };
    status.decisions[0].action = set("io.max 8:0", None, limit);
    status.decisions[0].steps = 2;
    let mut room = status.decisions[0].clone();
    (room.action, room.steps) = (set("memory.high", None, "41943040"), 1);
    let mut low = room.clone();
    low.action = set("memory.low", Some("0"), "655360");
    status.decisions.extend([room, low]);
    let text = explain(&status, 1, &knobs(&[("io.max 8:0", limit)]));
    says(
        &text,
        &[
            "io.max 8:0 (sda) = rbps=max wbps=7340032 riops=max wiops=max (writes at most 7.00M/s)",
            "put there by the agent; before, and again when the agent ends: no limit\n",
            "set io.max 8:0 (sda) to rbps=max wbps=7340032 riops=max wiops=max (writes at most 7.00M/s) in 2 steps",
            "set memory.high to 41943040 (40.0M)\n",
            "set memory.low from 0 KiB to 640 KiB\n",
            "because, when it was set: the disk is contended",
            "would change it: the end of the contention",
            "memory.high = 41943040 (40.0M)",
            "because, when it was set: writers contend",
            "beside file pages (now 20.0M)",
        ],
    );
}

#[test]
fn applications_are_told_with_their_window_and_what_grows_without_calls() {
    let mut status = status();
    status.window = 10.0;
    status.tenants[1].app = Some(AppStatus {
        io_stalled: Some(0.05),
        miss_rate: 12.0,
        ..AppStatus::default()
    });
    status.tenants[1].knobs[0].knob = "io.max 8:0".into();
    let quiet = "; held up by I/O 5.0 % of the time; over the whole 10 s that is not contending (which takes \
                 I/O in 80 % of its seconds, and being held up for 10 %)";
    says(
        &explain(&status, 1, &CurrentValues::default()),
        &[
            quiet,
            "its limit under Knobs follows from what happens on the disk now",
            "its cache grows all the same",
            "(12 accesses a second found their page absent)",
        ],
    );
    status.tenants[1].backlogged = true;
    status.tenants[1].app.as_mut().unwrap().read_rate = 1e6;
    let text = explain(&status, 1, &CurrentValues::default());
    says(&text, &["5.0 % of the time, so it contended\n"]);
    for no_more in [
        "is not contending",
        "grows all the same",
        "its limit under Knobs",
    ] {
        assert!(!text.contains(no_more), "{no_more:?} is in\n{text}");
    }
}

#[test]
fn entitlements_can_be_recomputed_among_those_that_want_more() {
    let mut status = status();
    let mut cron = status.tenants[2].clone();
    (cron.path, cron.weight) = ("a.slice/cron".into(), 100);
    (
        cron.usage,
        cron.entitlement,
        cron.working_set,
        cron.observed_for,
    ) = (0, 0, 0, 3600.0);
    cron.knobs.clear();
    status.tenants[2].growing = true;
    status.tenants.push(cron);
    let text = |status: &Status, i| explain(status, i, &CurrentValues::default());
    let part = "weigh 400 together; not among them, with what they get: cron 0\n";
    says(&text(&status, 1), &["now: 100/400 of 400M: ", part]);
    says(&text(&status, 2), &["now: 300/400 of 400M: ", part]);
    says(
        &text(&status, 3),
        &[
            "now: that is all it demands",
            "second round, what is left: its cache does not grow, so it demands no more",
            "nothing is taken from it: it holds nothing\n",
        ],
    );
    // The slice is alone at the top, and wants what its children want.
    says(&text(&status, 0), &["now: 100/100 of 400M: "]);
    (status.tenants[1].growing, status.tenants[2].growing) = (false, false);
    says(&text(&status, 1), &["nobody among them wants to grow"]);
}

#[test]
fn a_protection_that_is_near_enough_is_left_and_who_is_spared_learns_by_what() {
    let mut status = status();
    status.tenants[1].other = 21 * MIB;
    let text = |status: &Status| explain(status, 1, &CurrentValues::default());
    says(
        &text(&status),
        &[
            "now: it should be 121M; off by 1.00M, less than the 3.78M that it is moved for, so left",
        ],
    );
    status.tenants[1].other = 40 * MIB;
    says(
        &text(&status),
        &["now: it should be 140M, and is moved at the next look"],
    );
    status.tenants[1].minimum = 320 * MIB;
    says(&text(&status), &["no more than its minimum (320M)"]);
    (status.tenants[1].minimum, status.tenants[1].unreclaimable) = (0, 310 * MIB);
    says(
        &text(&status),
        &["no more than what is dirty or being written (310M)"],
    );
}

#[test]
fn a_knob_that_comes_and_goes_is_told_as_that() {
    let mut status = status();
    let knob = || "io.max 8:0".to_owned();
    let limit = || Action::Set {
        knob: knob(),
        from: None,
        to: "8:0 rbps=max wbps=7340032 riops=max wiops=max".to_owned(),
    };
    let restore = || Action::Restore { knob: knob() };
    let old = status.decisions[0].clone();
    let at = |at: f64, action: Action| Decision {
        at,
        action,
        ..old.clone()
    };
    status.decisions = vec![
        at(3530.0, restore()),
        at(3550.0, limit()),
        at(3560.0, restore()),
    ];
    let goes = "comes and goes";
    let text = explain(&status, 1, &knobs(&[]));
    assert!(!text.contains(goes), "{text}");
    status.decisions.push(at(3590.0, limit()));
    says(
        &explain(&status, 1, &knobs(&[])),
        &[
            "io.max 8:0 (sda) comes and goes: in the last minute set 2 times and given back once, as far as",
        ],
    );
}

#[test]
fn who_is_not_managed_learns_why_not() {
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
            "the root cgroup is what is divided",
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
            "younger than the last look",
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
            "b is no unit",
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
            "would change it: `echo +memory >/sys/fs/cgroup/a.slice/cgroup.subtree_control`; under systemd, \
             MemoryAccounting=yes in its unit b.service",
        ],
    );
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

#[test]
fn what_is_used_is_divided_first() {
    let mut status = status();
    // Of 400 MiB in a.slice, the light one uses 150 and gets them; it and the heavy one want more.
    (status.tenants[1].working_set, status.tenants[1].entitlement) = (150 * MIB, 200 * MIB);
    (status.tenants[2].working_set, status.tenants[2].entitlement) = (50 * MIB, 200 * MIB);
    status.tenants[2].growing = true;
    let text = explain(&status, 1, &CurrentValues::default());
    says(
        &text,
        &[
            "now: 200M is used in all and fits: it has its 150M, and then 100/400 of 200M",
            "first round, what is used again: 150M",
        ],
    );
    // What does not fit is divided by weight, and nothing is left.
    (status.tenants[1].working_set, status.tenants[1].entitlement) = (300 * MIB, 100 * MIB);
    (status.tenants[2].working_set, status.tenants[2].entitlement) = (400 * MIB, 300 * MIB);
    let text = explain(&status, 1, &CurrentValues::default());
    says(
        &text,
        &[
            "now: 700M is used in all, which does not fit: 100/400 of 400M: those that use their part by weight",
        ],
    );
}
