//! Limits and protections: their author, their cgroup, and why they stand.

use super::*;

#[test]
fn a_limit_on_an_ancestor_is_named() {
    let mut status = status();
    assert!(!explain(&status, 1, &CurrentValues::default()).contains("limits it as well"));
    status.tenants[0].knobs = vec![KnobStatus {
        knob: "memory.high".into(),
        value: "1048576".into(),
        owner: KnobOwner::Agent,
        original: Some("max".into()),
        reason: Some(Reason::Text("writers contend".into())),
    }];
    let text = explain(&status, 1, &CurrentValues::default());
    says(
        &text,
        &[
            "memory.high of its ancestor a.slice limits it too",
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
            "now: 100/400 of 400M; 400 is the weight of those that demand at least their share\n",
            "holds 300M, entitled to 100M of the 400M of a.slice",
            "its cache grows, so it demands all that it can get",
            "memory.low = 125829120 (120M)",
            "written by the agent; restored when the agent needs it no more, at its end at the latest: 0\n",
            "reason, when it was set: 100M of file pages are protected",
            "    now: it has the wanted value\n",
            "(now 100M)",
            "written when off by more than 1/32 and more than 1.00M",
            "changes when: its weight",
            "when free memory (now 10.0M) falls below the headroom (now 16.0M)",
            "up to 200M can be reclaimed from it now",
            "01:59:40 to 01:59:50 (10 s ago): reclaim 64.0M in 9 steps",
            "holds 300M, entitled to 100M; 10.0M free, 16.0M of headroom wanted",
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
            "working set, divided first: 0 (from the kernel's LRU lists)",
            "the rest, divided second: its cache does not grow, so it demands no more than that\n",
            "memory.low = 1048576 (1.00M)\n    external: another process has set it; the agent leaves it as it is\n",
            "less the memory that is not file pages (20.0M), as the tenant's minimum",
            "To give it back to the agent: `sudo justitia take 'a.slice/db/memory.low'`",
            "memory.max = 943718400 (900M)\n    not written by the agent: another process has set it; the kernel does not record which \
             (systemd's MemoryMax=, a container's memory limit)\n    to undo it: `echo max >/sys/fs/cgroup/a.slice/db/memory.max`",
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
fn what_divides_a_disk_is_shown_with_its_reason_and_rule() {
    let mut status = status();
    status.tenants[1].knobs = vec![KnobStatus {
        knob: "io.weight 8:0".into(),
        value: "8:0 340".into(),
        owner: KnobOwner::Agent,
        original: Some("8:0 default".into()),
        reason: Some(Reason::Text("the disk is contended".into())),
    }];
    let text = explain(&status, 1, &knobs(&[("io.weight 8:0", "8:0 340")]));
    says(
        &text,
        &[
            "io.weight 8:0 (sda) = 340\n",
            "at its end at the latest: default\n",
            "reason, when it was set: the disk is contended",
            "its own weight, corrected by what its applications get",
            "changes when: the contention ends",
        ],
    );
}

#[test]
fn a_dirty_budget_is_shown_with_the_constants_of_the_agent() {
    let mut status = status();
    status.tenants[1].knobs = vec![KnobStatus {
        knob: "memory.high".into(),
        value: "41943040".into(),
        owner: KnobOwner::Agent,
        original: Some("max".into()),
        reason: Some(Reason::Text("writers contend".into())),
    }];
    status.decisions[0].action = Action::Set {
        knob: "memory.high".into(),
        from: None,
        to: "41943040".into(),
    };
    status.decisions[0].steps = 2;
    let text = |status: &Status| explain(status, 1, &CurrentValues::default());
    says(
        &text(&status),
        &[
            "memory.high = 41943040 (40.0M)\n",
            "reason, when it was set: writers contend",
            "that is not file pages (now 20.0M)",
            "set memory.high to 41943040 (40.0M) in 2 steps",
        ],
    );
    assert!(!text(&status).contains("The budget is"), "not known");
    status.policy.io = Some(IoPolicyStatus {
        min_dirty_budget: 24 * MIB,
        reclaim_step: 5,
        high_deadband: 7,
        ample_free: 11,
        ample_budget: 1.75,
    });
    says(
        &text(&status),
        &[
            "The budget is 24.0M at least",
            "at most 1/5 of its memory at once; while more than 1/11 of what is divided is free, it keeps 1.75 times",
            "off by more than 1/7\n",
        ],
    );
}

#[test]
fn the_protection_of_an_inner_node_is_that_of_its_children() {
    let mut status = status();
    (status.tenants[0].protected, status.tenants[0].other) = (90 * MIB, 40 * MIB);
    status.tenants[0].knobs = status.tenants[1].knobs.clone();
    let text = explain(&status, 0, &CurrentValues::default());
    says(
        &text,
        &[
            "rule: the sum of what its children have there, because the kernel caps theirs by it (now 90.0M of file pages",
        ],
    );
    assert!(
        !text.contains("the part of the entitlement that it demands"),
        "{text}"
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
fn a_knob_that_alternates_is_pointed_out() {
    let mut status = status();
    let knob = || "io.weight 8:0".to_owned();
    let set = || Action::Set {
        knob: knob(),
        from: None,
        to: "8:0 340".to_owned(),
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
        at(3550.0, set()),
        at(3560.0, restore()),
    ];
    let goes = "alternates";
    let text = explain(&status, 1, &knobs(&[]));
    assert!(!text.contains(goes), "{text}");
    status.decisions.push(at(3590.0, set()));
    says(
        &explain(&status, 1, &knobs(&[])),
        &[
            "io.weight 8:0 (sda) alternates: in the last minute it was set 2 times and restored once, by the",
        ],
    );
}

#[test]
fn what_a_killed_agent_has_left_is_told_from_what_others_have_set() {
    let limit = "8:16 rbps=max wbps=7340032 riops=max wiops=max";
    let mut found = knobs(&[
        ("io.weight 8:0", "8:0 340"),
        ("io.max 8:16", limit),
        ("io.latency 8:16", "8:16 target=10000"),
        ("memory.high", "41943040"),
        ("memory.low", "1048576"),
    ]);
    let left = |knob: &str, original: &str| LeftKnob {
        knob: knob.into(),
        original: original.into(),
    };
    found.left = vec![
        left("io.weight 8:0", "8:0 default"),
        left("memory.high", "41943040"),
        left("memory.low", "0"),
    ];
    found.drop_restored();
    let mut status = status();
    status.tenants[1].knobs[0].owner = KnobOwner::Proposed;
    let text = explain(&status, 1, &found);
    let was = "left by an agent that was killed; before: ";
    let undo = "To undo it: `sudo justitia reset`\n";
    says(
        &text,
        &[
            &format!("io.weight 8:0 (sda) = 340\n    {was}default. {undo}"),
            "io.max 8:16 = rbps=max wbps=7340032 riops=max wiops=max (writes at most 7.00M/s)\n    not written by the agent",
            &format!("the agent would set 125829120 (120M)\n    {was}0. {undo}"),
            "docker's --device-write-bps)\n    to undo it: `echo '8:16 rbps=max wbps=max riops=max wiops=max' \
             >/sys/fs/cgroup/a.slice/batch/io.max`",
            "io.latency 8:16 = target=10000\n    not written by the agent",
            "The agent does not divide a disk on which the administrator has set one\n    to undo it: `echo '8:16 target=0'",
            "memory.high = 41943040 (40.0M)\n    not written by the agent",
        ],
    );
    assert_eq!(text.matches(was).count(), 2, "{text}");
    found.left.clear();
    found.left_unknown = true;
    let text = explain(&status, 1, &found);
    let unknown = "the knob journal cannot be read, so a killed agent may have left it";
    assert_eq!(text.matches(unknown).count(), 4, "{text}");
}

#[test]
fn a_knob_that_was_given_up_is_not_called_another_writers() {
    let mut status = status();
    status.tenants[2].knobs = vec![KnobStatus {
        knob: "memory.high".into(),
        value: String::new(),
        owner: KnobOwner::GivenUp,
        original: None,
        reason: Some(Reason::Text("setting it took 1.2 s".into())),
    }];
    let text = explain(&status, 2, &knobs(&[("memory.high", "max")]));
    says(
        &text,
        &[
            "memory.high = max\n    given up by the agent: setting it took 1.2 s\n    changes when: another process writes it. The \
             agent tries it again after a restart, or with `sudo justitia take 'a.slice/db/memory.high'`\n",
        ],
    );
    assert!(!text.contains("external"), "{text}");
}

#[test]
fn a_knob_of_the_whole_host_is_taken_by_its_name_alone() {
    let mut status = status();
    for name in ["vm.dirty_background_ratio", "io.cost.qos 8:0"] {
        status.tenants[2].knobs[0].knob = name.into();
        let text = explain(&status, 2, &knobs(&[]));
        let command = format!("To give it back to the agent: `sudo justitia take '{name}'`\n");
        says(&text, &[&command]);
    }
}
