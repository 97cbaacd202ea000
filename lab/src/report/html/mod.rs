//! The page: one self-contained file, no script, nothing loaded from anywhere.

mod curves;
mod experiment;
mod goals;
mod legend;
mod over_time;
mod paper;
mod proportions;
mod table;
mod timeline_table;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::schema::Results;

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn page(all: &[Results]) -> String {
    let ids: Vec<String> = (0..all.len()).map(|i| format!("e{i}")).collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Justitia: results of the experiments" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Results of the experiments" }
                    p.lead {
                        "Do I/O weights hold for what applications see? Each experiment runs the same "
                        "workload under each configuration, on the same machine, in a random order."
                    }
                    (how_to_read())
                    @if all.len() > 1 {
                        (contents(all, &ids))
                    }
                }
                main {
                    @for (results, id) in all.iter().zip(&ids) {
                        (experiment::section(results, id))
                    }
                }
            }
        }
    };
    printable(&page.into_string())
}

/// Control characters, which names and consoles may hold, are no text in HTML or SVG.
fn printable(page: &str) -> String {
    page.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

fn how_to_read() -> Markup {
    html! {
        p.note {
            "Numbers are medians of the repeats, with the smallest and the largest below them. "
            "Normalised: over what the lowest weight got in the same run. "
            abbr title="proportionality variation" { "PV" }
            ": the mean distance of the normalised results from the ideal, which is the weight over "
            "the lowest weight; 0 is perfect proportion (Justitia, equation 2)."
        }
    }
}

fn contents(all: &[Results], ids: &[String]) -> Markup {
    html! {
        nav aria-label="Experiments" {
            ul {
                @for (results, id) in all.iter().zip(ids) {
                    li { a href={ "#" (id) } { (results.title) } " (" (results.machine.kernel) ")" }
                }
            }
        }
    }
}
