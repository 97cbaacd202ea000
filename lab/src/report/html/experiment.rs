//! One experiment: what was asked and found, goals, drawings, tables, failures.

use maud::{Markup, html};

use super::super::finding::finding;
use super::super::number::show;
use super::super::schema::{Results, Total, Unit};
use super::super::summary::{Group, Row, groups};
use super::{curves, goals, over_time, proportions, table};

/// The section of one experiment; `id` is its anchor and the prefix of every id within.
pub(super) fn section(results: &Results, id: &str) -> Markup {
    let groups = groups(results);
    let heading = format!("{id}-heading");
    html! {
        section.experiment id=(id) aria-labelledby=(heading) {
            h2 id=(heading) { (results.title) }
            p.question { (results.question) }
            @for group in &groups {
                p.finding {
                    @if groups.len() > 1 { strong { (group.state()) ": " } }
                    (finding(results, group))
                }
            }
            @if groups.is_empty() {
                p.finding.failed { "Nothing ran." }
            }
            (circumstances(results))
            (goals::goals(results, &groups))
            @for (number, group) in groups.iter().enumerate() {
                div.group {
                    // Native runs have no kernel of their own.
                    @if results.machine.accelerator != "none" { h3 { (group.state()) } }
                    (measured(results, group, &format!("{id}-g{number}")))
                }
            }
        }
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

fn measured(results: &Results, group: &Group<'_>, id: &str) -> Markup {
    html! {
        (failures(group))
        @for (position, metric) in results.metrics.iter().enumerate() {
            @if metric.total != Total::Whole && group.measured(position) {
                @let id = format!("{id}-m{position}");
                h4 { (metric.label) }
                @if metric.proportional {
                    (proportions::section(results, group, position, &id))
                }
                (table::metric(results, group, position))
            }
        }
        (table::whole(results, group))
        @for busy in group.rows.iter().filter_map(Row::busy) {
            p { (busy) }
        }
        @for (position, metric) in results.metrics.iter().enumerate() {
            (over_time::section(results, group, metric, &format!("{id}-t{position}")))
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
