//! From what was measured to what is shown: medians, normalised values, totals, PV.

use justitia_share::num::to_f64;
use justitia_share::{Weight, jain, pv};

use super::number::show;
use super::schema::{Configuration, Metric, Outcome, Results, Run, Total, Unit};
use super::spread::Spread;

/// The runs of one experiment with the same MGLRU state.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// Whether MGLRU was on; `None` where the kernel has none.
    pub mglru: Option<bool>,
    /// A row for every configuration, whether it ran or not.
    pub rows: Vec<Row<'a>>,
}

/// One configuration in one group.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// Which.
    pub configuration: &'a Configuration,
    /// How many runs measured something.
    pub measured: usize,
    /// The runs that failed.
    pub failures: Vec<Failure<'a>>,
    /// One per metric, in the order of [`Results::metrics`].
    pub cells: Vec<Cell>,
    /// The part of the time that the processors were busy: the median of the runs.
    pub processor: Option<f64>,
    /// The same of the disk.
    pub disk: Option<f64>,
    /// The run whose timeline is shown: the one with the median headline.
    pub typical: Option<&'a Run>,
}

/// A run that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure<'a> {
    /// Which repeat.
    pub repeat: u32,
    /// Why.
    pub reason: &'a str,
    /// The end of the guest's console; may be empty.
    pub console: &'a str,
}

/// One configuration's results for one metric.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    /// By tenant, in the metric's unit.
    pub values: Vec<Option<Spread>>,
    /// By tenant, over what the lowest weight got in the same run.
    pub normalised: Vec<Option<Spread>>,
    /// The tenants together.
    pub total: Option<Spread>,
    /// Proportionality variation, of a metric that ought to follow the weights.
    pub pv: Option<Spread>,
    /// Jain's index by weight, of such a metric.
    pub jain: Option<Spread>,
    /// The total of each repeat, for comparisons within a repeat.
    pub totals: Vec<(u32, f64)>,
}

/// From this part of the time on the processors count as the bottleneck: on average over a window of half a minute and more.
pub(super) const PROCESSOR_BOUND: f64 = 0.85;

impl Row<'_> {
    /// How busy the machine was, in words; `None` where that was not measured.
    pub(super) fn busy(&self) -> Option<String> {
        let part = |part: f64| show(Unit::Ratio, part);
        Some(format!(
            "{}: the processors were busy {} of the time, the disk {}.",
            self.configuration.label,
            part(self.processor?),
            part(self.disk?)
        ))
    }

    /// Whether the processors were the bottleneck: then throughput says little of how the disk was divided.
    pub(super) fn processor_bound(&self) -> bool {
        self.processor.is_some_and(|busy| busy >= PROCESSOR_BOUND)
    }
}

impl Group<'_> {
    /// The MGLRU state in words.
    pub(super) fn state(&self) -> &'static str {
        match self.mglru {
            Some(true) => "MGLRU on",
            Some(false) => "MGLRU off (classic LRU)",
            None if self.rows.iter().all(|row| row.measured == 0) => "Nothing was measured",
            None => "Kernel without MGLRU",
        }
    }

    /// Whether any tenant, or the total, has a value of the metric at `position`.
    pub(super) fn measured(&self, position: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.cells.get(position));
        cells.any(|cell| cell.total.is_some() || cell.values.iter().any(Option::is_some))
    }
}

/// The ideal result of every tenant: its weight over the lowest.
pub(super) fn ideal(results: &Results) -> Vec<f64> {
    let lowest = results.tenants.iter().map(|t| t.weight).min().unwrap_or(1);
    results
        .tenants
        .iter()
        .map(|t| to_f64(t.weight) / to_f64(lowest))
        .collect()
}

/// The experiment by MGLRU state, in the order in which the states first ran.
pub(super) fn groups(results: &Results) -> Vec<Group<'_>> {
    let mut states: Vec<Option<bool>> = Vec::new();
    for run in &results.runs {
        let state = state(results, run);
        if !states.contains(&state) {
            states.push(state);
        }
    }
    states
        .into_iter()
        .map(|mglru| Group {
            mglru,
            rows: results
                .configurations
                .iter()
                .map(|configuration| row(results, configuration, mglru))
                .collect(),
        })
        .collect()
}

/// With which a run ran. One that failed may not have lived to tell: then with which all others did.
fn state(results: &Results, run: &Run) -> Option<bool> {
    if run.mglru.is_some() || run.outcome == Outcome::Measured {
        return run.mglru;
    }
    let measured = |run: &&Run| run.outcome == Outcome::Measured;
    let mut others = results.runs.iter().filter(measured).map(|run| run.mglru);
    let first = others.next()?;
    others.all(|other| other == first).then_some(first)?
}

fn row<'a>(results: &'a Results, configuration: &'a Configuration, mglru: Option<bool>) -> Row<'a> {
    let runs = results
        .runs
        .iter()
        .filter(|run| run.configuration == configuration.id && state(results, run) == mglru);
    let mut measured = Vec::new();
    let mut failures = Vec::new();
    for run in runs {
        match &run.outcome {
            Outcome::Measured => measured.push(run),
            Outcome::Failed { reason, console } => failures.push(Failure {
                repeat: run.repeat,
                reason,
                console,
            }),
        }
    }
    let whole = |key: &str| {
        let values = measured
            .iter()
            .filter_map(|run| run.values.get(key).copied());
        Spread::of(values).map(|spread| spread.median)
    };
    Row {
        configuration,
        measured: measured.len(),
        processor: whole("processor"),
        disk: whole("disk"),
        failures,
        cells: results
            .metrics
            .iter()
            .map(|metric| cell(results, metric, &measured))
            .collect(),
        typical: typical(results, &measured),
    }
}

fn cell(results: &Results, metric: &Metric, runs: &[&Run]) -> Cell {
    let by_run: Vec<Vec<Option<f64>>> = runs
        .iter()
        .map(|run| tenant_values(results, metric, run))
        .collect();
    let normalised: Vec<Vec<Option<f64>>> = by_run.iter().map(|v| normalise(results, v)).collect();
    let tenants = |of: &[Vec<Option<f64>>]| {
        (0..results.tenants.len())
            .map(|tenant| Spread::of(of.iter().filter_map(|run| run.get(tenant).copied()?)))
            .collect()
    };
    let totals: Vec<(u32, f64)> = runs
        .iter()
        .zip(&by_run)
        .filter_map(|(run, values)| Some((run.repeat, total(metric, run, values)?)))
        .collect();
    Cell {
        values: tenants(&by_run),
        normalised: tenants(&normalised),
        total: Spread::of(totals.iter().map(|(_, total)| *total)),
        pv: fairness(results, metric, &by_run, pv),
        jain: fairness(results, metric, &by_run, jain),
        totals,
    }
}

fn tenant_values(results: &Results, metric: &Metric, run: &Run) -> Vec<Option<f64>> {
    let value_of = |name: &str| {
        let tenant = run.tenants.iter().find(|t| t.name == name)?;
        tenant.values.get(&metric.key).copied()
    };
    results.tenants.iter().map(|t| value_of(&t.name)).collect()
}

/// Over what the lowest weight got (the mean, where several have it), as PV does.
fn normalise(results: &Results, values: &[Option<f64>]) -> Vec<Option<f64>> {
    let lowest = results.tenants.iter().map(|t| t.weight).min();
    let of_lowest: Option<Vec<f64>> = results
        .tenants
        .iter()
        .zip(values)
        .filter(|(tenant, _)| Some(tenant.weight) == lowest)
        .map(|(_, value)| *value)
        .collect();
    let unit = of_lowest
        .filter(|values| !values.is_empty())
        .map(|values| values.iter().sum::<f64>() / to_f64(values.len() as u64));
    values
        .iter()
        .map(|value| Some((*value)? / unit?).filter(|ratio| !ratio.is_nan()))
        .collect()
}

fn total(metric: &Metric, run: &Run, values: &[Option<f64>]) -> Option<f64> {
    if metric.total == Total::Whole {
        return run.values.get(&metric.key).copied();
    }
    let values: Vec<f64> = values.iter().copied().collect::<Option<_>>()?;
    let sum: f64 = values.iter().sum();
    match metric.total {
        Total::Mean if !values.is_empty() => Some(sum / to_f64(values.len() as u64)),
        Total::Mean => None,
        Total::Sum | Total::Whole => Some(sum),
    }
}

/// A figure of how far what tenants got is from their weights.
type Figure = fn(&[Weight], &[f64]) -> Option<f64>;

fn fairness(
    results: &Results,
    metric: &Metric,
    runs: &[Vec<Option<f64>>],
    figure: Figure,
) -> Option<Spread> {
    let of = |values: &Vec<Option<f64>>| by_weight(results, metric, values, figure);
    Spread::of(runs.iter().filter_map(of))
}

fn by_weight(
    results: &Results,
    metric: &Metric,
    values: &[Option<f64>],
    figure: Figure,
) -> Option<f64> {
    if !metric.proportional {
        return None;
    }
    let weights: Vec<Weight> = results
        .tenants
        .iter()
        .map(|t| Weight::try_from(t.weight).ok())
        .collect::<Option<_>>()?;
    let values: Vec<f64> = values.iter().copied().collect::<Option<_>>()?;
    figure(&weights, &values)
}

/// The run in the middle by the headline's PV, or by its total where it has none.
fn typical<'a>(results: &Results, runs: &[&'a Run]) -> Option<&'a Run> {
    let headline = results.metrics.first()?;
    let mut by_headline: Vec<(f64, &Run)> = runs
        .iter()
        .filter(|run| !run.timeline.is_empty())
        .map(|run| {
            let values = tenant_values(results, headline, run);
            let key = by_weight(results, headline, &values, pv)
                .or_else(|| total(headline, run, &values))
                .unwrap_or(f64::INFINITY);
            (key, *run)
        })
        .collect();
    by_headline.sort_by(|a, b| a.0.total_cmp(&b.0));
    let middle = by_headline.len().checked_sub(1)? / 2;
    by_headline.get(middle).map(|(_, run)| *run)
}

/// Two configurations compared repeat by repeat: those of the same repeat ran in the same state of the machine.
pub(super) fn paired(own: &Cell, other: &Cell, f: fn(f64, f64) -> f64) -> Option<Spread> {
    let total_of = |repeat| other.totals.iter().find(|(r, _)| *r == repeat);
    Spread::of(
        own.totals
            .iter()
            .filter_map(|(repeat, own)| Some(f(*own, total_of(*repeat)?.1))),
    )
}
