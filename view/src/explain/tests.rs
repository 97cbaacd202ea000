//! That each answer has its facts.

mod limits;
mod names;

use super::*;
use justitia_api::{
    Action, Decision, DeclaredWeight, ExcessReason, IoPolicyStatus, KnobStatus, MemoryStatus,
    ProtectionReason, Reason, Rule, TenantKind,
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
        &["it has not used its set for 42 s, so it gets what they leave"],
    );
    status.tenants[1].working_set = 0;
    status.tenants[2].working_set = 700 * MIB;
    let text = explain(&status, 1, &CurrentValues::default());
    says(&text, &["nothing is left for what is read once"]);
}
