//! What `justitia host status` and `top` show.

use justitia_api::units::bytes;
use justitia_host::channel::Agent;
use justitia_host::status::{Status, VmStatus};
use justitia_view::table::{fitted, known};

/// The columns, and how soon each is left out where there is no room: the highest first.
const COLUMNS: [(&str, u8); 9] = [
    ("VM", 0),
    (">WEIGHT", 0),
    (">MEMORY", 2),
    (">HELD", 0),
    (">ENTITLED", 0),
    (">WORTH", 1),
    (">BALLOON", 1),
    (">GIVEN", 3),
    ("AGENT", 0),
];

/// Tenants of a guest that are shown: those that hold most.
const TENANTS: usize = 8;

/// The status as a table, at most `width` columns wide.
pub(super) fn text(status: &Status, width: Option<usize>) -> String {
    let lacks = if status.shortage > 0 {
        format!(", {} short", bytes(status.shortage))
    } else {
        String::new()
    };
    let observes = if status.observe {
        "; it observes only"
    } else {
        ""
    };
    let rows = status
        .vms
        .iter()
        .flat_map(|vm| std::iter::once(row(vm)).chain(tenants(vm)));
    format!(
        "{} of {} available, headroom {}{lacks}{observes}\n\n{}",
        bytes(status.available),
        bytes(status.total),
        bytes(status.headroom),
        fitted(&COLUMNS, rows, width.unwrap_or(usize::MAX - 1)),
    )
}

fn row(vm: &VmStatus) -> Vec<String> {
    vec![
        vm.name.clone(),
        vm.weight.to_string(),
        bytes(vm.ram),
        bytes(vm.resident),
        bytes(vm.entitled),
        known(vm.reported.map(|(_, worth)| worth)),
        known(vm.balloon.map(|(actual, _)| actual)),
        bytes(vm.given),
        agent(vm).to_owned(),
    ]
}

/// What a guest says of its tenants. Their names are words: none can look like a VM's line.
fn tenants(vm: &VmStatus) -> Vec<Vec<String>> {
    let Some(tenants) = &vm.tenants else {
        return Vec::new();
    };
    let list = tenants.list();
    let line = |name: String, weight: String, file: String| {
        let mut row = vec![format!("  {name}"), weight, String::new(), file];
        row.resize(COLUMNS.len(), String::new());
        row
    };
    let shown = list.iter().take(TENANTS);
    let mut rows: Vec<_> = shown
        .map(|of| line(of.name.to_string(), of.weight.to_string(), bytes(of.file)))
        .collect();
    let left = list.len().saturating_sub(TENANTS) as u64;
    let more = tenants.more().saturating_add(left);
    if more > 0 {
        rows.push(line(format!("({more} more)"), String::new(), String::new()));
    }
    rows
}

pub(super) const fn agent(vm: &VmStatus) -> &'static str {
    match vm.agent {
        Agent::None => "none",
        Agent::Answers if vm.heeds => "gives",
        Agent::Answers => "keeps",
        Agent::Silent => "silent",
        Agent::Ignored => "ignored",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MIB: u64 = 1 << 20;

    /// A VM as a daemon tells it, with these tenants.
    fn vm(name: &str, tenants: serde_json::Value) -> VmStatus {
        let vm = json!({
            "name": name, "pid": 7, "weight": 300, "minimum": 0, "ram": 1024 * MIB, "resident": 800 * MIB, "share": 0,
            "entitled": 700 * MIB, "in_use": 0, "working_set": 0, "floor": 0, "paused_ms": 0, "heeds": true,
            "distress": false, "is_pinned": false, "agent": "answers", "wrong": justitia_host::channel::Wrong::default(),
            "reported": [0, 90 * MIB], "balloon": [1024 * MIB, 1024 * MIB], "deflates_on_oom": true,
            "monitor_error": null, "asked": 0, "given": 12 * MIB, "decisions": [], "tenants": tenants,
        });
        serde_json::from_value(vm).unwrap()
    }

    fn shown(vms: Vec<VmStatus>) -> String {
        let status = Status {
            vms,
            ..Status::default()
        };
        text(&status, Some(80))
    }

    #[test]
    fn tenants_are_below_their_vm() {
        let one = |name: &str, mib: u64| json!({ "name": name, "weight": 100, "file": mib * MIB });
        let list: Vec<_> = (0..10).map(|n| one(&format!("c{n}"), 60 - n)).collect();
        let shown = shown(vec![
            vm("web", json!({ "list": list, "more": 5 })),
            vm("db", json!(null)),
        ]);
        let lines: Vec<&str> = shown.lines().skip(3).collect();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(lines[0].starts_with("web "), "{shown}");
        assert_eq!(
            words(lines[0]),
            "web 300 1.00G 800M 700M 90.0M 1.00G 12.0M gives"
        );
        assert!(lines[1].starts_with("  c0 "), "{shown}");
        assert_eq!(words(lines[1]), "c0 100 60.0M");
        assert_eq!((lines.len(), lines[9]), (11, "  (7 more)"));
        assert!(lines[10].starts_with("db "), "{shown}");
        // Below HELD.
        let column = shown.lines().nth(2).unwrap().find("HELD").unwrap() + 4;
        assert!(lines[1].len() == column && lines[0][..column].ends_with("800M"));
    }

    #[test]
    fn what_hostile_guests_say_stays_below_their_vm_and_within_80_columns() {
        let wild = [
            "\u{1b}[2J\u{1b}[H",
            "x\ndb  300 1.00G 800M",
            &"w".repeat(4000),
            "\u{202e}\u{200b}e\u{301}",
            "",
        ];
        let list = wild.map(|name| json!({ "name": name, "weight": 10_000, "file": u64::MAX }));
        let tenants = json!({ "list": list, "more": u64::MAX });
        let shown = shown(vec![vm(&"m".repeat(90), tenants), vm("db", json!(null))]);
        for line in shown.lines() {
            assert!(line.chars().count() <= 80, "{line}");
            assert!(line.chars().all(justitia_api::escape::is_plain), "{line}");
        }
        let vms = shown.lines().skip(3).filter(|line| !line.starts_with("  "));
        assert_eq!(vms.count(), 2, "{shown}");
        for tenants in [
            json!({ "list": [{ "name": "a", "weight": u64::MAX, "file": 0 }], "more": 0 }),
            json!({ "list": vec![json!({ "name": "a", "weight": 1, "file": 0 }); 17], "more": 0 }),
        ] {
            let read = serde_json::from_value::<justitia_host::status::Status>(
                json!({ "vms": [{ "tenants": tenants }] }),
            );
            assert!(read.is_err());
        }
    }
}
