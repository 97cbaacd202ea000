//! `docs/reference/experiment.md`, made of the definitions: texts, defaults, and what a wrong value is answered with.

use std::fmt::Write;

use documented::DocumentedFields;
use justitia_api::size;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::configuration::Configuration;
use super::definition::{Disk, Experiment, Machine, Scale, Tenant, Workload};
use super::metric::all_known;
use super::phase::{
    DiskPhase, MeasurePhase, Phase, RecordPhase, RunPhase, SamplePhase, StopPhase, WaitPhase,
    WeightsPhase,
};
use crate::report::schema::{Goal, Measure, Metric, Paper, PaperResult, Total, Unit};

/// Its text, Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut out = HEAD.to_owned();
    out.push_str(&keys::<Experiment>(TOP));
    section(&mut out, "[machine]", "The guest.", &keys::<Machine>(""));
    section(&mut out, "[disk]", "The guest's disk.", &keys::<Disk>(""));
    section(&mut out, "[[tenant]]", TENANT_IS, &keys::<Tenant>(TENANT));
    section(&mut out, "[workload.NAME]", WORKLOAD, &names::<Workload>());
    section(&mut out, "[[phase]]", PHASE, &names::<Phase>());
    for (name, keys) in [
        ("run", keys::<RunPhase>("workload = \"w\"")),
        ("record", keys::<RecordPhase>("")),
        ("wait", keys::<WaitPhase>("seconds = 1")),
        ("sample", keys::<SamplePhase>("seconds = 1")),
        ("measure", keys::<MeasurePhase>("seconds = 1")),
        ("renew", keys::<StopPhase>("in = []")),
        ("stop", keys::<StopPhase>("in = []")),
        ("weights", keys::<WeightsPhase>("to = {}")),
        ("disk", keys::<DiskPhase>("bytes_per_second = 1")),
    ] {
        let _ = write!(out, "\n`do = \"{name}\"`\n\n{keys}");
    }
    section(&mut out, "metric", METRIC, &known_metrics());
    let _ = write!(out, "\n{OWN_METRIC}\n\n{}", keys::<Metric>(OWN));
    let _ = write!(out, "\n`unit`\n\n{}", names::<Unit>());
    let _ = write!(out, "\n`total`\n\n{}", names::<Total>());
    section(&mut out, "[[goal]]", GOAL_IS, &keys::<Goal>(GOAL));
    let _ = write!(out, "\n`measure`\n\n{}", names::<Measure>());
    section(&mut out, "[paper]", PAPER_IS, &keys::<Paper>(PAPER));
    let results = keys::<PaperResult>("configuration = \"bfq\"");
    section(&mut out, "[[paper.results]]", RESULTS, &results);
    section(&mut out, "[scale]", SCALE_IS, &keys::<Scale>(SCALE));
    section(&mut out, "configurations", "", &configurations());
    out
}

const HEAD: &str = "\
# Experiment files

<!-- Made by `make reference` from lab/src/experiment and lab/src/report/schema.rs; do not edit. -->

A file of an experiment with the agent: `justitia-lab run FILE.toml`. How to write one, and `base`:
[the lab](../guide/lab.md#an-experiment-of-your-own). An unknown key, or a value out of range, is refused with file and
line. Bytes are a number, or a text with a unit of 1024 such as `\"64KiB\"` or `\"1GiB\"`.

## At the top

";
const TOP: &str = "title = \"t\"\nquestion = \"q\"\nconfigurations = []\nmetric = []";
const TENANT_IS: &str = "A container: a cgroup below the root, and a directory on the disk.";
const TENANT: &str = "name = \"a\"\nweight = 100";
const WORKLOAD: &str = "\
What a phase runs: one of these keys, with a text. In the text, `{dir}` is the container's own directory on the disk,
`{files}` where the experiment's files are, `{name}` and `{weight}` the tenant's, `{seconds}` and `{ramp}` the phase's
and `{seed}` the run's.";
const PHASE: &str = "What happens, in order: each has `do = \"NAME\"`, and the keys below.";
const METRIC: &str = "A list of what is measured, the headline first. Names that the lab knows:";
const OWN_METRIC: &str = "Or one that a phase records under a name of its own, as a table:";
const OWN: &str =
    "key = \"k\"\nlabel = \"l\"\nunit = \"count\"\nproportional = true\ntotal = \"sum\"";
const GOAL_IS: &str = "A figure that is to be reached, set before the measurement: the median of the repeats, \
for each of the kernel's LRU lists.";
const GOAL: &str = "configuration = \"bfq\"\nmetric = \"m\"\nmeasure = \"pv\"\nmust = 1.0";
const PAPER_IS: &str = "What a paper reports for the same experiment.";
const PAPER: &str = "title = \"t\"\nfigure = \"f\"\nresults = []";
const RESULTS: &str = "The paper's numbers for one configuration.";
const SCALE_IS: &str = "Instead of tenants and phases: the agent's cost as tenants grow in number.";
const SCALE: &str = "tenants = []\nseconds = 1";
/// Keys that a file does not have.
const NOT_WRITTEN: [&str; 2] = ["name", "dir"];

fn section(out: &mut String, title: &str, about: &str, table: &str) {
    let _ = write!(out, "\n## `{title}`\n\n");
    if !about.is_empty() {
        let _ = write!(out, "{about}\n\n");
    }
    out.push_str(table);
}

/// The table of a definition's keys. `required` are those that it must have, each with a value.
fn keys<T: DocumentedFields + DeserializeOwned + Serialize>(required: &str) -> String {
    let required: Table = toml::from_str(required).unwrap_or_default();
    let complete = required.clone().try_into::<T>().ok();
    let defaults = complete.and_then(|complete| Table::try_from(complete).ok());
    let defaults = defaults.unwrap_or_default();
    let is_experiment = T::FIELD_NAMES.contains(&"configurations");
    let mut out = "| key | value | default | meaning |\n|---|---|---|---|\n".to_owned();
    for (key, about) in T::FIELD_NAMES.iter().zip(T::FIELD_DOCS) {
        if is_experiment && NOT_WRITTEN.contains(key) {
            continue;
        }
        let expected = expected::<T>(&required, key);
        let default = match defaults.get(*key) {
            _ if required.contains_key(*key) => "required".to_owned(),
            Some(Value::Table(_)) | None => "none".to_owned(),
            Some(Value::Array(items)) if items.is_empty() => "none".to_owned(),
            Some(value) if expected.starts_with("bytes") => bytes(value),
            Some(value) => format!("`{value}`"),
        };
        let about = joined(about);
        let _ = writeln!(out, "| `{key}` | {expected} | {default} | {about} |");
    }
    out
}

/// The table of an enumeration's names.
fn names<T: DocumentedFields>() -> String {
    let mut out = "| name | meaning |\n|---|---|\n".to_owned();
    for (name, about) in T::FIELD_NAMES.iter().zip(T::FIELD_DOCS) {
        let _ = writeln!(out, "| `{name}` | {} |", joined(about));
    }
    out
}

/// What the reader says that it expects of a key.
fn expected<T: DeserializeOwned>(required: &Table, key: &str) -> String {
    // Not a number, a table, bytes or a name; and no text.
    for wrong in [Value::String("[".to_owned()), Value::Float(f64::NAN)] {
        let mut table = required.clone();
        table.insert(key.to_owned(), wrong);
        let Err(error) = table.try_into::<T>() else {
            continue;
        };
        let said = error.message().to_owned();
        let Some((_, expected)) = said.split_once("expected ") else {
            continue;
        };
        let expected = expected.split(", found").next().unwrap_or_default();
        return match expected {
            "u32" | "u64" | "f64" => "a number".to_owned(),
            "a sequence" => "a list".to_owned(),
            "a boolean" => "true or false".to_owned(),
            other if other.starts_with("a map") || other.starts_with("struct") => {
                "a table".to_owned()
            }
            size::EXPECTED => "bytes".to_owned(),
            other => other.trim_end().to_owned(),
        };
    }
    String::new()
}

/// Bytes as people write them.
fn bytes(value: &Value) -> String {
    match value.as_integer() {
        Some(bytes) if bytes > 0 && bytes % (1 << 30) == 0 => format!("`\"{}GiB\"`", bytes >> 30),
        _ => format!("`{value}`"),
    }
}

fn known_metrics() -> String {
    let mut out = "| name | what | by weight | total |\n|---|---|---|---|\n".to_owned();
    for Metric {
        key,
        label,
        proportional,
        total,
        ..
    } in all_known()
    {
        let proportional = if proportional { "yes" } else { "no" };
        let total = match total {
            Total::Sum => "sum",
            Total::Mean => "mean",
            Total::Whole => "of the run",
        };
        let _ = writeln!(out, "| `{key}` | {label} | {proportional} | {total} |");
    }
    out
}

fn configurations() -> String {
    let mut out = "| id | what it sets |\n|---|---|\n".to_owned();
    for one in Configuration::all() {
        let _ = writeln!(out, "| `{}` | {} |", one.id, one.what);
    }
    out
}

/// A text of several lines as one.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the tables call required is; with it alone the definition can be read.
    fn exactly_required<T: DeserializeOwned>(required: &str) {
        let table: Table = toml::from_str(required).unwrap();
        let read = |table: &Table| table.clone().try_into::<T>().map(drop);
        read(&table).unwrap();
        for key in table.keys() {
            let mut without = table.clone();
            without.remove(key);
            let error = read(&without).unwrap_err();
            assert!(error.message().contains("missing field"), "{key}: {error}");
        }
    }

    #[test]
    fn required_keys_are_required() {
        exactly_required::<Experiment>(TOP);
        exactly_required::<Tenant>(TENANT);
        exactly_required::<Metric>(OWN);
        exactly_required::<Goal>(GOAL);
        exactly_required::<Paper>(PAPER);
        exactly_required::<Scale>(SCALE);
    }

    #[test]
    fn every_key_has_a_value_and_a_meaning() {
        for line in markdown().lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            assert!(
                cells.iter().all(|cell| !cell.trim().is_empty()),
                "expected no empty cell, found {line}"
            );
            assert!(!line.contains("[`"), "a link of rustdoc: {line}");
        }
    }
}
