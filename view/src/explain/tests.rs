//! Three scenarios, and that each answer has its facts.

mod limits;
mod names;

use super::*;
use justitia_api::{
    Action, AppStatus, Decision, DeclaredWeight, EstimateBasis, ExcessReason, IoPolicyStatus,
    KnobStatus, MemoryStatus, ProtectionReason, Reason, Rule, TenantKind,
};

const MIB: u64 = 1 << 20;

fn tenant(path: &str, weight: u64, usage: u64, entitlement: u64) -> TenantStatus {
    TenantStatus {
        path: path.to_owned(),
        weight,
        leaf: true,
        usage: usage * MIB,
        entitlement: entitlement * MIB,
        protected: entitlement * MIB,
        other: 20 * MIB,
        ..TenantStatus::default()
    }
}

/// Holds more than its entitlement.
fn light() -> TenantStatus {
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
    light
}

/// Has a limit of its operator's.
fn heavy() -> TenantStatus {
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
    heavy
}

/// A slice with both in it.
fn status() -> Status {
    let (mut light, mut heavy) = (light(), heavy());
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
        ..CurrentValues::default()
    }
}

fn says(text: &str, facts: &[&str]) {
    for fact in facts {
        assert!(text.contains(fact), "{fact:?} is not in\n{text}");
    }
}

#[test]
fn caps_are_told_with_what_they_are_held_against() {
    let mut status = status();
    let told = |status: &Status| {
        let mut out = String::new();
        cache::entitlement(&mut out, status, &status.tenants[1]);
        cache::taking(&mut out, status, &status.tenants[1]);
        out
    };
    assert!(!told(&status).contains("mapped"));
    status.tenants[1].parent = None;
    (status.tenants[1].mapped, status.tenants[1].slab) = (20 * MIB, 30 * MIB);
    (status.memory.unmapped, status.memory.unmapped_cap) = (90 * MIB, Some(40 * MIB));
    (status.memory.slab, status.memory.slab_cap) = (70 * MIB, Some(60 * MIB));
    status.memory.free = 200 * MIB;
    says(
        &told(&status),
        &[
            "of what no process has mapped 40.0M at most: it holds 90.0M",
            "20.0M are mapped, and 30.0M are reclaimable slab (all hold 70.0M, the cap is 60.0M)",
            "more than 40.0M of file pages are mapped by no process (now 90.0M)",
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
    let quiet = "; stalled on I/O 5.0 % of the time; not backlogged: it would have to move bytes in 80 % of the \
                 seconds, or be stalled on I/O 80 % of the time; and be stalled 10 % of the time\n";
    says(
        &explain(&status, 1, &CurrentValues::default()),
        &[
            quiet,
            "its cache grows though no call read or wrote",
            "(12 accesses a second missed the cache)",
        ],
    );
    status.tenants[1].backlogged = true;
    status.tenants[1].app.as_mut().unwrap().read_rate = 1e6;
    let text = explain(&status, 1, &CurrentValues::default());
    says(&text, &["5.0 % of the time: backlogged\n"]);
    for no_more in ["not backlogged", "grows though"] {
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
    let part =
        "; 400 is the weight of those that demand at least their share; the others get cron 0\n";
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
fn a_working_set_that_nothing_shows_is_said_to_be_unknown() {
    let mut status = status();
    status.tenants[1].working_set_unknown = true;
    status.tenants[1].observed_for = 10.0;
    let text = explain(&status, 1, &CurrentValues::default());
    says(
        &text,
        &["working set: not known; its accesses are not sampled"],
    );
    assert!(!text.contains("working set, divided first"), "{text}");
    // Of what runs in no managed cgroup the share is divided first, while it grows, and nothing that is mapped.
    status.tenants[1].path = "-".into();
    status.tenants[1].working_set = 50 * MIB;
    let text = explain(&status, 1, &CurrentValues::default());
    says(&text, &["its share by weight is divided first: 50.0M"]);
    assert!(!text.contains("mapped is divided"), "{text}");
}

#[test]
fn a_working_set_is_told_with_the_time_in_which_it_was_seen() {
    let mut status = status();
    let db = |status: &Status| explain(status, 2, &CurrentValues::default());
    // How long a tenant has been idle is no time in which the lists were observed.
    (status.tenants[2].idle, status.tenants[2].observed_for) = (0.0, 0.0);
    status.tenants[2].working_set = 50 * MIB;
    says(
        &db(&status),
        &["divided first: 50.0M (from the kernel's LRU lists)\n"],
    );
    (status.tenants[2].idle, status.tenants[2].observed_for) = (5.0, 5.0);
    says(
        &db(&status),
        &["(from the kernel's LRU lists; idle for 5 s)\n"],
    );
    (status.tenants[2].evidence, status.tenants[2].observed_for) = (EstimateBasis::Accesses, 180.0);
    says(
        &db(&status),
        &["(from its sampled accesses of the last 3 min)\n"],
    );
}

#[test]
fn what_an_inner_node_lacks_to_be_backlogged_is_a_tenant_below() {
    let mut status = status();
    status.tenants[0].app = Some(AppStatus::default());
    let text = explain(&status, 0, &CurrentValues::default());
    says(&text, &["; not backlogged: no tenant below it is\n"]);
    status.tenants[1].app = Some(AppStatus::default());
    let text = explain(&status, 1, &CurrentValues::default());
    says(&text, &["and use the disk (this kernel has no PSI)\n"]);
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
    // A tenant that rests gets what is left of the working sets that are in use.
    status.tenants[2].idle = 42.0;
    let both = "now: the working sets of 700M in all do not fit, those in use of 300M come first:";
    let text = explain(&status, 1, &CurrentValues::default());
    says(&text, &[both, "they fit, so it gets what it uses"]);
    let text = explain(&status, 2, &CurrentValues::default());
    says(
        &text,
        &["it has used neither CPU nor cache for 42 s, so it gets what they leave"],
    );
    status.tenants[1].working_set = 0;
    status.tenants[2].working_set = 700 * MIB;
    let text = explain(&status, 1, &CurrentValues::default());
    says(&text, &["nothing is left for what is read once"]);
}
