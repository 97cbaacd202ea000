//! A metric over time, one configuration to a drawing.

use maud::{Markup, html};

use super::super::chart::{Line, Panel, configuration_class, tenant_class, timeline};
use super::super::number::scale;
use super::super::schema::{Metric, Results};
use super::super::summary::{Group, Row};
use super::legend::legend;
use super::timeline_table;

/// A metric's timelines, if any configuration has one.
pub(super) fn section(results: &Results, group: &Group<'_>, metric: &Metric, id: &str) -> Markup {
    let panels: Vec<(usize, &Row<'_>, Vec<Line<'_>>)> = group
        .rows
        .iter()
        .enumerate()
        .map(|(number, row)| (number, row, lines(results, row, metric)))
        .filter(|(_, _, lines)| !lines.is_empty())
        .collect();
    if panels.is_empty() {
        return html! {};
    }
    let peak = panels
        .iter()
        .map(|(_, _, lines)| furthest(lines, |point| point.1))
        .fold(0.0, f64::max);
    let drawings: Vec<&[Line<'_>]> = panels.iter().map(|(_, _, lines)| &lines[..]).collect();
    let seconds = panels
        .iter()
        .map(|(_, _, lines)| furthest(lines, |point| point.0))
        .fold(0.0, f64::max);
    let unit = scale(metric.unit, peak);
    let panel = Panel::over_time(unit, seconds, &drawings);
    let context = panels
        .iter()
        .any(|(_, _, lines)| lines.iter().any(|line| line.class == "context"));
    html! {
        h4 { (metric.label) " over time" }
        figure {
            figcaption {
                "The repeat with the median result of each configuration."
                (legend(results, context))
            }
            (multiples(&panels, id, &format!("{} over time", metric.label), &panel))
            (timeline_table::timelines(metric, &panels))
        }
    }
}

/// The drawings of `what` beside each other, each with its configuration.
pub(super) fn multiples(
    panels: &[(usize, &Row<'_>, Vec<Line<'_>>)],
    id: &str,
    what: &str,
    panel: &Panel,
) -> Markup {
    html! {
        div.multiples {
            @for (number, row, lines) in panels {
                @let label = &row.configuration.label;
                div {
                    p.name {
                        span.key.(configuration_class(*number, &row.configuration.id)) {}
                        (label)
                    }
                    (timeline(&format!("{id}-l{number}"), &format!("{label}, {what}"), panel, lines))
                }
            }
        }
    }
}

/// The largest of what `of` takes from a point.
fn furthest(lines: &[Line<'_>], of: fn(&(f64, f64)) -> f64) -> f64 {
    let points = lines.iter().flat_map(|line| line.points);
    points.map(of).fold(0.0, f64::max)
}

fn lines<'a>(results: &'a Results, row: &Row<'a>, metric: &Metric) -> Vec<Line<'a>> {
    let Some(run) = row.typical else {
        return Vec::new();
    };
    run.timeline
        .iter()
        .filter(|series| series.metric == metric.key)
        .map(|series| {
            let position = results.tenants.iter().position(|t| t.name == series.tenant);
            Line {
                class: position.map_or("context".into(), |position| {
                    tenant_class(position, results.tenants.len())
                }),
                name: &series.tenant,
                points: &series.points,
            }
        })
        .collect()
}
