//! A tenant's miss-ratio curve, for people and for machines.

use std::fmt::Write;

use justitia_api::units::bytes;
use justitia_api::{CurveStatus, TenantStatus};
use justitia_share::num::to_f64;
use serde::Serialize;

mod drawing;

pub use drawing::Drawing;

/// Bytes of a block of the page cache that is accessed.
pub const BLOCK: f64 = to_f64(justitia_share::curve::BLOCK);
/// A tenant whose accesses are sampled has a working set, but for this setting.
const NOT_COMPUTED: &str =
    "not computed with demand = \"usage\" in [cache]; it is with \"use\", the default";

/// A tenant's curve as `--json` has it. Amounts in bytes.
#[derive(Debug, Serialize)]
pub struct CurveReport<'a> {
    path: &'a str,
    usage: u64,
    entitlement: u64,
    /// `None` where the agent does not compute it.
    working_set: Option<u64>,
    observed_for: f64,
    #[serde(flatten)]
    curve: &'a CurveStatus,
}

/// What is known of a tenant's curve.
///
/// # Errors
/// Why there is none, in words.
pub fn curve_report(tenant: &TenantStatus) -> Result<CurveReport<'_>, String> {
    let Some(curve) = &tenant.curve else {
        return Err(absent(tenant));
    };
    Ok(CurveReport {
        path: &tenant.path,
        usage: tenant.usage,
        entitlement: tenant.entitlement,
        working_set: tenant.known_working_set(),
        observed_for: tenant.observed_for,
        curve,
    })
}

fn absent(tenant: &TenantStatus) -> String {
    let path = &tenant.path;
    if !tenant.leaf {
        return format!("{path} has cgroups below it: each of them has a curve of its own");
    }
    match tenant.evidence {
        justitia_api::EstimateBasis::Accesses => {
            format!("{path} has not accessed its page cache lately: there is nothing to tell")
        }
        justitia_api::EstimateBasis::Lists => format!(
            "the accesses of {path} are not sampled: it holds less than 1 MiB of page cache, or others hold more than it \
             and all curves are taken, or the probes cannot (`justitia status` says so)"
        ),
    }
}

impl CurveReport<'_> {
    /// The plot, and below it what follows for some sizes.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!(
            "{}: how much of what it accesses would come from the disk, by the size of its page cache\n\n",
            self.path
        );
        let drawing = Drawing {
            curve: self.curve,
            usage: self.usage,
            working_set: self.working_set,
            block: BLOCK,
        };
        out += &drawing.plot();
        let _ = writeln!(
            out,
            "\naccesses     {:.0} blocks of 64 KiB a second, those to the same one in a row once\n\
             working set  {}\n\
             entitled to  {}\n",
            self.curve.accesses,
            self.working_set.map_or_else(
                || NOT_COMPUTED.to_owned(),
                |size| format!(
                    "{}: a block more would save less than one read in ten minutes",
                    bytes(size)
                )
            ),
            bytes(self.entitlement),
        );
        out += &drawing.table();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn tenant() -> TenantStatus {
        TenantStatus {
            path: "a.slice/db".into(),
            leaf: true,
            usage: 300 * MIB,
            entitlement: 350 * MIB,
            working_set: 400 * MIB,
            observed_for: 100.0,
            evidence: justitia_api::EstimateBasis::Accesses,
            curve: Some(CurveStatus {
                accesses: 200.0,
                points: vec![(0, 1.0), (200 * MIB, 0.5), (400 * MIB, 0.0)],
            }),
            ..TenantStatus::default()
        }
    }

    #[test]
    fn the_plot_falls_and_the_table_reads_off_it() {
        let tenant = tenant();
        let text = curve_report(&tenant).unwrap().text();
        println!("{text}");
        for line in [
            "      SIZE MISSES BLOCKS READ",
            "half  150M 62.5 %     7.81M/s",
            "now   300M 25.0 %     3.12M/s",
            "twice 600M  0.0 %         0/s",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
        assert!(text.contains("holds 300M ▲") || text.contains("▲ holds 300M"));
        assert!(text.lines().all(|line| line.chars().count() <= 100));
        let json = serde_json::to_value(curve_report(&tenant).unwrap()).unwrap();
        assert_eq!(json["points"][1][1], 0.5);
        assert_eq!(json["accesses"], 200.0);
    }

    #[test]
    fn a_working_set_that_is_not_computed_is_none_and_no_zero() {
        let mut tenant = tenant();
        tenant.working_set = 0;
        tenant.working_set_unknown = true;
        let text = curve_report(&tenant).unwrap().text();
        assert!(
            text.contains("working set  not computed with demand"),
            "{text}"
        );
        assert!(!text.contains("working set 0"), "{text}");
        assert!(text.contains("now   300M 25.0 %"), "{text}");
        let json = serde_json::to_value(curve_report(&tenant).unwrap()).unwrap();
        assert!(json["working_set"].is_null(), "{json}");
    }

    #[test]
    fn why_there_is_none() {
        let mut none = TenantStatus {
            curve: None,
            ..tenant()
        };
        assert!(
            curve_report(&none)
                .unwrap_err()
                .contains("not accessed its page cache lately")
        );
        none.evidence = justitia_api::EstimateBasis::Lists;
        assert!(curve_report(&none).unwrap_err().contains("are not sampled"));
        none.leaf = false;
        assert!(
            curve_report(&none)
                .unwrap_err()
                .contains("cgroups below it")
        );
    }
}
