//! Experiments with the hypervisor cache, in the lab's schema, so that one report shows both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use justitia_cache_lab::experiment::{Clock, Experiment, Goal, MEASURES, Measured};
use justitia_share::num::to_f64;

use crate::host::processor;
use crate::report;
use crate::report::schema::{
    self, Machine, Measure, Metric, Outcome, Paper, PaperResult, Results, Run, Series,
    TenantValues, Total, Unit, VERSION,
};

/// The configuration that others gain over.
const BASELINE: &str = "global";
/// What a container gains over it; `gain:CONTAINER` is that of one, of the run as a whole.
const GAIN: &str = "gain";

const MIB: f64 = 1_048_576.0;

/// The runs of an experiment with one delay of the disk, as the report reads them.
///
/// # Errors
/// When this machine cannot be described.
pub fn results(
    experiment: &Experiment,
    delay_ms: f64,
    seed: u64,
    measured: &[Measured],
) -> Result<Results> {
    let of_delay = |m: &&Measured| m.delay_ms.total_cmp(&delay_ms).is_eq();
    let measured: Vec<&Measured> = measured.iter().filter(of_delay).collect();
    let clock = measured.first().map_or(Clock::Virtual, |m| m.clock);
    let runs: Vec<Run> = measured
        .iter()
        .map(|run| self::run(experiment, run, &measured))
        .collect();
    Ok(Results {
        schema: VERSION,
        experiment: format!("{}-{delay_ms}ms", experiment.name),
        title: format!("{}, a read of the disk in {delay_ms} ms", experiment.title),
        question: experiment.question.clone(),
        paper: experiment.paper.as_ref().map(|paper| Paper {
            title: "DoubleDecker".to_owned(),
            figure: paper.figure.clone(),
            metric: paper.metric.clone(),
            results: paper.results.iter().map(paper_result).collect(),
        }),
        machine: machine(delay_ms, clock)?,
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        seed,
        tenants: experiment.container.iter().map(tenant).collect(),
        configurations: experiment
            .configuration
            .iter()
            .map(|c| schema::Configuration {
                id: c.id.clone(),
                label: c.label.clone(),
                what: c.what.clone(),
            })
            .collect(),
        metrics: metrics(experiment, &runs),
        goals: experiment.goal.iter().map(goal).collect(),
        runs,
    })
}

/// Writes results into a directory, which is made, by the experiment's name; a reader sees the old one or the new one.
///
/// # Errors
/// When it cannot be written.
pub fn write_results(results: &Results, directory: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("creating {}", directory.display()))?;
    report::write(results, directory, &results.experiment)
}

fn machine(delay_ms: f64, clock: Clock) -> Result<Machine> {
    let info = rustix::system::sysinfo();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let clock = match clock {
        Clock::Virtual => "virtual clock",
        Clock::Real => "threads that sleep",
    };
    Ok(Machine {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        accelerator: "none".to_owned(),
        cpu: processor()?,
        vcpus: u32::try_from(threads).unwrap_or(u32::MAX),
        memory_bytes: info.totalram.saturating_mul(u64::from(info.mem_unit)),
        disk: format!("modelled: a read takes {delay_ms} ms, however many wait; {clock}"),
    })
}

fn tenant(container: &justitia_cache_lab::experiment::Container) -> schema::Tenant {
    let [memory, ssd] = container.weights;
    schema::Tenant {
        name: container.name.clone(),
        weight: memory.max(ssd),
        above_share: false,
    }
}

fn paper_result(result: &justitia_cache_lab::experiment::PaperResult) -> PaperResult {
    PaperResult {
        configuration: result.configuration.clone(),
        pv: None,
        normalised: Vec::new(),
        values: result.values.clone(),
        note: result.note.clone(),
    }
}

fn goal(goal: &Goal) -> schema::Goal {
    let (measure, must) = match (goal.at_least, goal.at_most) {
        (Some(least), _) => (Measure::TotalAtLeast, least),
        (None, most) => (Measure::Total, most.unwrap_or(0.0)),
    };
    schema::Goal {
        configuration: goal.configuration.clone(),
        metric: goal.metric.clone(),
        measure,
        must,
        stretch: goal.stretch,
    }
}

fn unit(measure: &str) -> Unit {
    match measure {
        "throughput" => Unit::BytesPerSecond,
        "latency" | "settle_s" => Unit::Seconds,
        "hit_ratio" | "lookup_to_store" => Unit::Ratio,
        "memory" | "ssd" => Unit::Bytes,
        _ => Unit::Count,
    }
}

/// What is shown: the gain first.
fn metrics(experiment: &Experiment, runs: &[Run]) -> Vec<Metric> {
    let metric = |key: &str, label: &str, total| Metric {
        key: key.to_owned(),
        label: label.to_owned(),
        unit: unit(key),
        proportional: false,
        total,
    };
    let mut metrics = Vec::new();
    let has = |key: &str| runs.iter().any(|run| run.values.contains_key(key));
    if experiment.configuration.iter().any(|c| c.id == BASELINE) {
        let label = "Throughput over that of the global cache";
        metrics.push(metric(GAIN, label, Total::Mean));
    }
    for (key, label) in MEASURES {
        let total = match unit(key) {
            Unit::Seconds | Unit::Ratio => Total::Mean,
            _ => Total::Sum,
        };
        metrics.push(metric(key, label, total));
    }
    let wholes = [
        ("settle_s", "Until all hold what their new weights give"),
        ("wrong", "Blocks that were stale or another's"),
        ("refused", "Puts that were refused"),
    ];
    for (key, label) in wholes.into_iter().filter(|(key, _)| has(key)) {
        metrics.push(metric(key, label, Total::Whole));
    }
    for container in &experiment.container {
        let key = format!("{GAIN}:{}", container.name);
        if experiment.goal.iter().any(|goal| goal.metric == key) {
            let label = format!("Gain of {} over the global cache", container.name);
            metrics.push(metric(&key, &label, Total::Whole));
        }
    }
    metrics
}

fn run(experiment: &Experiment, run: &Measured, all: &[&Measured]) -> Run {
    let same = |other: &&&Measured| other.repeat == run.repeat && other.configuration == BASELINE;
    let baseline = all.iter().find(same);
    let mut values = run.values.clone();
    let tenants = run.containers.iter().map(|(name, found)| {
        let mut own: BTreeMap<String, f64> = found
            .iter()
            .map(|(key, value)| ((*key).to_owned(), *value))
            .collect();
        let base = baseline.and_then(|base| base.of(name, "throughput"));
        if let (Some(base), Some(got)) = (base.filter(|b| *b > 0.0), run.of(name, "throughput")) {
            own.insert(GAIN.to_owned(), got / base);
            values.insert(format!("{GAIN}:{name}"), got / base);
        }
        TenantValues {
            name: name.clone(),
            values: own,
        }
    });
    let tenants = tenants.collect();
    let own = run.timeline.iter().map(|series| Series {
        metric: series.store.to_owned(),
        tenant: series.container.clone(),
        points: series.points.clone(),
    });
    let papers = experiment.paper.iter().flat_map(|paper| &paper.occupancy);
    let papers = papers.filter(|occupancy| occupancy.configuration == run.configuration);
    let papers = papers.map(|occupancy| Series {
        metric: "memory".to_owned(),
        tenant: format!("the paper's {}", occupancy.container),
        points: occupancy
            .points
            .iter()
            .map(|(s, mib)| (*s, mib * MIB))
            .collect(),
    });
    Run {
        configuration: run.configuration.clone(),
        mglru: None,
        repeat: run.repeat,
        outcome: Outcome::Measured,
        tenants,
        timeline: own.chain(papers).collect(),
        values,
        curves: Vec::new(),
    }
}

/// What the report counts: for messages.
#[must_use]
pub fn describe_run(run: &Measured) -> String {
    let throughput = |(name, values): &(String, BTreeMap<&'static str, f64>)| {
        let bytes = values.get("throughput").copied().unwrap_or(0.0);
        format!("{name} {:.1} MB/s", bytes / to_f64(1_000_000))
    };
    let all: Vec<String> = run.containers.iter().map(throughput).collect();
    format!(
        "{}, {} ms, repeat {}: {}",
        run.configuration,
        run.delay_ms,
        run.repeat,
        all.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_cache_lab::experiment::{Options, run};
    use std::time::Duration;

    const SMALL: &str = r#"
        title = "Small"
        question = ""
        scale = 2
        seconds = 0.4
        memory = "4MiB"
        goal = [{ configuration = "pools", metric = "gain:reader", at_least = 0.5 }]
        container = [
            { name = "reader", workload = "random", memory = "1MiB", files = "6MiB", threads = 2 },
        ]
        configuration = [
            { id = "global", label = "Global", cache = "global" },
            { id = "pools", label = "Pools", cache = "pools" },
        ]
        [paper]
        figure = "Fig. 0"
        metric = "gain"
        results = [{ configuration = "pools", values = { reader = 4.25 } }]
        [[paper.occupancy]]
        configuration = "pools"
        container = "reader"
        points = [[0, 1], [0.4, 2]]
    "#;

    #[test]
    fn the_report_reads_what_an_experiment_found() {
        let experiment = Experiment::parse("small", SMALL).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            delays: vec![Duration::from_micros(100), Duration::from_millis(1)],
            repeat: 2,
            seed: 1,
            clock: Clock::Virtual,
            directory: directory.path().into(),
            jobs: 2,
        };
        let measured = run(&experiment, &options, &|_| {}).unwrap();
        assert_eq!(measured.len(), 8);
        let results = results(&experiment, 1.0, 1, &measured).unwrap();
        assert_eq!(results.runs.len(), 4);
        let gain = |run: &Run| run.tenants[0].values["gain"];
        assert_eq!(gain(&results.runs[0]), 1.0);
        assert_eq!(
            gain(&results.runs[3]),
            results.runs[3].values["gain:reader"]
        );
        let kept = write_results(&results, &directory.path().join("results")).unwrap();
        let page = directory.path().join("report.html");
        crate::report::render(&kept, &page).unwrap();
        let page = std::fs::read_to_string(page).unwrap();
        for said in ["Fig. 0", "4.25", "the paper's reader", "≥ 0.5"] {
            assert!(page.contains(said), "{said}");
        }
    }
}
