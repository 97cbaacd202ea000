//! What the agent tells, for people. Paths, values and words in it are others': here is where they become harmless to a
//! terminal.

use std::fmt::Write;

use justitia_agent::enforce::knob_store::{Corruption, RestoreOutcome, RestoredKnob};
use justitia_api::escape::{encode, plain, plain_lines};
use justitia_api::{Status, units};

/// The status as a table and a few lines around it.
pub fn status(status: &Status) -> String {
    let mut out = String::new();
    let memory = &status.memory;
    let mode = if status.observe {
        "observing (nothing is changed)"
    } else {
        "acting"
    };
    let _ = writeln!(
        out,
        "{mode} for {:.0} s; {} to divide, {} free ({} kept in reserve)",
        status.uptime,
        size(memory.cache_divisible),
        size(memory.free),
        size(memory.free_headroom),
    );
    let width = status
        .tenants
        .iter()
        .map(|t| name(&t.path).len())
        .max()
        .unwrap_or(6)
        .clamp(6, 60);
    let _ = writeln!(
        out,
        "\n{:width$} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>7} {:>5} {:>5}  STATE",
        "TENANT",
        "WEIGHT",
        "USAGE",
        "USEFUL",
        "ENTITLED",
        "OVERAGE",
        "PROTECTED",
        "RECLAIMED",
        "READ/s",
        "WRITE/s",
        "HIT%",
        "PV"
    );
    for tenant in &status.tenants {
        let mut state = Vec::new();
        if tenant.growing {
            state.push("growing".to_owned());
        } else if tenant.idle > 5.0 {
            state.push(format!("idle {:.0} s", tenant.idle));
        }
        if tenant.backlogged {
            state.push("backlogged".to_owned());
        }
        state.extend(tenant.exempt.iter().map(ToString::to_string));
        let none = || "-".to_owned();
        let app = tenant.app.as_ref();
        let _ = writeln!(
            out,
            "{:width$} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>7} {:>5} {:>5}  {}",
            name(&tenant.path),
            tenant.weight,
            size(tenant.usage),
            size(tenant.working_set),
            size(tenant.entitlement),
            size(tenant.usage.saturating_sub(tenant.entitlement)),
            size(tenant.protected),
            size(tenant.reclaimed),
            app.map_or_else(none, |a| units::rate(a.read_rate)),
            app.map_or_else(none, |a| units::rate(a.write_rate)),
            app.and_then(|a| a.hit_ratio)
                .map_or_else(none, units::percent),
            units::pv(tenant.pv),
            state.join(", "),
        );
    }
    let _ = match &status.app_io_unavailable {
        None => writeln!(
            out,
            "\nPV over {:.0} s: {} over all backlogged tenants, {} at the top level",
            status.window,
            units::pv(status.pv),
            units::pv(status.pv_top)
        ),
        Some(why) => writeln!(out, "\nwhat applications get is not seen: {why}"),
    };
    for other in &status.external {
        let _ = writeln!(
            out,
            "\nexternal: {} {} (found {})",
            name(&other.path),
            other.knob,
            other.value
        );
    }
    if let Some(last) = status.decisions.last() {
        let _ = writeln!(
            out,
            "\nlast: {} ({}): {}",
            last.what(),
            name(&last.path),
            last.reason
        );
    }
    for limit in &status.limitations {
        let _ = writeln!(out, "limited: {limit}");
    }
    let cost = &status.agent_usage;
    let _ = writeln!(
        out,
        "\ncost since the start: {:.2} % of a CPU ({:.2} % observing and planning), {} resident, {} knobs held",
        100.0 * cost.cpu / status.uptime.max(0.001),
        100.0 * cost.cpu_loop / status.uptime.max(0.001),
        size(cost.resident),
        cost.knobs,
    );
    plain_lines(&out)
}

/// The result of restoring a knob.
pub fn restored(r: &RestoredKnob) -> String {
    let what = match &r.outcome {
        RestoreOutcome::Restored => format!("is {} again", r.original),
        RestoreOutcome::External { found } => {
            format!("is left at {found}: another writer has set it")
        }
        RestoreOutcome::Gone => "is gone with its cgroup".to_owned(),
        RestoreOutcome::Failed { error } => format!("could not be restored: {error}"),
    };
    // The machine's knobs have no cgroup but the root.
    let path = if r.path.is_empty() { "/" } else { &r.path };
    plain(&format!("{path} {} {what}", r.knob))
}

/// The same as JSON.
pub fn restored_json(r: &RestoredKnob) -> serde_json::Value {
    let (state, detail) = match &r.outcome {
        RestoreOutcome::Restored => ("restored", None),
        RestoreOutcome::External { found } => ("foreign", Some(found)),
        RestoreOutcome::Gone => ("gone", None),
        RestoreOutcome::Failed { error } => ("failed", Some(error)),
    };
    serde_json::json!({
        "path": r.path,
        "knob": r.knob.to_string(),
        "before": r.original,
        "state": state,
        "detail": detail,
    })
}

/// What a corrupt journal has lost, and what to do.
pub fn corruption(corruption: &Corruption) -> String {
    let lines = if corruption.lines == 1 {
        "line"
    } else {
        "lines"
    };
    format!(
        "the knob journal was corrupt: {} {lines} of it could not be read, and it is now {}. Knobs that only those lines \
         named may still have the agent's values: check memory.low (0 unless somebody has set it), memory.high (max) and \
         io.max (empty) of your cgroups, and vm.dirty_background_ratio (10)",
        corruption.lines,
        encode(corruption.moved_to.as_os_str()),
    )
}

/// The same as JSON, as a last row.
pub fn corruption_json(found: &Corruption) -> serde_json::Value {
    serde_json::json!({
        "path": null,
        "knob": null,
        "before": null,
        "state": "damaged",
        "detail": corruption(found),
        "lines": found.lines,
        "file": encode(found.moved_to.as_os_str()),
    })
}

fn name(path: &str) -> &str {
    if path == "-" { "(outside)" } else { path }
}

fn size(bytes: u64) -> String {
    if bytes >= u64::MAX / 2 {
        return "all".to_owned();
    }
    let mib = justitia_share::num::to_f64(bytes) / 1_048_576.0;
    if mib >= 10_240.0 {
        format!("{:.1} GiB", mib / 1024.0)
    } else {
        format!("{mib:.1} MiB")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_api::{Reason, TenantStatus};
    use justitia_kernel::knob::Knob;

    const BAD: &str = "x\x1b]0;\u{9b}2J\u{202e}\r";

    fn harmless(text: &str) -> bool {
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        text.contains("x\\u{1b}]0;\\u{9b}2J\\u{202e}\\r") && !text.contains(bad)
    }

    #[test]
    fn control_characters_of_a_journal_do_not_reach_the_terminal() {
        let external = RestoreOutcome::External { found: BAD.into() };
        for outcome in [RestoreOutcome::Restored, external, RestoreOutcome::Gone] {
            let row = restored(&RestoredKnob {
                path: format!("{BAD}\n"),
                knob: Knob::MemoryLow,
                original: BAD.into(),
                outcome,
            });
            assert!(harmless(&row) && !row.contains('\n'), "{row:?}");
        }
    }

    #[test]
    fn the_message_about_a_corrupt_journal_names_the_knobs_to_check() {
        let found = Corruption {
            lines: 3,
            moved_to: "/run/x/ledger.corrupt".into(),
        };
        let message = corruption(&found);
        for part in [
            "3 lines of it could not be read",
            "now /run/x/ledger.corrupt.",
            "memory.low",
            "memory.high",
            "io.max",
            "vm.dirty_background_ratio",
        ] {
            assert!(message.contains(part), "{part} is not in {message}");
        }
        let row = corruption_json(&found);
        assert_eq!(
            (&row["state"], &row["lines"]),
            (&"damaged".into(), &3.into())
        );
        assert_eq!(row["file"], "/run/x/ledger.corrupt");
    }

    #[test]
    fn what_a_socket_says_does_nothing_to_a_terminal() {
        let tenant = TenantStatus {
            path: BAD.into(),
            exempt: Some(Reason::Text(BAD.into())),
            ..TenantStatus::default()
        };
        let table = status(&Status {
            tenants: vec![tenant],
            limitations: vec![BAD.into()],
            app_io_unavailable: Some(BAD.into()),
            ..Status::default()
        });
        assert!(harmless(&table), "{table:?}");
        assert!(table.lines().count() > 4, "{table}");
    }
}
