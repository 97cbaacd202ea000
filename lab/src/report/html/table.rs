//! The same numbers as tables: for exact values, and for readers who cannot see the drawings.

use maud::{Markup, html};

use super::super::number::{factor, index, show};
use super::super::schema::{Metric, Results, Total};
use super::super::spread::Spread;
use super::super::summary::{Cell, Group, Row, ideal};
use super::paper::{paper_of, paper_results};

/// One metric: a row per tenant, a column per configuration; totals, PV and the paper's numbers below.
pub(super) fn metric(results: &Results, group: &Group<'_>, position: usize) -> Markup {
    let Some(metric) = results.metrics.get(position) else {
        return html! {};
    };
    let ideal = ideal(results);
    let columns = if metric.proportional { 3 } else { 2 };
    html! {
        div.scroll {
            table {
                caption { (metric.label) }
                thead {
                    tr {
                        th scope="col" { "Tenant" }
                        th.number scope="col" { "Weight" }
                        @if metric.proportional { th.number scope="col" { "Ideal" } }
                        @for row in &group.rows {
                            th.number scope="col" { (row.configuration.label) }
                        }
                    }
                }
                tbody {
                    @for (number, tenant) in results.tenants.iter().enumerate() {
                        tr {
                            th scope="row" { (tenant.name) }
                            td.number { (tenant.weight) }
                            @if metric.proportional {
                                td.number { (factor(ideal.get(number).copied().unwrap_or(f64::NAN))) }
                            }
                            @for row in &group.rows {
                                (tenant_cell(metric, row.cells.get(position), number))
                            }
                        }
                    }
                }
                tfoot { (foot(results, group, position, metric, columns)) }
            }
        }
        (elsewhere(results, group, position))
    }
}

/// Totals, PV, the paper's numbers, and how many runs.
fn foot(
    results: &Results,
    group: &Group<'_>,
    position: usize,
    metric: &Metric,
    columns: usize,
) -> Markup {
    html! {
        (across(metric.total_name(), columns, group, |row| {
            let total = row.cells.get(position)?.total?;
            Some(spread(&total, |v| show(metric.unit, v)))
        }))
        @if metric.proportional {
            (across("PV", columns, group, |row| {
                Some(spread(&row.cells.get(position)?.pv?, factor))
            }))
            (across("Jain's index", columns, group, |row| {
                Some(spread(&row.cells.get(position)?.jain?, index))
            }))
        }
        @if !paper_results(results, position).is_empty() {
            (across("PV in the paper", columns, group, |row| {
                let pv = paper_of(results, position, &row.configuration.id)?.pv?;
                Some(html! { (factor(pv)) })
            }))
            (across("Normalised in the paper", columns, group, |row| {
                let paper = paper_of(results, position, &row.configuration.id)?;
                let values: Vec<_> = paper.normalised.iter().map(|v| factor(*v)).collect();
                (!values.is_empty()).then(|| html! { (values.join(" : ")) })
            }))
            @for tenant in &results.tenants {
                (across(&format!("{} in the paper", tenant.name), columns, group, |row| {
                    let paper = paper_of(results, position, &row.configuration.id)?;
                    let value = *paper.values.get(&tenant.name)?;
                    Some(html! { (show(metric.unit, value)) })
                }))
            }
            (across("The paper says", columns, group, |row| {
                let note = &paper_of(results, position, &row.configuration.id)?.note;
                (!note.is_empty()).then(|| html! { (note) })
            }))
        }
        (across("Runs", columns, group, |row| {
            Some(html! {
                (row.measured)
                @if !row.failures.is_empty() { ", " (row.failures.len()) " failed" }
            })
        }))

    }
}

/// What was measured for the runs as a whole: a row per metric.
pub(super) fn whole(results: &Results, group: &Group<'_>) -> Markup {
    let metrics = || {
        let all = results.metrics.iter().enumerate();
        all.filter(|(at, metric)| metric.total == Total::Whole && group.measured(*at))
    };
    if metrics().next().is_none() {
        return html! {};
    }
    html! {
        h4 { "The run as a whole" }
        div.scroll {
            table {
                caption { "The run as a whole" }
                thead {
                    tr {
                        th scope="col" { "Measure" }
                        @for row in &group.rows {
                            th.number scope="col" { (row.configuration.label) }
                        }
                    }
                }
                tbody {
                    @for (position, metric) in metrics() {
                        (across(&metric.label, 1, group, |row| {
                            let total = row.cells.get(position)?.total?;
                            Some(spread(&total, |v| show(metric.unit, v)))
                        }))
                    }
                }
            }
        }
    }
}

/// A configuration of the paper that did not take part here.
fn elsewhere(results: &Results, group: &Group<'_>, position: usize) -> Markup {
    let here = |id: &str| group.rows.iter().any(|row| row.configuration.id == id);
    let others = paper_results(results, position)
        .iter()
        .filter(|result| !here(&result.configuration))
        .map(|result| (&result.configuration, result.pv));
    html! {
        @for (configuration, pv) in others {
            p.note {
                "Not run here: " (configuration)
                @if let Some(pv) = pv { ", PV " (factor(pv)) " in the paper" }
                "."
            }
        }
    }
}

fn tenant_cell(metric: &Metric, cell: Option<&Cell>, tenant: usize) -> Markup {
    let of = |spreads: &[Option<Spread>]| spreads.get(tenant).copied().flatten();
    let value = cell.and_then(|cell| of(&cell.values));
    let normalised = cell
        .and_then(|cell| of(&cell.normalised))
        .filter(|_| metric.proportional);
    html! {
        td.number {
            @match (value, normalised) {
                (None, _) => "–",
                (Some(value), None) => (spread(&value, |v| show(metric.unit, v))),
                (Some(value), Some(normalised)) => {
                    (spread(&normalised, factor))
                    span.raw { (show(metric.unit, value.median)) }
                },
            }
        }
    }
}

/// A row that has a value per configuration; left out if none has one.
fn across(
    name: &str,
    columns: usize,
    group: &Group<'_>,
    of: impl Fn(&Row<'_>) -> Option<Markup>,
) -> Markup {
    let cells: Vec<_> = group.rows.iter().map(of).collect();
    if cells.iter().all(Option::is_none) {
        return html! {};
    }
    html! {
        tr {
            th scope="row" colspan=(columns) { (name) }
            @for cell in cells {
                td.number { @if let Some(cell) = cell { (cell) } @else { "–" } }
            }
        }
    }
}

/// The median, and where the repeats differ their range.
fn spread(spread: &Spread, text: impl Fn(f64) -> String) -> Markup {
    let (low, high) = (text(spread.low), text(spread.high));
    html! {
        (text(spread.median))
        @if low != high { span.range { (low) " – " (high) } }
    }
}
