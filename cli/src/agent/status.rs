//! The status of the agent as text: one function a section.

use justitia_api::escape::plain_lines;
use justitia_api::{Status, TenantStatus, WeightSource, display_name, units};

use justitia_view::table::{fitted, known};

/// How the status is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Tenants without process and cache, too, and the cgroups that runtimes make inside their containers.
    pub all: bool,
    /// The columns of the terminal; `None` where it is none, for all columns.
    pub width: Option<usize>,
}

/// Everything, ready for a terminal.
pub(super) fn text(status: &Status, layout: Layout) -> String {
    let sections = [
        summary(status),
        tenants(status, layout),
        left_out(status, layout),
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

/// The columns, and how soon each is left out where there is no room: the highest first. What says whether a tenant has the
/// cache that it uses stays longest.
const COLUMNS: [(&str, u8); 15] = [
    ("TENANT", 0),
    ("IMAGE", 7),
    (">WEIGHT", 0),
    ("FROM", 6),
    (">CACHE", 0),
    (">WSS", 1),
    (">ENTITLED", 0),
    (">EXCESS", 3),
    (">PROTECTED", 9),
    (">RECLAIMED", 9),
    (">READ/s", 4),
    (">WRITE/s", 5),
    (">HIT%", 2),
    (">PV", 8),
    ("STATE", 0),
];

fn tenants(status: &Status, layout: Layout) -> String {
    let shown = status.tenants.iter();
    let shown = shown.filter(|tenant| layout.all || !tenant.is_minor());
    fitted(
        &COLUMNS,
        shown.map(row),
        layout.width.unwrap_or(usize::MAX - 1),
    )
}

/// How many tenants are not shown.
fn left_out(status: &Status, layout: Layout) -> String {
    let minor = status.tenants.iter().filter(|tenant| tenant.is_minor());
    match minor.count() {
        0 => String::new(),
        _ if layout.all => String::new(),
        count => {
            format!(
                "{count} without process and cache, or part of a container, are left out (--all)\n"
            )
        }
    }
}

/// Where a weight comes from, in a word.
const fn from(source: WeightSource) -> &'static str {
    match source {
        WeightSource::Default => "-",
        WeightSource::OnlyChild => "child",
        WeightSource::Cgroup => "cgroup",
        WeightSource::Unit => "unit",
        WeightSource::Runtime => "runtime",
        WeightSource::Configuration => "rule",
    }
}

fn row(tenant: &TenantStatus) -> Vec<String> {
    let app = tenant.app.as_ref();
    let unknown = || "-".to_owned();
    vec![
        tenant.display_name(),
        tenant.image.clone().unwrap_or_default(),
        tenant.weight.to_string(),
        from(tenant.weight_source).to_owned(),
        units::bytes(tenant.usage),
        known(tenant.known_working_set()),
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
    if tenant.declared.as_ref().is_some_and(|d| d.drift) {
        words.push("drift".to_owned());
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

/// The name of the tenant with this path.
fn name(status: &Status, path: &str) -> String {
    let tenant = status.tenants.iter().find(|tenant| tenant.path == path);
    tenant.map_or_else(|| display_name(path).to_owned(), TenantStatus::display_name)
}

fn external(status: &Status) -> String {
    let knobs = status.external.iter().map(|other| {
        let path = name(status, &other.path);
        format!("external: {path} {} (found {})\n", other.knob, other.value)
    });
    knobs.collect()
}

fn given_up(status: &Status) -> String {
    let knobs = status.given_up.iter().map(|knob| {
        let path = name(status, &knob.path);
        format!("given up: {path} {} ({})\n", knob.knob, knob.reason)
    });
    knobs.collect()
}

fn last_decision(status: &Status) -> String {
    let last = status.decisions.last().map(|last| {
        let path = name(status, &last.path);
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
    let rest = format!(
        "{} resident, {} knobs managed\n",
        units::bytes(cost.resident),
        cost.knobs
    );
    // The start itself is no measure of what comes.
    if status.uptime < 1.0 {
        return format!("cost of the start: {:.2} s of a CPU, {rest}", cost.cpu);
    }
    let percent = |seconds: f64| 100.0 * seconds / status.uptime;
    format!(
        "cost since the start: {:.2} % of a CPU ({:.2} % in the control loop), {rest}",
        percent(cost.cpu),
        percent(cost.cpu_loop),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_api::{AppStatus, ExternalKnob, GivenUpKnob, Reason, TenantKind};

    const WIDE: Layout = Layout {
        all: false,
        width: None,
    };

    fn shown(status: &Status) -> String {
        text(status, WIDE)
    }

    const BAD: &str = "x\x1b]0;\u{9b}2J\u{202e}\r";

    #[test]
    fn what_a_socket_says_does_nothing_to_a_terminal() {
        let tenant = TenantStatus {
            path: BAD.into(),
            exempt: Some(Reason::Text(BAD.into())),
            ..TenantStatus::default()
        };
        let named = TenantStatus {
            name: BAD.into(),
            part: Some(BAD.into()),
            image: Some(BAD.into()),
            ..TenantStatus::default()
        };
        let all = Layout { all: true, ..WIDE };
        let status = Status {
            tenants: vec![tenant, named],
            limitations: vec![BAD.into()],
            app_io_unavailable: Some(BAD.into()),
            ..Status::default()
        };
        let text = text(&status, all);
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert_eq!(text.matches("x\\u{1b}]0;\\u{9b}2J\\u{202e}\\r").count(), 7);
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
        let told = "external: a memory.low (found 4096)\n\n\
                    given up: (unmanaged) vm.dirty_background_ratio (the kernel refused the write: x)\n";
        assert!(shown(&status).contains(told), "{}", shown(&status));
    }

    fn container(name: &str) -> TenantStatus {
        TenantStatus {
            path: format!("system.slice/docker-{}.scope", "0123456789abcdef".repeat(4)),
            kind: TenantKind::DockerContainer,
            name: name.to_owned(),
            image: Some("registry.example.org/team/web:1.25.3".to_owned()),
            weight: 100,
            weight_source: WeightSource::Runtime,
            usage: 5 << 20,
            backlogged: true,
            growing: true,
            ..TenantStatus::default()
        }
    }

    #[test]
    fn containers_are_shown_by_name_in_80_columns() {
        let mount = TenantStatus {
            path: "-.mount".to_owned(),
            no_processes: true,
            ..TenantStatus::default()
        };
        let part = TenantStatus {
            part: Some("container".to_owned()),
            ..container("web")
        };
        let unit = TenantStatus {
            path: format!("system.slice/{}.service", "x".repeat(100)),
            ..TenantStatus::default()
        };
        let decision = justitia_api::Decision {
            path: container("").path,
            ..decision()
        };
        let status = Status {
            tenants: vec![mount, container("web"), part, unit],
            decisions: vec![decision],
            ..Status::default()
        };
        let at = |width, all| tenants(&status, Layout { all, width });
        let narrow = at(Some(80), false);
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 80),
            "{narrow}"
        );
        assert_eq!(narrow.lines().count(), 3, "{narrow}");
        let row = narrow.lines().find(|line| line.starts_with("web "));
        let cells: Vec<&str> = row.unwrap().split_whitespace().collect();
        assert_eq!(cells[..3], ["web", "100", "5.00M"], "{narrow}");
        let heads = |table: &str| {
            let head = table.lines().next().unwrap();
            head.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let kept = "TENANT WEIGHT CACHE WSS ENTITLED EXCESS READ/s HIT% STATE";
        assert_eq!(heads(&narrow), kept);
        let kept = "TENANT WEIGHT CACHE WSS ENTITLED EXCESS HIT% STATE";
        assert_eq!(heads(&at(Some(72), false)), kept);
        let wide = at(Some(300), false);
        assert!(
            wide.contains("IMAGE") && wide.contains("RECLAIMED"),
            "{wide}"
        );
        assert_eq!(at(None, true).lines().count(), 5);
        let text = shown(&status);
        assert!(text.contains("\n2 without process and cache"), "{text}");
        assert!(
            text.contains("(web): "),
            "the last decision names it: {text}"
        );
    }

    fn decision() -> justitia_api::Decision {
        justitia_api::Decision {
            at: 0.0,
            since: 0.0,
            path: String::new(),
            action: justitia_api::Action::Reclaim { bytes: 1 },
            steps: 1,
            dry_run: false,
            reason: Reason::Text("x".to_owned()),
        }
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

    /// What docs/guide/backup.md shows.
    #[test]
    fn the_guides_example_is_what_is_shown() {
        const MIB: u64 = 1 << 20;
        let tenant =
            |name: &str, [usage, set, entitled, protected, reclaimed]: [u64; 5]| TenantStatus {
                usage: usage * MIB,
                working_set: set * MIB,
                entitlement: entitled * MIB,
                protected: protected * MIB,
                reclaimed: reclaimed * MIB,
                ..container(name)
            };
        let database = TenantStatus {
            image: Some("postgres:16".to_owned()),
            app: Some(AppStatus {
                read_rate: 52e6,
                hit_ratio: Some(0.996),
                ..AppStatus::default()
            }),
            growing: false,
            backlogged: false,
            ..tenant("db", [400, 398, 471, 398, 0])
        };
        let backup = TenantStatus {
            image: Some("debian:12".to_owned()),
            backlogged: false,
            app: Some(AppStatus {
                read_rate: 38e6,
                hit_ratio: Some(0.004),
                ..AppStatus::default()
            }),
            ..tenant("backup", [283, 0, 260, 260, 8412])
        };
        let shown = tenants(
            &Status {
                tenants: vec![database, backup],
                ..Status::default()
            },
            WIDE,
        );
        let guide = include_str!("../../../docs/guide/backup.md");
        for line in shown.lines() {
            assert!(
                guide.contains(line.trim_end()),
                "not in the guide:\n{shown}"
            );
        }
    }
}
