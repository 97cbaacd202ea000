//! The goals of an experiment, and whether they were reached.

use maud::{Markup, html};

use super::super::goal::{Verdict, check_goals};
use super::super::schema::Results;
use super::super::summary::Group;

/// A row per goal and group.
pub(super) fn goals(results: &Results, groups: &[Group<'_>]) -> Markup {
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
                        @for result in check_goals(results, group) {
                            tr {
                                th scope="row" { (result.what) }
                                @if groups.len() > 1 { td { (group.state()) } }
                                td.number { (result.must) }
                                td.number { (result.stretch) }
                                td.number { (result.found) }
                                td.(verdict_class(result.verdict)) { (result.verdict.word()) }
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
        Verdict::ProcessorBound | Verdict::Unknown => "unknown",
    }
}
