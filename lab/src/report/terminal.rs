//! The same numbers for a terminal.

use comfy_table::{
    Cell as TableCell, CellAlignment, ContentArrangement, LineStyle, Table, presets,
};

use super::finding::finding;
use super::goal::check_goals;
use super::number::{digits, factor, index, scale, show};
use super::schema::{Metric, Results, Total, Unit};
use super::spread::Spread;
use super::summary::{Cell, Group, Row, groups, ideal};

/// Every experiment: findings, a table per metric, goals, failures.
pub fn terminal(all: &[Results]) -> String {
    let mut text = String::new();
    for results in all {
        let machine = &results.machine;
        let heading = format!(
            "{} [{}, {}]",
            results.title, machine.kernel, machine.accelerator
        );
        text.push_str(&format!("{}\n", clean(&heading)));
        for group in groups(results) {
            text.push_str(&of_group(results, &group));
        }
        text.push('\n');
    }
    text
}

fn of_group(results: &Results, group: &Group<'_>) -> String {
    let state = match group.mglru {
        Some(true) => "MGLRU on: ",
        Some(false) => "MGLRU off: ",
        None => "",
    };
    let mut text = format!("{state}{}\n", clean(&finding(results, group)));
    for (position, metric) in results.metrics.iter().enumerate() {
        if metric.total == Total::Whole || !group.measured(position) {
            continue;
        }
        text.push_str(&format!("{}\n\n", table(results, group, position, metric)));
    }
    if let Some(table) = whole(results, group) {
        text.push_str(&format!("{table}\n\n"));
    }
    for busy in group.rows.iter().filter_map(Row::busy) {
        text.push_str(&format!("{}\n", clean(&busy)));
    }
    for goal in check_goals(results, group) {
        let line = format!(
            "{}: {} (must {}), {}",
            goal.what,
            goal.found,
            goal.must,
            goal.verdict.word()
        );
        text.push_str(&format!("{}\n", clean(&line)));
    }
    for row in &group.rows {
        for failure in &row.failures {
            let label = &row.configuration.label;
            let line = format!(
                "{label}, repeat {}, failed: {}",
                failure.repeat, failure.reason
            );
            text.push_str(&format!("{}\n", clean(&line)));
        }
    }
    text
}

fn table(results: &Results, group: &Group<'_>, position: usize, metric: &Metric) -> Table {
    let cells: Vec<Option<&Cell>> = group.rows.iter().map(|r| r.cells.get(position)).collect();
    let unit = scale(metric.unit, largest(&cells));
    let number = |value: f64| match metric.unit {
        Unit::Count => show(metric.unit, value),
        _ => digits(value * unit.factor),
    };
    let mut table = ruled();
    let name = match unit.name {
        "" => metric.label.clone(),
        name => format!("{}, {name}", metric.label),
    };
    // The ideal has its column only where there is one.
    let ideal_column = |text: String| metric.proportional.then(|| right(text));
    let mut header = vec![left(&name), right("weight".into())];
    header.extend(ideal_column("ideal".into()));
    header.extend(
        group
            .rows
            .iter()
            .map(|row| right(row.configuration.label.clone())),
    );
    table.set_header(header);
    for (tenant, (about, ideal)) in results.tenants.iter().zip(ideal(results)).enumerate() {
        let mut line = vec![left(&about.name), right(about.weight.to_string())];
        line.extend(ideal_column(factor(ideal)));
        line.extend(cells.iter().map(|cell| {
            let of = |spreads: &[Option<Spread>]| spreads.get(tenant).copied().flatten();
            let normalised = cell.and_then(|cell| of(&cell.normalised));
            let normalised = normalised.filter(|_| metric.proportional);
            right(match (cell.and_then(|cell| of(&cell.values)), normalised) {
                (Some(v), Some(n)) => format!("{}  {:>5}", factor(n.median), number(v.median)),
                (Some(v), None) => number(v.median),
                (None, _) => "–".into(),
            })
        }));
        table.add_row(line);
    }
    let mut foot = |name: &str, of: &dyn Fn(&Cell) -> Option<String>| {
        table_foot(&mut table, &cells, metric, name, of);
    };
    foot(metric.total_name(), &|cell| {
        Some(number(cell.total?.median))
    });
    foot("  of the repeats", &|cell| range(&cell.total?, number));
    if metric.proportional {
        foot("PV", &|cell| Some(factor(cell.pv?.median)));
        foot("  of the repeats", &|cell| range(&cell.pv?, factor));
        foot("Jain's index", &|cell| Some(index(cell.jain?.median)));
    }
    table
}

/// A row that has a value per configuration; left out if none has one.
fn table_foot(
    table: &mut Table,
    cells: &[Option<&Cell>],
    metric: &Metric,
    name: &str,
    of: &dyn Fn(&Cell) -> Option<String>,
) {
    let texts: Vec<_> = cells.iter().map(|cell| cell.and_then(of)).collect();
    if texts.iter().any(Option::is_some) {
        let mut line = vec![left(name), right(String::new())];
        line.extend(metric.proportional.then(|| right(String::new())));
        line.extend(
            texts
                .into_iter()
                .map(|text| right(text.unwrap_or("–".into()))),
        );
        table.add_row(line);
    }
}

/// What was measured for the runs as a whole: a row per metric; `None` if nothing was.
fn whole(results: &Results, group: &Group<'_>) -> Option<Table> {
    let mut table = ruled();
    let mut header = vec![left("The run as a whole")];
    header.extend(
        group
            .rows
            .iter()
            .map(|row| right(row.configuration.label.clone())),
    );
    table.set_header(header);
    for (position, metric) in results.metrics.iter().enumerate() {
        if metric.total != Total::Whole || !group.measured(position) {
            continue;
        }
        let mut line = vec![left(&metric.label)];
        line.extend(group.rows.iter().map(|row| {
            let total = row.cells.get(position).and_then(|cell| cell.total);
            right(total.map_or("–".into(), |total| show(metric.unit, total.median)))
        }));
        table.add_row(line);
    }
    (!table.is_empty()).then_some(table)
}

/// An empty table with a rule below its header.
pub(super) fn ruled() -> Table {
    let mut table = Table::new();
    let rule = LineStyle::new('─', '─', '─', '─');
    table
        .load_style(presets::NOTHING.header_separator(rule))
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// The largest median: it decides the unit.
fn largest(cells: &[Option<&Cell>]) -> f64 {
    cells
        .iter()
        .flatten()
        .flat_map(|cell| cell.values.iter().flatten().chain(&cell.total))
        .map(|spread| spread.median)
        .fold(0.0, f64::max)
}

/// Where the repeats differ, from which to which.
fn range(spread: &Spread, text: impl Fn(f64) -> String) -> Option<String> {
    let (low, high) = (text(spread.low), text(spread.high));
    (low != high).then(|| format!("{low}–{high}"))
}

fn left(text: &str) -> TableCell {
    TableCell::new(clean(text))
}

fn right(text: String) -> TableCell {
    TableCell::new(clean(&text)).set_alignment(CellAlignment::Right)
}

/// Names come from anywhere: nothing of them may steer the terminal.
fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
