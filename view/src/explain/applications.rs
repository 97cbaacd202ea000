//! What a tenant's applications get.

use std::fmt::Write;

use justitia_api::units::{latency, percent, rate};
use justitia_api::{KnobOwner, Status, TenantStatus};

/// What its applications get.
pub(super) fn applications(out: &mut String, status: &Status, tenant: &TenantStatus) {
    let Some(app) = &tenant.app else {
        if let Some(blind) = &status.app_io_unavailable {
            let _ = writeln!(out, "\nApplications: not seen ({blind})");
        }
        return;
    };
    let hits = app.hit_ratio.map_or_else(
        || "nothing was read through the page cache".to_owned(),
        |ratio| format!("{} % of what was read came from the cache", percent(ratio)),
    );
    let held_up = app.io_stalled.map_or_else(String::new, |part| {
        format!("; held up by I/O {} % of the time", percent(part))
    });
    let contended = if tenant.backlogged {
        ", so it contended".to_owned()
    } else {
        // Whether it waited enough is known where the kernel measures it, or else whether it used the disk.
        format!(
            "; over the whole {:.0} s that is not contending (which takes I/O in {:.0} % of its seconds, and being held up for {:.0} %)",
            status.window,
            status.policy.backlogged_active * 100.0,
            status.policy.backlogged_stalled * 100.0
        )
    };
    let _ = writeln!(
        out,
        "\nApplications (last {:.0} s): read {}/s, written {}/s; {hits}{held_up}{contended}",
        status.window,
        rate(app.read_rate),
        rate(app.write_rate),
    );
    let limited = |holder, knob: &str| holder == KnobOwner::Agent && knob.starts_with("io.max ");
    if !tenant.backlogged && tenant.knobs.iter().any(|k| limited(k.owner, &k.knob)) {
        let _ = writeln!(
            out,
            "  its limit under Knobs follows from what happens on the disk now, within a second"
        );
    }
    if tenant.leaf && tenant.growing && app.read_rate + app.write_rate <= 0.0 {
        let _ = writeln!(
            out,
            "  its cache grows all the same, by what no call read or wrote in that time, such as mapped files \
             ({:.0} accesses a second found their page absent)",
            app.miss_rate
        );
    }
    if let Some(l) = &app.latency {
        let _ = writeln!(
            out,
            "  99 of 100 reads within {}, writes {}, fsyncs {}",
            latency(l.read_p99),
            latency(l.write_p99),
            latency(l.sync_p99)
        );
    }
}
