//! A metric that ought to follow the weights: normalised results and PV.

use maud::{Markup, html};

use super::super::chart::{Bar, bars, common_end, configuration_class, variation};
use super::super::schema::Results;
use super::super::spread::Spread;
use super::super::summary::{Group, Row, ideal};
use super::paper::paper_of;

/// The drawings; none of a metric that no configuration has normalised results of.
pub(super) fn section(results: &Results, group: &Group<'_>, position: usize, id: &str) -> Markup {
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
            paper: paper_of(results, position, &row.configuration.id).and_then(|p| p.pv),
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
