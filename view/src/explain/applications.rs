//! What a tenant's applications get.

use std::fmt::Write;

use justitia_api::units::{percent, rate};
use justitia_api::{KnobOwner, Status, TenantStatus};

/// What a tenant would have to do to be backlogged.
fn backlogged_rule(status: &Status, tenant: &TenantStatus) -> String {
    if !tenant.leaf {
        return "no tenant below it is".to_owned();
    }
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let active = percent(status.policy.backlogged_active);
    let stalled = match tenant.app.and_then(|app| app.io_stalled) {
        Some(_) => format!(
            "and be stalled {} of the time",
            percent(status.policy.backlogged_stalled)
        ),
        None => "and use the disk (this kernel has no PSI)".to_owned(),
    };
    format!(
        "it would have to move bytes in {active} of the seconds, or be stalled on I/O {active} of the time; {stalled}"
    )
}

/// What its applications get.
pub(super) fn applications(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let Some(app) = &tenant.app else {
        if let Some(why) = &status.app_io_unavailable {
            let _ = writeln!(out, "\nApplications: not known ({why})");
        }
        return;
    };
    let hits = app.hit_ratio.map_or_else(
        || "nothing was read through the page cache".to_owned(),
        |ratio| format!("{} % of that came from the cache", percent(ratio)),
    );
    let stalled = app.io_stalled.map_or_else(String::new, |part| {
        format!("; stalled on I/O {} % of the time", percent(part))
    });
    let backlogged = if tenant.backlogged {
        ": backlogged".to_owned()
    } else {
        format!("; not backlogged: {}", backlogged_rule(status, tenant))
    };
    let _ = writeln!(
        out,
        "\nApplications (last {:.0} s): written {}/s, read {}/s; {hits}{stalled}{backlogged}",
        status.window,
        rate(app.write_rate),
        rate(app.read_rate),
    );
    let limited = |owner, knob: &str| owner == KnobOwner::Agent && knob.starts_with("io.max ");
    if !tenant.backlogged && tenant.knobs.iter().any(|k| limited(k.owner, &k.knob)) {
        let _ = writeln!(
            out,
            "  its io.max (see Knobs) follows the disk's contention of the last second, not of these {:.0} s",
            status.window
        );
    }
    if tenant.leaf && tenant.growing && app.read_rate + app.write_rate <= 0.0 {
        let _ = writeln!(
            out,
            "  its cache grows though no call read or wrote in that time, as by mapped files ({:.0} accesses a second \
             missed the cache)",
            app.miss_rate
        );
    }
}
