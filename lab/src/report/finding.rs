//! What was found, in a sentence or two.

use super::number::{change, factor, show};
use super::schema::{Goal, Measure, Metric, Results};
use super::summary::{Cell, Group, Row, paired};

/// The product's own configuration, whose results the findings are about; the last if it did not
/// take part.
const SUBJECT: &str = "justitia";

/// What was found, in one or two sentences.
pub(super) fn finding(results: &Results, group: &Group<'_>) -> String {
    let rows = &group.rows;
    let subject = rows
        .iter()
        .find(|row| row.configuration.id == SUBJECT)
        .or(rows.last());
    let (Some(subject), Some(metric)) = (subject, results.metrics.first()) else {
        return "Nothing was measured.".into();
    };
    let label = &subject.configuration.label;
    let Some(own) = subject.cells.first().filter(|_| subject.measured > 0) else {
        return match subject.failures.len() {
            0 => format!("{label} did not run."),
            failed => format!("{label} was not measured: {failed} of {failed} runs failed."),
        };
    };
    let baseline = rows
        .first()
        .filter(|row| row.configuration.id != subject.configuration.id && row.measured > 0);
    let mut text = if metric.proportional {
        proportion(label, metric, own, baseline)
    } else {
        level(label, metric, own, baseline)
    };
    if metric.proportional
        && let Some(best) = best_other(rows, subject)
    {
        text.push_str(&best);
    }
    for (position, metric) in results.metrics.iter().enumerate().skip(1) {
        // The others that a promise is about.
        let promised = |goal: &Goal| goal.metric == metric.key && goal.measure == Measure::Pv;
        if results.goals.iter().any(promised) {
            text.push_str(&also(metric, subject, baseline, position));
        }
    }
    text
}

/// The PV of a metric that is not the headline; empty if it was not measured.
fn also(metric: &Metric, own: &Row<'_>, baseline: Option<&Row<'_>>, position: usize) -> String {
    let pv_of = |row: &Row<'_>| row.cells.get(position)?.pv.map(|pv| factor(pv.median));
    let Some(own) = pv_of(own) else {
        return String::new();
    };
    let base = baseline.and_then(|row| Some((&row.configuration.label, pv_of(row)?)));
    let base = base.map_or(String::new(), |(label, pv)| format!(", {label} {pv}"));
    format!(" {}: PV {own}{base}.", metric.label)
}

fn proportion(label: &str, metric: &Metric, own: &Cell, baseline: Option<&Row<'_>>) -> String {
    let name = lower_first(&metric.label);
    let Some(pv) = own.pv else {
        return format!("{label} gave no {name} to measure a PV by.");
    };
    let mut text = format!("{label}: PV {} of {name}", factor(pv.median));
    let base = baseline.and_then(|row| Some((row, row.cells.first()?)));
    if let Some((row, cell)) = base {
        let other = &row.configuration.label;
        if let Some(base) = cell.pv {
            text.push_str(&format!(", {other} {}", factor(base.median)));
        }
        if let Some(ratio) = paired(own, cell, |own, other| own / other) {
            let change = change(ratio.median - 1.0);
            text.push_str(&format!("; in total {change} {other}"));
        }
    }
    text.push('.');
    text
}

fn level(label: &str, metric: &Metric, own: &Cell, baseline: Option<&Row<'_>>) -> String {
    let name = lower_first(&metric.label);
    let Some(total) = own.total else {
        return format!("{label} gave no {name}.");
    };
    let mut text = format!("{label}: {name} {}", show(metric.unit, total.median));
    let base = baseline.and_then(|row| Some((row, row.cells.first()?.total?)));
    if let Some((row, base)) = base {
        let value = show(metric.unit, base.median);
        text.push_str(&format!(", {} {value}", row.configuration.label));
    }
    text.push('.');
    text
}

/// The best of those that are neither the subject nor the baseline.
fn best_other(rows: &[Row<'_>], subject: &Row<'_>) -> Option<String> {
    let (row, pv) = rows
        .iter()
        .skip(1)
        .filter(|row| row.configuration.id != subject.configuration.id)
        .filter_map(|row| Some((row, row.cells.first()?.pv?.median)))
        .min_by(|a, b| a.1.total_cmp(&b.1))?;
    let (label, pv) = (&row.configuration.label, factor(pv));
    Some(format!(" The best of the others is {label} with {pv}."))
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        // An abbreviation stays as it is.
        Some(first) if letters.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}
