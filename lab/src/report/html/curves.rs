//! The tenants' miss-ratio curves, one configuration to a drawing.

use maud::{Markup, html};

use super::super::chart::{Line, Panel, tenant_class};
use super::super::number::{Scale, scale, show};
use super::super::schema::{Curve, Results, Unit};
use super::super::summary::{Group, Row};
use super::legend::legend;
use super::over_time::multiples;

const MIB: Scale = Scale {
    factor: 1.0 / 1_048_576.0,
    name: "MiB of page cache",
};

/// The curves, if any configuration has one.
pub(super) fn section(results: &Results, group: &Group<'_>, id: &str) -> Markup {
    let rows = group.rows.iter().enumerate();
    let panels: Vec<(usize, &Row<'_>, Vec<Line<'_>>)> = rows
        .map(|(number, row)| (number, row, lines(results, row)))
        .filter(|(_, _, lines)| !lines.is_empty())
        .collect();
    if panels.is_empty() {
        return html! {};
    }
    let ends = panels.iter().flat_map(|(_, _, lines)| lines);
    let ends = ends.filter_map(|line| line.points.last());
    let panel = Panel {
        scale: scale(Unit::Ratio, 1.0),
        across: MIB,
        right: ends.map(|point| point.0).fold(0.0, f64::max),
        end: 1.0,
    };
    html! {
        h4 { "Miss ratio by the size of the page cache" }
        figure {
            figcaption {
                "How many of a tenant's accesses would come from the disk, as the agent estimated it at the end of the \
                 repeat with the median result. Beyond the end of a line nothing changes."
                (legend(results, false))
            }
            (multiples(&panels, id, "miss ratio by the size of the page cache", &panel))
            (numbers(&panels))
        }
    }
}

fn lines<'a>(results: &'a Results, row: &Row<'a>) -> Vec<Line<'a>> {
    let curves = row.typical.map_or(&[][..], |run| &run.curves);
    let line = |curve: &'a Curve| {
        let position = results
            .tenants
            .iter()
            .position(|t| t.name == curve.tenant)?;
        Some(Line {
            class: tenant_class(position, results.tenants.len()),
            name: &curve.tenant,
            points: &curve.points,
        })
    };
    curves.iter().filter_map(line).collect()
}

/// The curves as numbers: what is missed by a cache of a quarter, a half, … of the largest size drawn.
fn numbers(panels: &[(usize, &Row<'_>, Vec<Line<'_>>)]) -> Markup {
    const PARTS: [f64; 4] = [0.25, 0.5, 0.75, 1.0];
    html! {
        details {
            summary { "These curves as numbers" }
            div.scroll {
                table {
                    caption { "Misses with a part of the largest size of the curve" }
                    thead {
                        tr {
                            th scope="col" { "Configuration" }
                            th scope="col" { "Tenant" }
                            th.number scope="col" { "Largest" }
                            @for part in PARTS {
                                th.number scope="col" { (show(Unit::Ratio, part)) }
                            }
                        }
                    }
                    tbody {
                        @for (_, row, lines) in panels {
                            @for line in lines {
                                @let largest = line.points.last().map_or(0.0, |point| point.0);
                                tr {
                                    th scope="row" { (row.configuration.label) }
                                    td { (line.name) }
                                    td.number { (show(Unit::Bytes, largest)) }
                                    @for part in PARTS {
                                        td.number { (show(Unit::Ratio, misses(line.points, part * largest))) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What the last point at or below `size` says.
fn misses(points: &[(f64, f64)], size: f64) -> f64 {
    let at = points.partition_point(|point| point.0 <= size);
    let point = at.checked_sub(1).and_then(|at| points.get(at));
    point.map_or(1.0, |point| point.1)
}
