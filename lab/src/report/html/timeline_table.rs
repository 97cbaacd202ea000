//! Timelines as numbers: the first, the mean, the smallest, the largest and the last value.

use justitia_share::num::to_f64;
use maud::{Markup, html};

use super::super::chart::Line;
use super::super::number::{digits, scale};
use super::super::schema::Metric;
use super::super::summary::Row;

/// A row per tenant and configuration.
pub(super) fn timelines(metric: &Metric, panels: &[(usize, &Row<'_>, Vec<Line<'_>>)]) -> Markup {
    let lines = || {
        panels
            .iter()
            .flat_map(|(_, row, lines)| lines.iter().map(|line| (*row, line)))
    };
    let values = lines().flat_map(|(_, line)| line.points.iter().map(|p| p.1));
    let scale = scale(metric.unit, values.fold(0.0, f64::max));
    let number = |value: f64| digits(value * scale.factor);
    html! {
        details {
            summary { "These timelines as numbers" }
            div.scroll {
                table {
                    caption { (metric.label) " over time" @if !scale.name.is_empty() { ", " (scale.name) } }
                    thead {
                        tr {
                            th scope="col" { "Configuration" }
                            th scope="col" { "Tenant" }
                            @for name in ["First", "Mean", "Smallest", "Largest", "Last"] {
                                th.number scope="col" { (name) }
                            }
                        }
                    }
                    tbody {
                        @for (row, line) in lines() {
                            tr {
                                th scope="row" { (row.configuration.label) }
                                td { (line.name) }
                                @for value in profile(line.points) {
                                    td.number { (number(value)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// First, mean, smallest, largest, last.
fn profile(points: &[(f64, f64)]) -> [f64; 5] {
    let values = || points.iter().map(|p| p.1);
    let end = |point: Option<&(f64, f64)>| point.map_or(f64::NAN, |p| p.1);
    [
        end(points.first()),
        values().sum::<f64>() / to_f64(points.len() as u64),
        values().fold(f64::INFINITY, f64::min),
        values().fold(f64::NEG_INFINITY, f64::max),
        end(points.last()),
    ]
}
