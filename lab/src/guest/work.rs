//! Workloads as processes in a tenant's cgroup, and what they report.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cgroup::Cgroup;
use crate::experiment::Workload;
use crate::wire::FILES;

/// The file whose appearance starts everybody at once.
pub struct Gate {
    path: PathBuf,
}

impl Gate {
    /// A closed one.
    pub fn new(number: usize) -> Self {
        Self {
            path: PathBuf::from(format!("/run/lab/go-{number}")),
        }
    }

    /// Opens it.
    pub fn open(&self) -> Result<()> {
        File::create(&self.path)
            .map(drop)
            .with_context(|| format!("creating {}", self.path.display()))
    }
}

/// Whose behalf something runs on.
pub struct Place<'a> {
    pub name: &'a str,
    pub weight: u64,
    pub words: &'a BTreeMap<String, String>,
    pub cgroup: &'a Cgroup,
    pub dir: &'a Path,
}

/// A running workload, killed when dropped.
pub struct Work {
    who: String,
    child: Child,
    stdout: File,
    stderr: File,
    kind: Kind,
    ready: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Fio,
    Load,
    Sh,
}

/// What a workload says it did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub read: u64,
    pub written: u64,
    pub operations: u64,
    /// By operation, where it says so.
    pub latencies: BTreeMap<String, Latency>,
}

/// How long an operation took, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
}

/// What texts may speak of.
pub struct Words {
    pub seconds: Option<u64>,
    pub ramp: u64,
    pub seed: u64,
}

impl Work {
    /// Starts it; one that can wait at the gate does.
    pub fn start(
        workload: &Workload,
        place: &Place<'_>,
        words: &Words,
        gate: &Gate,
    ) -> Result<Self> {
        let fill = |text: &str| substitute(text, place, words);
        let mut ready = None;
        let (kind, script) = match workload {
            Workload::Fio(job) => {
                let file = format!("/run/lab/{}.fio", place.name);
                std::fs::write(&file, fill(job)).with_context(|| format!("writing {file}"))?;
                // fio prepares before it waits for nobody: the gate is its command's.
                (
                    Kind::Fio,
                    format!(
                        "while ! test -e {gate}; do sleep 0.01; done; exec fio --output-format=json {file}",
                        gate = gate.path.display()
                    ),
                )
            }
            Workload::Load(arguments) => {
                let mark = PathBuf::from(format!("{}-{}", gate.path.display(), place.name));
                let script = format!(
                    "exec justitia-load {} --dir {}/files --ready {} --wait-for {}",
                    fill(arguments),
                    place.dir.display(),
                    mark.display(),
                    gate.path.display()
                );
                // Only a run waits; preparing goes ahead.
                ready = arguments.contains("run").then_some(mark);
                (Kind::Load, script)
            }
            Workload::Sh(script) => (Kind::Sh, fill(script)),
        };
        let stdout = tempfile::tempfile_in("/run").context("making a file for standard output")?;
        let stderr = tempfile::tempfile_in("/run").context("making a file for standard error")?;
        let enter = format!(
            "echo $$ >{} || exit 111\n{script}",
            place.cgroup.procs().display()
        );
        let child = Command::new("sh")
            .args(["-c", &enter])
            .current_dir("/run/lab")
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .spawn()
            .context("starting a workload")?;
        Ok(Self {
            who: place.name.to_owned(),
            child,
            stdout,
            stderr,
            kind,
            ready,
        })
    }

    /// Whose it is.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// An error if it has failed already.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait().context("waiting for a workload")? {
            Some(status) if !status.success() => self.finish(Duration::ZERO).map(drop),
            _ => Ok(()),
        }
    }

    /// Waits until it only waits for the gate.
    pub fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let begin = Instant::now();
        let Some(mark) = self.ready.clone() else {
            return Ok(());
        };
        while !mark.exists() {
            if self.child.try_wait()?.is_some() {
                // Its status and its words are an error's.
                self.finish(Duration::ZERO)?;
                bail!(
                    "expected the workload in {} to wait for its start, it ended",
                    self.who
                );
            }
            ensure!(
                begin.elapsed() < limit,
                "expected the workload in {} to be ready within {} s",
                self.who,
                limit.as_secs()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Waits for its end, and reads what it reports.
    pub fn finish(&mut self, limit: Duration) -> Result<Report> {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().context("waiting for a workload")? {
                break status;
            }
            ensure!(
                begin.elapsed() < limit,
                "expected the workload in {} to end within {} s",
                self.who,
                limit.as_secs()
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        let output = text(&mut self.stdout)?;
        if !status.success() {
            let errors = text(&mut self.stderr)?;
            let errors: String = errors.chars().take(2000).collect();
            bail!("the workload in {} failed ({status}): {errors}", self.who);
        }
        match self.kind {
            Kind::Fio => fio_report(&output),
            Kind::Load => load_report(&output),
            Kind::Sh => Ok(Report::default()),
        }
        .with_context(|| format!("reading the report of the workload in {}", self.who))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Fails only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn substitute(text: &str, place: &Place<'_>, words: &Words) -> String {
    let seconds = words.seconds.map(|seconds| seconds.to_string());
    let common = [
        ("dir", place.dir.display().to_string()),
        ("files", FILES.to_owned()),
        ("name", place.name.to_owned()),
        ("weight", place.weight.to_string()),
        ("seconds", seconds.unwrap_or_default()),
        ("ramp", words.ramp.to_string()),
        ("seed", words.seed.to_string()),
    ];
    let own = place.words.iter().map(|(word, value)| (&**word, value));
    own.chain(common.iter().map(|(word, value)| (*word, value)))
        .fold(text.to_owned(), |text, (word, value)| {
            text.replace(&format!("{{{word}}}"), value)
        })
}

fn text(file: &mut File) -> Result<String> {
    file.rewind()?;
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// The sums over fio's jobs. It may print notes before its document.
fn fio_report(output: &str) -> Result<Report> {
    let document = output
        .get(output.find('{').unwrap_or(0)..)
        .unwrap_or_default();
    let document: serde_json::Value =
        serde_json::from_str(document).context("expected fio's JSON")?;
    let jobs = document
        .get("jobs")
        .and_then(serde_json::Value::as_array)
        .context("expected fio's jobs")?;
    let sum = |direction: &str, key: &str| -> u64 {
        jobs.iter()
            .filter_map(|job| job.get(direction)?.get(key)?.as_u64())
            .sum()
    };
    Ok(Report {
        read: sum("read", "io_bytes"),
        written: sum("write", "io_bytes"),
        operations: sum("read", "total_ios") + sum("write", "total_ios"),
        latencies: BTreeMap::new(),
    })
}

/// justitia-load's last line; nothing when it only prepared.
fn load_report(output: &str) -> Result<Report> {
    for line in output.lines() {
        let line: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("expected JSON, found {line:?}"))?;
        if line.get("event").and_then(serde_json::Value::as_str) == Some("final") {
            let number = |key: &str| line.get(key).and_then(serde_json::Value::as_u64);
            return Ok(Report {
                read: number("read_bytes").context("expected read_bytes")?,
                written: number("written_bytes").context("expected written_bytes")?,
                operations: number("operations").context("expected operations")?,
                latencies: latencies(&line),
            });
        }
    }
    Ok(Report::default())
}

fn latencies(last: &serde_json::Value) -> BTreeMap<String, Latency> {
    let operations = last
        .get("by_operation")
        .and_then(serde_json::Value::as_object);
    operations
        .into_iter()
        .flatten()
        .filter_map(|(name, operation)| {
            let seconds = |key: &str| Some(operation.get(key)?.as_f64()? / 1e6);
            let latency = Latency {
                p50: seconds("p50_us")?,
                p99: seconds("p99_us")?,
            };
            Some((name.clone(), latency))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_summed() {
        let fio = "note: something\n{\"jobs\":[{\"read\":{\"io_bytes\":5,\"total_ios\":1},\"write\":{\"io_bytes\":7,\"total_ios\":2}},{\"read\":{\"io_bytes\":1,\"total_ios\":1}}]}";
        let report = fio_report(fio).unwrap();
        assert_eq!((report.read, report.written, report.operations), (6, 7, 4));
        let load = "{\"event\":\"start\"}\n{\"event\":\"final\",\"read_bytes\":3,\"written_bytes\":4,\"operations\":2,\"by_operation\":{\"fsync\":{\"p50_us\":1500,\"p99_us\":250000}}}\n";
        let report = load_report(load).unwrap();
        assert_eq!((report.read, report.written, report.operations), (3, 4, 2));
        let fsync = Latency {
            p50: 0.0015,
            p99: 0.25,
        };
        assert_eq!(report.latencies.get("fsync"), Some(&fsync));
        assert!(fio_report("fio: bad option").is_err());
        assert!(load_report("Killed").is_err());
    }

    #[test]
    fn every_word_is_filled_in() {
        let cgroup = Cgroup::root();
        let place = Place {
            name: "c1",
            weight: 300,
            words: &[("trace".to_owned(), "web.msr".to_owned())].into(),
            cgroup: &cgroup,
            dir: Path::new("/data/c1"),
        };
        let words = Words {
            seconds: Some(5),
            ramp: 3,
            seed: 42,
        };
        let text = substitute(
            "{dir} {name} {weight} {seconds} {ramp} {seed} {files}/{trace} {dir}",
            &place,
            &words,
        );
        assert_eq!(
            text,
            "/data/c1 c1 300 5 3 42 /run/lab/files/web.msr /data/c1"
        );
    }
}
