//! The status of the agent as text: one function a section.

use justitia_api::escape::plain_lines;
use justitia_api::{Status, TenantStatus, display_name, units};

use justitia_view::table::Column::{Number, Text};
use justitia_view::table::table;

/// Everything, ready for a terminal.
pub(super) fn text(status: &Status) -> String {
    let sections = [
        summary(status),
        tenants(status),
        variation(status),
        external(status),
        given_up(status),
        last_decision(status),
        limitations(status),
        cost(status),
    ];
    let sections = sections.iter().filter(|section| !section.is_empty());
    let text = sections.cloned().collect::<Vec<_>>().join("\n");
    plain_lines(&text)
}

fn summary(status: &Status) -> String {
    let mode = if status.observe {
        "observing, nothing is changed"
    } else {
        "acting"
    };
    let memory = &status.memory;
    format!(
        "{mode}, for {}; {} of memory to divide, {} free ({} headroom)\n",
        units::seconds(status.uptime),
        units::bytes(memory.cache_divisible),
        units::bytes(memory.free),
        units::bytes(memory.free_headroom),
    )
}

fn tenants(status: &Status) -> String {
    let columns = [
        Text("TENANT"),
        Number("WEIGHT"),
        Number("CACHE"),
        Number("WSS"),
        Number("ENTITLED"),
        Number("EXCESS"),
        Number("PROTECTED"),
        Number("RECLAIMED"),
        Number("READ/s"),
        Number("WRITE/s"),
        Number("HIT%"),
        Number("PV"),
        Text("STATE"),
    ];
    table(&columns, status.tenants.iter().map(row))
}

fn row(tenant: &TenantStatus) -> Vec<String> {
    let app = tenant.app.as_ref();
    let unknown = || "-".to_owned();
    vec![
        tenant.display_name().to_owned(),
        tenant.weight.to_string(),
        units::bytes(tenant.usage),
        tenant
            .known_working_set()
            .map_or_else(unknown, units::bytes),
        units::bytes(tenant.entitlement),
        units::bytes(tenant.usage.saturating_sub(tenant.entitlement)),
        units::bytes(tenant.protected),
        units::bytes(tenant.reclaimed),
        app.map_or_else(unknown, |app| units::rate(app.read_rate)),
        app.map_or_else(unknown, |app| units::rate(app.write_rate)),
        app.and_then(|app| app.hit_ratio)
            .map_or_else(unknown, units::percent),
        units::pv(tenant.pv),
        state(tenant),
    ]
}

fn state(tenant: &TenantStatus) -> String {
    let mut words = Vec::new();
    if tenant.growing {
        words.push("growing".to_owned());
    } else if tenant.leaf && tenant.rests() {
        words.push(format!("resting {}", units::seconds(tenant.idle)));
    }
    if tenant.backlogged {
        words.push("backlogged".to_owned());
    }
    words.extend(tenant.exempt.iter().map(ToString::to_string));
    words.join(", ")
}

fn variation(status: &Status) -> String {
    match &status.app_io_unavailable {
        None => format!(
            "PV over {:.0} s: {} over all backlogged tenants, {} at the top level\n",
            status.window,
            units::pv(status.pv),
            units::pv(status.pv_top)
        ),
        Some(why) => format!("what applications get is not known: {why}\n"),
    }
}

fn external(status: &Status) -> String {
    let knobs = status.external.iter().map(|other| {
        let path = display_name(&other.path);
        format!("external: {path} {} (found {})\n", other.knob, other.value)
    });
    knobs.collect()
}

fn given_up(status: &Status) -> String {
    let knobs = status.given_up.iter().map(|knob| {
        let path = display_name(&knob.path);
        format!("given up: {path} {} ({})\n", knob.knob, knob.reason)
    });
    knobs.collect()
}

fn last_decision(status: &Status) -> String {
    let last = status.decisions.last().map(|last| {
        let path = display_name(&last.path);
        format!("last decision: {} ({path}): {}\n", last.what(), last.reason)
    });
    last.unwrap_or_default()
}

fn limitations(status: &Status) -> String {
    let limitations = status.limitations.iter();
    limitations
        .map(|one| format!("limitation: {one}\n"))
        .collect()
}

fn cost(status: &Status) -> String {
    let cost = &status.agent_usage;
    let percent = |seconds: f64| 100.0 * seconds / status.uptime.max(0.001);
    format!(
        "cost since the start: {:.2} % of a CPU ({:.2} % in the control loop), {} resident, {} knobs managed\n",
        percent(cost.cpu),
        percent(cost.cpu_loop),
        units::bytes(cost.resident),
        cost.knobs,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_api::{ExternalKnob, GivenUpKnob, Reason};

    const BAD: &str = "x\x1b]0;\u{9b}2J\u{202e}\r";

    #[test]
    fn what_a_socket_says_does_nothing_to_a_terminal() {
        let tenant = TenantStatus {
            path: BAD.into(),
            exempt: Some(Reason::Text(BAD.into())),
            ..TenantStatus::default()
        };
        let text = text(&Status {
            tenants: vec![tenant],
            limitations: vec![BAD.into()],
            app_io_unavailable: Some(BAD.into()),
            ..Status::default()
        });
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert_eq!(text.matches("x\\u{1b}]0;\\u{9b}2J\\u{202e}\\r").count(), 4);
        assert!(!text.contains(bad), "{text:?}");
    }

    #[test]
    fn an_external_knob_is_told_from_one_that_the_kernel_refused() {
        let status = Status {
            external: vec![ExternalKnob {
                by: None,
                path: "a".into(),
                knob: "memory.low".into(),
                value: "4096".into(),
            }],
            given_up: vec![GivenUpKnob {
                path: "-".into(),
                knob: "vm.dirty_background_ratio".into(),
                reason: "the kernel refused the write: x".into(),
            }],
            ..Status::default()
        };
        let new = "external: a memory.low (found 4096)\n\n\
                   given up: (unmanaged) vm.dirty_background_ratio (the kernel refused the write: x)\n";
        assert!(text(&status).contains(new), "{}", text(&status));
    }

    /// The planner's word, from the planner's threshold.
    #[test]
    fn a_tenant_that_rests_is_said_to() {
        let state = |leaf, growing, idle| {
            state(&TenantStatus {
                leaf,
                growing,
                idle,
                ..TenantStatus::default()
            })
        };
        assert_eq!(state(true, false, justitia_api::RESTS_AFTER - 0.1), "");
        assert_eq!(state(true, false, 42.0), "resting 42 s");
        assert_eq!(state(true, false, 600.0), "resting 10 min");
        assert_eq!(state(true, true, 42.0), "growing");
        assert_eq!(state(false, false, 42.0), "");
    }

    #[test]
    fn a_tenant_is_a_row_and_a_section_without_content_is_absent() {
        let tenant = TenantStatus {
            path: "a.slice".into(),
            weight: 300,
            usage: 3 << 20,
            entitlement: 1 << 20,
            backlogged: true,
            ..TenantStatus::default()
        };
        let text = text(&Status {
            tenants: vec![tenant],
            ..Status::default()
        });
        let row = text.lines().find(|l| l.starts_with("a.slice ")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let expected = [
            "a.slice",
            "300",
            "3.00M",
            "0",
            "1.00M",
            "2.00M",
            "0",
            "0",
            "-",
            "-",
            "-",
            "-",
            "backlogged",
        ];
        assert_eq!(cells, expected);
        let unknown = TenantStatus {
            working_set_unknown: true,
            ..TenantStatus::default()
        };
        assert_eq!(super::row(&unknown)[3], "-");
        for absent in ["external:", "given up:", "limitation:"] {
            assert!(!text.contains(absent), "{absent} is in\n{text}");
        }
    }
}
