//! One experiment: what was asked and found, goals, drawings, tables, failures.

use maud::{Markup, html};

use super::super::chart::{
    Bar, Line, Panel, bars, common_end, configuration_class, tenant_class, timeline, variation,
};
use super::super::number::{scale, show};
use super::super::schema::{Metric, Results, Total, Unit};
use super::super::spread::Spread;
use super::super::summary::{Group, Row, groups, ideal};
use super::super::verdict::{Verdict, finding, judge};
use super::{curves, table};

/// The section of one experiment; `id` is its anchor and the prefix of every id within.
pub fn section(results: &Results, id: &str) -> Markup {
    let groups = groups(results);
    let heading = format!("{id}-heading");
    html! {
        section.experiment id=(id) aria-labelledby=(heading) {
            h2 id=(heading) { (results.title) }
            p.question { (results.question) }
            @for group in &groups {
                p.finding {
                    @if groups.len() > 1 { strong { (state(group)) ": " } }
                    (finding(results, group))
                }
            }
            @if groups.is_empty() {
                p.finding.failed { "Nothing ran." }
            }
            (circumstances(results))
            (goals(results, &groups))
            @for (number, group) in groups.iter().enumerate() {
                div.group {
                    h3 { (state(group)) }
                    (measured(results, group, &format!("{id}-g{number}")))
                }
            }
        }
    }
}

fn state(group: &Group<'_>) -> &'static str {
    match group.mglru {
        Some(true) => "MGLRU on",
        Some(false) => "MGLRU off (classic LRU)",
        None if group.rows.iter().all(|row| row.measured == 0) => "Nothing was measured",
        None => "Kernel without MGLRU",
    }
}

fn circumstances(results: &Results) -> Markup {
    let machine = &results.machine;
    let memory = show(
        Unit::Bytes,
        justitia_share::num::to_f64(machine.memory_bytes),
    );
    html! {
        dl.circumstances {
            dt { "Experiment" } dd { code { (results.experiment) } }
            dt { "Kernel" } dd { (machine.kernel) }
            dt { "Machine" }
            dd {
                (machine.vcpus) " vCPUs, " (memory) ", " (machine.accelerator) " on " (machine.cpu)
            }
            dt { "Disk" } dd { (machine.disk) }
            dt { "Date" } dd { (results.date) }
            dt { "Seed" } dd { (results.seed) }
            @if let Some(paper) = &results.paper {
                dt { "Paper" } dd { (paper.title) ", " (paper.figure) }
            }
        }
        details {
            summary { "Configurations" }
            dl {
                @for configuration in &results.configurations {
                    dt { (configuration.label) }
                    dd { (configuration.what) }
                }
            }
        }
    }
}

fn goals(results: &Results, groups: &[Group<'_>]) -> Markup {
    if results.goals.is_empty() || groups.is_empty() {
        return html! {};
    }
    html! {
        div.scroll {
            table {
                caption { "Goals" }
                thead {
                    tr {
                        th scope="col" { "Goal" }
                        @if groups.len() > 1 { th scope="col" { "Kernel" } }
                        th.number scope="col" { "Must" }
                        th.number scope="col" { "Stretch" }
                        th.number scope="col" { "Measured" }
                        th scope="col" { "" }
                    }
                }
                tbody {
                    @for group in groups {
                        @for judged in judge(results, group) {
                            tr {
                                th scope="row" { (judged.what) }
                                @if groups.len() > 1 { td { (state(group)) } }
                                td.number { (judged.must) }
                                td.number { (judged.stretch) }
                                td.number { (judged.found) }
                                td.(verdict_class(judged.verdict)) { (judged.verdict.word()) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn verdict_class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Stretch | Verdict::Reached => "good",
        Verdict::Missed => "bad",
        Verdict::Unknown => "unknown",
    }
}

fn measured(results: &Results, group: &Group<'_>, id: &str) -> Markup {
    html! {
        (failures(group))
        @for (position, metric) in results.metrics.iter().enumerate() {
            @if metric.total != Total::Whole && group.measured(position) {
                @let id = format!("{id}-m{position}");
                h4 { (metric.label) }
                @if metric.proportional {
                    (proportions(results, group, position, &id))
                }
                (table::metric(results, group, position))
            }
        }
        (table::whole(results, group))
        @for (position, metric) in results.metrics.iter().enumerate() {
            (over_time(results, group, metric, &format!("{id}-t{position}")))
        }
        (curves::section(results, group, &format!("{id}-c")))
    }
}

fn failures(group: &Group<'_>) -> Markup {
    html! {
        @for row in &group.rows {
            @if row.measured == 0 && row.failures.is_empty() {
                p.failed { (row.configuration.label) " did not run." }
            }
            @for failure in &row.failures {
                div.failed {
                    p {
                        strong { (row.configuration.label) ", repeat " (failure.repeat) ", failed: " }
                        (failure.reason)
                    }
                    @if !failure.console.is_empty() {
                        details {
                            summary { "End of the console" }
                            pre { (failure.console) }
                        }
                    }
                }
            }
        }
    }
}

fn proportions(results: &Results, group: &Group<'_>, position: usize, id: &str) -> Markup {
    let ideal = ideal(results);
    let labels: Vec<String> = results
        .tenants
        .iter()
        .map(|t| t.weight.to_string())
        .collect();
    let normalised = |row: &Row<'_>| -> Vec<Option<Spread>> {
        row.cells
            .get(position)
            .map(|cell| cell.normalised.clone())
            .unwrap_or_default()
    };
    let rows: Vec<_> = group.rows.iter().map(normalised).collect();
    // Such as a metric of one tenant alone: its table suffices.
    if rows.iter().flatten().all(Option::is_none) {
        return html! {};
    }
    let end = common_end(&ideal, rows.iter().map(Vec::as_slice));
    html! {
        figure {
            figcaption {
                "Normalised results by weight; the line across each bar is the ideal."
            }
            div.multiples {
                @for (number, (row, results)) in group.rows.iter().zip(&rows).enumerate() {
                    @let class = configuration_class(number, &row.configuration.id);
                    div {
                        p.name { span.key.(class) {} (row.configuration.label) }
                        (bars(&format!("{id}-b{number}"), &row.configuration.label, &class, &labels,
                            &ideal, results, end))
                    }
                }
            }
        }
        (variations(results, group, position, id))
    }
}

fn variations(results: &Results, group: &Group<'_>, position: usize, id: &str) -> Markup {
    let bars: Vec<Bar<'_>> = group
        .rows
        .iter()
        .enumerate()
        .map(|(number, row)| Bar {
            label: &row.configuration.label,
            class: configuration_class(number, &row.configuration.id),
            own: row.cells.get(position).and_then(|cell| cell.pv),
            paper: table::paper_of(results, position, &row.configuration.id).and_then(|p| p.pv),
        })
        .collect();
    html! {
        figure.pv {
            figcaption {
                "Proportionality variation; shorter is better."
                @if bars.iter().any(|bar| bar.paper.is_some()) {
                    " Outlined: what the paper reports, on its own machine."
                }
            }
            (variation(&format!("{id}-pv"), "Proportionality variation", &bars))
        }
    }
}

/// A metric's timelines, if any configuration has one.
fn over_time(results: &Results, group: &Group<'_>, metric: &Metric, id: &str) -> Markup {
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
            div.multiples {
                @for (number, row, lines) in &panels {
                    div {
                        p.name {
                            span.key.(configuration_class(*number, &row.configuration.id)) {}
                            (row.configuration.label)
                        }
                        (timeline(&format!("{id}-l{number}"),
                            &format!("{}, {} over time", row.configuration.label, metric.label),
                            &panel, lines))
                    }
                }
            }
            (table::timelines(metric, &panels))
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

pub fn legend(results: &Results, context: bool) -> Markup {
    html! {
        ul.legend {
            @for (position, tenant) in results.tenants.iter().enumerate() {
                li {
                    span.key.(tenant_class(position, results.tenants.len())) {}
                    (tenant.name) " (weight " (tenant.weight) ")"
                }
            }
            @if context {
                li { span.key.context {} "not a tenant" }
            }
        }
    }
}
