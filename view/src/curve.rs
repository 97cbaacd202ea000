//! A tenant's miss-ratio curve, for people and for machines.

use crate::table::table;
use justitia_api::units::{bytes, percent, rate};
use justitia_api::{CurveStatus, TenantStatus};
use justitia_share::num::to_f64;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::Span;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Widget};
use serde::Serialize;
use std::fmt::Write;

/// Bytes of a block of the page cache that is accessed.
pub const BLOCK: f64 = to_f64(justitia_share::curve::BLOCK);
/// A tenant whose accesses are sampled has a working set, but for this setting.
const NOT_COMPUTED: &str =
    "not computed with demand = \"usage\" in [cache]; it is with \"use\", the default";

/// A tenant's curve as `--json` has it. Amounts in bytes.
#[derive(Debug, Serialize)]
pub struct CurveReport<'a> {
    path: &'a str,
    /// Its name for people.
    #[serde(skip)]
    name: String,
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
        name: tenant.display_name(),
        usage: tenant.usage,
        entitlement: tenant.entitlement,
        working_set: tenant.known_working_set(),
        observed_for: tenant.observed_for,
        curve,
    })
}

fn absent(tenant: &TenantStatus) -> String {
    let name = tenant.display_name();
    if !tenant.leaf {
        return format!("{name} has cgroups below it: each of them has a curve of its own");
    }
    match tenant.evidence {
        justitia_api::EstimateBasis::Accesses => {
            format!("{name} has not accessed its page cache lately: there is nothing to tell")
        }
        justitia_api::EstimateBasis::Lists => format!(
            "the accesses of {name} are not sampled: it holds less than 1 MiB of page cache, or others hold more than it \
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
            self.name
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

// A miss-ratio curve as a plot and as a table.

const WIDTH: u16 = 76;
const HEIGHT: u16 = 16;

/// A curve, and the sizes that are marked below it. Amounts in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Drawing<'a> {
    /// The curve.
    pub curve: &'a CurveStatus,
    /// What the cache holds now.
    pub usage: u64,
    /// The working set, where it is known.
    pub working_set: Option<u64>,
    /// The size of the curve's blocks.
    pub block: f64,
}

impl Drawing<'_> {
    /// What it misses, and reads from the disk, at half, the same and twice the size that it has.
    #[must_use]
    pub fn table(&self) -> String {
        let columns = "|>SIZE|>MISSES|>BLOCKS READ";
        let sizes = [
            ("half", self.usage / 2),
            ("now", self.usage),
            ("twice", self.usage.saturating_mul(2)),
        ];
        let rows = sizes.map(|(name, size)| {
            let misses = self.curve.miss_ratio(size);
            vec![
                name.to_owned(),
                bytes(size),
                format!("{} %", percent(misses)),
                format!("{}/s", rate(misses * self.curve.accesses * self.block)),
            ]
        });
        table(columns, rows)
    }

    /// The largest size that is shown: a little more than anything that matters.
    fn right(&self) -> f64 {
        let last = self.curve.points.last().map_or(0, |point| point.0);
        to_f64(
            last.max(self.usage)
                .max(self.working_set.unwrap_or(0))
                .max(1 << 20),
        ) * 1.05
    }

    /// The curve, and below it where some sizes lie.
    #[must_use]
    pub fn plot(&self) -> String {
        self.line() + &self.marks()
    }

    fn line(&self) -> String {
        let right = self.right();
        let steps = u32::from(WIDTH) * 2;
        let points: Vec<(f64, f64)> = (0..=steps)
            .map(|step| right * f64::from(step) / f64::from(steps))
            .map(|size| {
                let misses = self.curve.miss_ratio(justitia_share::num::to_u64(size));
                (size, misses * 100.0)
            })
            .collect();
        let line = Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .data(&points);
        let label = |part: f64| Span::raw(bytes(justitia_share::num::to_u64(right * part)));
        let chart = Chart::new(vec![line])
            .style(Style::default())
            .x_axis(Axis::default().bounds([0.0, right]).labels([
                label(0.0),
                label(0.5),
                label(1.0),
            ]))
            .y_axis(
                Axis::default()
                    .bounds([0.0, 100.0])
                    .labels(["0 %", "50 %", "100 %"]),
            );
        let area = Rect::new(0, 0, WIDTH, HEIGHT);
        let mut buffer = Buffer::empty(area);
        chart.render(area, &mut buffer);
        let rows = buffer.content().chunks(usize::from(WIDTH));
        rows.map(|row| {
            let row: String = row.iter().map(|cell| cell.symbol()).collect();
            format!("{}\n", row.trim_end())
        })
        .collect()
    }

    /// Under the plot, where on its horizontal axis some sizes lie.
    fn marks(&self) -> String {
        // The vertical axis with its labels takes six columns.
        let width = f64::from(WIDTH) - 7.0;
        let mut out = String::new();
        let working_set = self.working_set.map(|size| ("working set", size));
        for (name, size) in std::iter::once(("holds", self.usage)).chain(working_set) {
            let at = (to_f64(size) / self.right() * width).min(width);
            let at = usize::try_from(justitia_share::num::to_u64(at)).unwrap_or(0) + 6;
            let text = format!("{name} {}", bytes(size));
            // To the left of its mark where it would not fit to the right.
            if at + 2 + text.len() > usize::from(WIDTH) {
                let indent = at.saturating_sub(text.len() + 1);
                let _ = writeln!(out, "{:indent$}{text} ▲", "");
            } else {
                let _ = writeln!(out, "{:at$}▲ {text}", "");
            }
        }
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
        none.path = "-".into();
        assert!(curve_report(&none).unwrap_err().contains("(unmanaged)"));
        none.leaf = false;
        assert!(
            curve_report(&none)
                .unwrap_err()
                .contains("cgroups below it")
        );
    }
}
