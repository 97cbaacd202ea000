//! Tenants, files and workloads: what has a name.

use std::collections::BTreeSet;

use super::super::definition::Experiment;
use super::super::phase::OUTSIDER;
use super::super::source::Place;
use super::problem::{Problem, problem};
use justitia_common::toml_file::none_of;

pub(super) fn files(experiment: &Experiment) -> Result<(), Problem> {
    match experiment.files.keys().find(|name| !is_plain(name)) {
        None => Ok(()),
        Some(name) => problem(
            Place::within("files", name),
            format!("expected a name of letters, digits, '-', '_' and '.', found {name:?}"),
        ),
    }
}

pub(super) fn tenants(experiment: &Experiment) -> Result<(), Problem> {
    let mut names = BTreeSet::new();
    for (index, tenant) in experiment.tenant.iter().enumerate() {
        let place = || Place::Item("tenant", index);
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
        weight(tenant.weight, place())?;
        if let Some(file) = tenant.cgroup.keys().find(|file| !is_plain(file)) {
            return problem(
                place(),
                format!("expected a file of a cgroup such as \"memory.min\", found {file:?}"),
            );
        }
        if let Some(background) = &tenant.background {
            workload(experiment, background, place())?;
        }
    }
    if names.is_empty() {
        return problem(
            Place::top("tenant"),
            "expected at least one tenant, found none",
        );
    }
    Ok(())
}

/// Whether a name can be part of a path and of a shell command as it is.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.chars().all(plain) && !name.starts_with('.')
}

pub(super) fn weight(weight: u64, place: Place) -> Result<(), Problem> {
    match justitia_share::Weight::try_from(weight) {
        Ok(_) => Ok(()),
        Err(error) => problem(place, error.to_string()),
    }
}

pub(super) fn workload(experiment: &Experiment, name: &str, place: Place) -> Result<(), Problem> {
    if experiment.workload.contains_key(name) {
        return Ok(());
    }
    let known = experiment.workload.keys().map(String::as_str);
    problem(place, none_of("a workload", name, known))
}
