//! What a definition must satisfy beyond its syntax.

use std::collections::BTreeSet;

use super::{Configuration, Experiment, OUTSIDER, Phase, Workload};
use crate::report::schema::{Metric, Total};
use crate::vm::Filesystem;

/// What is wrong, and with what.
pub struct Problem {
    /// Where it is written.
    pub place: Place,
    /// Expected and found.
    pub what: String,
}

/// A part of the file.
pub enum Place {
    /// The n-th table of an array (`[[phase]]`).
    Table(&'static str, usize),
    /// The key or table that begins so.
    Line(String),
}

impl Place {
    /// The line, from 1.
    pub fn line(&self, text: &str) -> usize {
        let mut lines = text.lines().enumerate();
        let found = match self {
            Self::Table(name, index) => {
                let header = format!("[[{name}]]");
                lines
                    .filter(|(_, line)| line.trim_start().starts_with(&header))
                    .nth(*index)
            }
            Self::Line(begin) => lines.find(|(_, line)| line.trim_start().starts_with(begin)),
        };
        found.map_or(1, |(number, _)| number + 1)
    }
}

/// The line, from 1, of a byte.
pub fn line_at(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|b| *b == b'\n').count() + 1
}

fn problem<T>(place: Place, what: String) -> Result<T, Problem> {
    Err(Problem { place, what })
}

/// mkfs.ext4 makes no smaller journal, bytes.
const LEAST_JOURNAL: u64 = 4 << 20;

/// Finds the first problem.
pub fn check(experiment: &Experiment) -> Result<(), Problem> {
    configurations(experiment)?;
    metrics(experiment)?;
    journal(experiment)?;
    if let Some(contention) = &experiment.contention {
        for name in [&contention.prepare, &contention.run] {
            if !experiment.workload.contains_key(name) {
                return problem(
                    Place::Line("[contention]".into()),
                    format!("expected a workload named {name:?}, found none"),
                );
            }
        }
        return Ok(());
    }
    match &experiment.scale {
        Some(_) => Ok(()),
        None => {
            files(experiment)?;
            tenants(experiment)?;
            phases(experiment)
        }
    }
}

fn journal(experiment: &Experiment) -> Result<(), Problem> {
    let (journal, disk) = (experiment.disk.journal.0, &experiment.disk);
    let fits = (LEAST_JOURNAL..=disk.size.0 / 2).contains(&journal);
    if journal == 0 || (disk.filesystem == Filesystem::Ext4 && fits) {
        return Ok(());
    }
    problem(
        Place::Line("journal".into()),
        format!(
            "expected ext4, and 4MiB to half of the disk, found {} with {journal} bytes",
            disk.filesystem
        ),
    )
}

fn configurations(experiment: &Experiment) -> Result<(), Problem> {
    let place = || Place::Line("configurations".into());
    if experiment.configurations.is_empty() {
        return problem(
            place(),
            "expected at least one configuration, found none".into(),
        );
    }
    for id in &experiment.configurations {
        if let Err(what) = Configuration::find(id) {
            return problem(place(), what);
        }
    }
    if experiment.repeat == 0 {
        return problem(
            Place::Line("repeat".into()),
            "expected at least 1, found 0".into(),
        );
    }
    Ok(())
}

fn metrics(experiment: &Experiment) -> Result<(), Problem> {
    let place = || Place::Line("metric".into());
    if experiment.metric.is_empty() {
        return problem(place(), "expected at least one metric, found none".into());
    }
    let mut keys = BTreeSet::new();
    for name in &experiment.metric {
        match name.describe() {
            Some(metric) => {
                keys.insert(metric.key);
            }
            None => {
                return problem(
                    place(),
                    format!(
                        "expected a metric that the lab knows, or one described in full, found {name:?}"
                    ),
                );
            }
        }
    }
    for (index, goal) in experiment.goal.iter().enumerate() {
        let place = || Place::Table("goal", index);
        if !keys.contains(&goal.metric) {
            return problem(
                place(),
                format!(
                    "expected a metric of this experiment ({keys:?}), found {:?}",
                    goal.metric
                ),
            );
        }
        if let Err(what) = Configuration::find(&goal.configuration) {
            return problem(place(), what);
        }
    }
    Ok(())
}

fn files(experiment: &Experiment) -> Result<(), Problem> {
    match experiment.files.keys().find(|name| !is_plain(name)) {
        None => Ok(()),
        Some(name) => problem(
            Place::Line(name.clone()),
            format!("expected a name of letters, digits, '-', '_' and '.', found {name:?}"),
        ),
    }
}

/// Whether a name can be part of a path and of a shell's words as it is.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.chars().all(plain) && !name.starts_with('.')
}

fn tenants(experiment: &Experiment) -> Result<(), Problem> {
    let mut names = BTreeSet::new();
    for (index, tenant) in experiment.tenant.iter().enumerate() {
        let place = || Place::Table("tenant", index);
        let name = &tenant.name;
        if !is_plain(name) || name == OUTSIDER {
            return problem(
                place(),
                format!(
                    "expected a name of letters, digits, '-', '_' and '.', other than {OUTSIDER:?}, found {name:?}"
                ),
            );
        }
        if !names.insert(name) {
            return problem(
                place(),
                format!("expected every tenant once, found {name:?} again"),
            );
        }
        if let Err(error) = justitia_share::Weight::try_from(tenant.weight) {
            return problem(place(), error.to_string());
        }
        if let Some(beside) = &tenant.beside {
            workload(experiment, beside, place())?;
        }
    }
    if names.is_empty() {
        return problem(
            Place::Line("[[tenant]]".into()),
            "expected at least one tenant, found none".into(),
        );
    }
    Ok(())
}

fn phases(experiment: &Experiment) -> Result<(), Problem> {
    let known = |name: &str| experiment.tenant.iter().any(|tenant| tenant.name == name);
    for (index, phase) in experiment.phase.iter().enumerate() {
        let place = || Place::Table("phase", index);
        let named: Vec<&String> = match phase {
            Phase::Run { tenants, .. } | Phase::Stop { tenants } => tenants.iter().collect(),
            Phase::Weights { to } => to.keys().collect(),
            _ => Vec::new(),
        };
        for name in named {
            let outside = name == OUTSIDER && !matches!(phase, Phase::Weights { .. });
            if !known(name) && !outside {
                return problem(
                    place(),
                    format!("expected a tenant or {OUTSIDER:?}, found {name:?}"),
                );
            }
        }
        match phase {
            Phase::Run {
                workload: name,
                measured,
                background,
                seconds,
                key,
                ..
            } => {
                workload(experiment, name, place())?;
                if let Some(key) = key {
                    of_the_whole(experiment, key, place())?;
                    if !*measured || *background {
                        return problem(
                            place(),
                            format!("expected measured = true and no background for as = {key:?}"),
                        );
                    }
                }
                if *background && *measured && seconds.is_none() {
                    return problem(
                        place(),
                        "expected seconds for what is measured in the background, found none"
                            .into(),
                    );
                }
                if uses_seconds(experiment, name) && seconds.is_none() {
                    return problem(
                        place(),
                        format!("expected seconds, which workload {name:?} uses, found none"),
                    );
                }
            }
            Phase::Record { key }
                if !experiment.metrics().iter().any(|metric| metric.key == *key) =>
            {
                return problem(
                    place(),
                    format!("expected a metric of this experiment, found {key:?}"),
                );
            }
            Phase::Watch { key: Some(key), .. } => of_the_whole(experiment, key, place())?,
            Phase::Weights { to } => {
                for weight in to.values() {
                    if let Err(error) = justitia_share::Weight::try_from(*weight) {
                        return problem(place(), error.to_string());
                    }
                }
            }
            _ => {}
        }
    }
    if experiment.phase.is_empty() {
        return problem(
            Place::Line("[[phase]]".into()),
            "expected at least one phase, found none".into(),
        );
    }
    Ok(())
}

/// A key under which a phase keeps something of the run as a whole.
fn of_the_whole(experiment: &Experiment, key: &str, place: Place) -> Result<(), Problem> {
    let metrics = experiment.metrics();
    let whole = |metric: &&Metric| metric.total == Total::Whole;
    if metrics.iter().filter(whole).any(|metric| metric.key == key) {
        return Ok(());
    }
    problem(
        place,
        format!("expected a metric of this experiment whose total is \"whole\", found {key:?}"),
    )
}

fn workload(experiment: &Experiment, name: &str, place: Place) -> Result<(), Problem> {
    if experiment.workload.contains_key(name) {
        return Ok(());
    }
    let known: Vec<&String> = experiment.workload.keys().collect();
    problem(
        place,
        format!("expected a workload ({known:?}), found {name:?}"),
    )
}

fn uses_seconds(experiment: &Experiment, name: &str) -> bool {
    experiment.workload.get(name).is_some_and(|workload| {
        let (Workload::Fio(text) | Workload::Load(text) | Workload::Sh(text)) = workload;
        text.contains("{seconds}")
    })
}
