//! Whether the goals were reached.

use super::number::{factor, index, show};
use super::schema::{Goal, Measure, Metric, Results, Unit};
use super::summary::{Cell, Group, Row, paired};

/// Whether a goal was reached in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The better bound holds too.
    Stretch,
    /// The bound holds.
    Reached,
    /// It does not.
    Missed,
    /// The processors were the bottleneck, so it says nothing of how the disk was divided.
    ProcessorBound,
    /// It was not measured.
    Unknown,
}

impl Verdict {
    /// In a word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Stretch => "reached, and the stretch",
            Self::Reached => "reached",
            Self::Missed => "missed",
            Self::ProcessorBound => "not judged: the processors were the bottleneck",
            Self::Unknown => "not measured",
        }
    }
}

/// A goal in one group, with what was measured for it.
#[derive(Debug)]
pub(super) struct GoalResult {
    /// What it is about, in words.
    pub what: String,
    /// What was measured, in words.
    pub found: String,
    /// The bound, in words.
    pub must: String,
    /// The better bound, in words; empty if there is none.
    pub stretch: String,
    /// Whether it was reached.
    pub verdict: Verdict,
}

/// The goals of an experiment in one group.
pub(super) fn check_goals(results: &Results, group: &Group<'_>) -> Vec<GoalResult> {
    results
        .goals
        .iter()
        .filter_map(|goal| check_one(results, group, goal))
        .collect()
}

fn check_one(results: &Results, group: &Group<'_>, goal: &Goal) -> Option<GoalResult> {
    let position = results.metrics.iter().position(|m| m.key == goal.metric)?;
    let metric = results.metrics.get(position)?;
    let row = |id: &str| group.rows.iter().find(|row| row.configuration.id == id);
    let own_row = row(&goal.configuration)?;
    let own = own_row.cells.get(position)?;
    let other = goal.measure.other();
    let other_cell = other.and_then(|id| row(id)?.cells.get(position));
    let value = value(&goal.measure, own, other_cell);
    let other_label = other.map(|id| row(id).map_or(id, |row| &*row.configuration.label));
    let aspect = aspect(&goal.measure, other_label.unwrap_or_default());
    let throughput = matches!(metric.unit, Unit::BytesPerSecond | Unit::PerSecond);
    let mut rows = std::iter::once(own_row).chain(other.and_then(row));
    let bound_by_processors = throughput && rows.any(Row::processor_bound);
    let word = |value: f64| word(&goal.measure, metric, value);
    let sign = if is_upper_bound(&goal.measure) {
        "≤"
    } else {
        "≥"
    };
    let bound = |value: f64| format!("{sign} {}", word(value));
    Some(GoalResult {
        what: [&own_row.configuration.label, &metric.label, &aspect]
            .map(|part| part.as_str())
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(", "),
        found: value.map_or("not measured".into(), word),
        must: bound(goal.must),
        stretch: goal.stretch.map(bound).unwrap_or_default(),
        verdict: if bound_by_processors {
            Verdict::ProcessorBound
        } else {
            verdict(goal, value)
        },
    })
}

/// The median of what a goal bounds; `None` where it was not measured.
fn value(measure: &Measure, own: &Cell, other: Option<&Cell>) -> Option<f64> {
    let spread = match measure {
        Measure::Pv => own.pv,
        Measure::JainAtLeast => own.jain,
        Measure::Total | Measure::TotalAtLeast => own.total,
        Measure::TotalAgainst(_) | Measure::TimesAgainst(_) => {
            paired(own, other?, |own, other| own / other)
        }
        Measure::LostAgainst(_) => paired(own, other?, |own, other| other - own),
    };
    spread.map(|spread| spread.median)
}

/// What of the metric, in words.
fn aspect(measure: &Measure, other: &str) -> String {
    match measure {
        Measure::Pv => "PV".to_owned(),
        Measure::JainAtLeast => "Jain's index".to_owned(),
        Measure::Total | Measure::TotalAtLeast => String::new(),
        Measure::TotalAgainst(_) => format!("against {other}"),
        Measure::TimesAgainst(_) => format!("times {other}"),
        Measure::LostAgainst(_) => format!("lost against {other}"),
    }
}

fn word(measure: &Measure, metric: &Metric, value: f64) -> String {
    match measure {
        Measure::Pv | Measure::TimesAgainst(_) => factor(value),
        Measure::JainAtLeast => index(value),
        Measure::TotalAgainst(_) => show(Unit::Ratio, value),
        Measure::Total | Measure::TotalAtLeast | Measure::LostAgainst(_) => {
            show(metric.unit, value)
        }
    }
}

fn is_upper_bound(measure: &Measure) -> bool {
    !matches!(
        measure,
        Measure::TotalAgainst(_) | Measure::TotalAtLeast | Measure::JainAtLeast
    )
}

fn verdict(goal: &Goal, value: Option<f64>) -> Verdict {
    let Some(value) = value else {
        return Verdict::Unknown;
    };
    let holds = |bound: f64| {
        if is_upper_bound(&goal.measure) {
            value <= bound
        } else {
            value >= bound
        }
    };
    match goal.stretch {
        _ if !holds(goal.must) => Verdict::Missed,
        Some(stretch) if holds(stretch) => Verdict::Stretch,
        _ => Verdict::Reached,
    }
}
