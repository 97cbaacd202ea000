//! Three scenarios, and that each answer has its facts.

use super::*;
use justitia_api::{
    Action, AppStatus, Decision, ExcessReason, IoPolicyStatus, KnobStatus, MemoryStatus,
    ProtectionReason, Reason, Rule,
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
fn a_limit_on_an_ancestor_is_named() {
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
        &[
            "io.max of its ancestor a.slice limits it too",
            "explain a.slice`",
        ],
    );
}

#[test]
fn a_tenant_above_its_entitlement_is_explained() {
    let text = explain(
        &status(),
        1,
        &knobs(&[("memory.low", &(120 * MIB).to_string())]),
    );
    says(
        &text,
        &[
            "weight 100 (the default",
            "25.0 % of 400, the sum of its and its siblings' weights, idle ones included",
            "now: 100/400 of 400M; 400 is the weight of those that demand at least their part by weight\n",
            "holds 300M, entitled to 100M of the 400M of a.slice",
            "its cache grows, so it demands all that it can get",
            "memory.low = 125829120 (120M)",
            "written by the agent; restored when the agent ends: 0\n",
            "reason, when it was set: 100.0 MiB of file pages are protected",
            "    now: it has the wanted value\n",
            "(now 100M)",
            "written when off by more than 1/32 and more than 1.00M",
            "changes when: its weight",
            "when free memory (now 10.0M) falls below the headroom (now 16.0M)",
            "up to 200M can be reclaimed from it now",
            "01:59:40 to 01:59:50 (10 s ago): reclaim 65536 KiB in 9 steps",
            "holds 300 MiB, entitled to 100 MiB",
        ],
    );
}

#[test]
fn an_external_knob_and_an_operators_limit_are_shown_as_such() {
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
            "working set, divided first: 0 (from the kernel's LRU lists of the last 3 min)",
            "the rest, divided second: its cache does not grow, so it demands no more than that\n",
            "memory.low = 1048576 (1.00M)\n    external: another process wrote it",
            "the agent takes it as the tenant's minimum",
            "memory.max = 943718400 (900M)\n    set by its operator",
            "nothing is reclaimed from it: it holds no more than its entitlement (300M)",
            "none about it since the agent's start, 60 min ago",
        ],
    );
    assert!(!text.contains("none set by the agent"));
    says(
        &explain(&status(), 0, &CurrentValues::default()),
        &["Knobs\n  none set by the agent\n"],
    );
    assert!(
        !text.contains("memory.high"),
        "what bounds nothing is not shown"
    );
}

#[test]
fn limits_on_a_disk_are_shown_with_their_reason_and_rule() {
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
            "written by the agent; restored when the agent ends: no limit\n",
            "set io.max 8:0 (sda) to rbps=max wbps=7340032 riops=max wiops=max (writes at most 7.00M/s) in 2 steps",
            "set memory.high to 41943040 (40.0M)\n",
            "set memory.low from 0 KiB to 640 KiB\n",
            "reason, when it was set: the disk is contended",
            "changes when: the contention ends",
            "memory.high = 41943040 (40.0M)",
            "reason, when it was set: writers contend",
            "that is not file pages (now 20.0M)",
        ],
    );
}

#[test]
fn application_io_is_shown_with_its_window() {
    let mut status = status();
    status.window = 10.0;
    status.tenants[1].app = Some(AppStatus {
        io_stalled: Some(0.05),
        miss_rate: 12.0,
        ..AppStatus::default()
    });
    status.tenants[1].knobs[0].knob = "io.max 8:0".into();
    let quiet = "; stalled on I/O 5.0 % of the time; not backlogged, for which it would have to do I/O in 80 % of \
                 the seconds, and be stalled 10 % of the time\n";
    says(
        &explain(&status, 1, &CurrentValues::default()),
        &[
            quiet,
            "its io.max (see Knobs) follows the disk's contention of the last second",
            "its cache grows though no call read or wrote",
            "(12 accesses a second missed the cache)",
        ],
    );
    status.tenants[1].backlogged = true;
    status.tenants[1].app.as_mut().unwrap().read_rate = 1e6;
    let text = explain(&status, 1, &CurrentValues::default());
    says(&text, &["5.0 % of the time: backlogged\n"]);
    for no_more in ["not backlogged", "grows though", "its io.max (see Knobs)"] {
        assert!(!text.contains(no_more), "{no_more:?} is in\n{text}");
    }
}

#[test]
fn entitlements_can_be_recomputed_from_the_text() {
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
    let part = "; 400 is the weight of those that demand at least their part by weight; the others get cron 0\n";
    says(&text(&status, 1), &["now: 100/400 of 400M; ", part]);
    says(&text(&status, 2), &["now: 300/400 of 400M; ", part]);
    says(
        &text(&status, 3),
        &[
            "now: that is all it demands",
            "the rest, divided second: its cache does not grow, so it demands no more than that",
            "nothing is reclaimed from it: it holds nothing\n",
        ],
    );
    // The slice is alone at the top, and wants what its children want.
    says(&text(&status, 0), &["now: 100/100 of 400M; "]);
    (status.tenants[1].growing, status.tenants[2].growing) = (false, false);
    says(
        &text(&status, 1),
        &["none of these children demands more than it holds"],
    );
}

#[test]
fn a_protection_within_the_deadband_is_left() {
    let mut status = status();
    status.tenants[1].other = 21 * MIB;
    let text = |status: &Status| explain(status, 1, &CurrentValues::default());
    says(
        &text(&status),
        &[
            "now: the wanted value is 121M; the difference of 1.00M is within the deadband of 3.78M, so it is not written",
        ],
    );
    status.tenants[1].other = 40 * MIB;
    says(
        &text(&status),
        &["now: the wanted value is 140M; it is written with the next plan"],
    );
    status.tenants[1].minimum = 320 * MIB;
    says(&text(&status), &["no more than its minimum (320M)"]);
    (status.tenants[1].minimum, status.tenants[1].unreclaimable) = (0, 310 * MIB);
    says(
        &text(&status),
        &["no more than its dirty pages and those under writeback (310M)"],
    );
}

#[test]
fn the_constants_of_a_rule_are_those_of_the_agent() {
    let mut status = status();
    for (knob, value) in [("io.max 8:0", "8:0 wbps=1"), ("memory.high", "1")] {
        status.tenants[1].knobs.push(KnobStatus {
            knob: knob.into(),
            value: value.into(),
            owner: KnobOwner::Agent,
            original: None,
            reason: None,
        });
    }
    let text = |status: &Status| explain(status, 1, &CurrentValues::default());
    assert!(!text(&status).contains("no limit is below"), "not known");
    status.policy.io = Some(IoPolicyStatus {
        reserved: 0.02,
        max_reserved: 0.13,
        direction_margin: 0.06,
        min_direction: 0.17,
        min_rate: 96 << 10,
        min_requests: 9,
        min_dirty_budget: 24 * MIB,
        reclaim_step: 5,
        high_deadband: 7,
        ample_free: 11,
        ample_budget: 1.75,
    });
    says(
        &text(&status),
        &[
            "2.0 % to 13.0 % is not handed out",
            "get 6.0 % of the part on top, and 17.0 % at least; no limit is below 96.0K/s or 9 requests/s\n",
            "The budget is 24.0M at least",
            "at most 1/5 of its memory at once; while more than 1/11 of what is divided is free, it keeps 1.75 times",
            "off by more than 1/7\n",
        ],
    );
}

#[test]
fn a_knob_that_alternates_is_pointed_out() {
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
    let goes = "alternates";
    let text = explain(&status, 1, &knobs(&[]));
    assert!(!text.contains(goes), "{text}");
    status.decisions.push(at(3590.0, limit()));
    says(
        &explain(&status, 1, &knobs(&[])),
        &[
            "io.max 8:0 (sda) alternates: in the last minute it was set 2 times and restored once, by the",
        ],
    );
}

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
fn working_sets_are_divided_first() {
    let mut status = status();
    // Of 400 MiB in a.slice, the light one uses 150 and gets them; it and the heavy one want more.
    (status.tenants[1].working_set, status.tenants[1].entitlement) = (150 * MIB, 200 * MIB);
    (status.tenants[2].working_set, status.tenants[2].entitlement) = (50 * MIB, 200 * MIB);
    status.tenants[2].growing = true;
    let text = explain(&status, 1, &CurrentValues::default());
    says(
        &text,
        &[
            "now: the working sets of 200M in all fit: it gets its own of 150M, and of the rest 100/400 of 200M",
            "working set, divided first: 150M",
        ],
    );
    // What does not fit is divided by weight, and nothing is left.
    (status.tenants[1].working_set, status.tenants[1].entitlement) = (300 * MIB, 100 * MIB);
    (status.tenants[2].working_set, status.tenants[2].entitlement) = (400 * MIB, 300 * MIB);
    let text = explain(&status, 1, &CurrentValues::default());
    says(
        &text,
        &[
            "now: the working sets of 700M in all do not fit: it gets 100/400 of 400M; 400 is the weight of those that have a working set of",
        ],
    );
}
