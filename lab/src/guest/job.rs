//! Workloads as processes in a tenant's cgroup.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use justitia_common::kill_on_drop::KillOnDrop;

use super::cgroup::Cgroup;
use super::job_report::{self, JobReport};
use crate::experiment::Workload;
use crate::protocol::FILES;

/// How often a job that is waited for is polled.
const POLL: Duration = Duration::from_millis(10);

/// The file whose appearance starts all jobs of a phase at once.
pub(super) struct StartBarrier {
    path: PathBuf,
}

impl StartBarrier {
    /// The barrier with this number; every phase has another.
    pub(super) fn new(number: usize) -> Self {
        Self {
            path: PathBuf::from(format!("/run/lab/go-{number}")),
        }
    }

    /// Waits until all jobs are ready, then lets them start. Returns when that was.
    pub(super) fn release(&self, jobs: &mut [Job], timeout: Duration) -> Result<Instant> {
        for job in jobs {
            job.wait_ready(timeout)?;
        }
        File::create(&self.path).with_context(|| format!("creating {}", self.path.display()))?;
        Ok(Instant::now())
    }
}

/// Where a job runs: in a tenant, or outside.
pub(super) struct Target<'a> {
    /// The tenant's name.
    pub name: &'a str,
    /// Its weight.
    pub weight: u64,
    /// Its own variables.
    pub variables: &'a BTreeMap<String, String>,
    /// Its cgroup.
    pub cgroup: &'a Cgroup,
    /// Its directory on the disk.
    pub dir: &'a Path,
}

/// What the phase and the run give the variables of a workload's text.
pub(super) struct Parameters {
    /// `{seconds}`.
    pub seconds: Option<u64>,
    /// `{ramp}`.
    pub ramp: u64,
    /// `{seed}`.
    pub seed: u64,
}

/// A running workload, killed when dropped.
pub(super) struct Job {
    tenant: String,
    child: KillOnDrop,
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

/// What a job's shell runs.
struct Script {
    kind: Kind,
    text: String,
    /// The file that appears when the job waits at the barrier; `None` where it says nothing.
    ready: Option<PathBuf>,
}

impl Job {
    /// Starts it. A job that can wait at the barrier does so.
    pub(super) fn start(
        workload: &Workload,
        target: &Target<'_>,
        parameters: &Parameters,
        barrier: &StartBarrier,
    ) -> Result<Self> {
        let script = script(workload, target, parameters, barrier)?;
        let stdout = tempfile::tempfile_in("/run").context("making a file for standard output")?;
        let stderr = tempfile::tempfile_in("/run").context("making a file for standard error")?;
        let enter = format!(
            "echo $$ >{} || exit 111\n{}",
            target.cgroup.procs().display(),
            script.text
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
            tenant: target.name.to_owned(),
            child: KillOnDrop(child),
            stdout,
            stderr,
            kind: script.kind,
            ready: script.ready,
        })
    }

    /// The tenant that it runs in.
    pub(super) fn tenant(&self) -> &str {
        &self.tenant
    }

    /// An error if it has failed already.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.status()? {
            Some(status) if !status.success() => self.finish(Duration::ZERO).map(drop),
            _ => Ok(()),
        }
    }

    /// Operations that it has reported so far; 0 where it reports only at its end.
    pub(super) fn operations(&self) -> Result<u64> {
        if self.kind != Kind::Load {
            return Ok(0);
        }
        // Where the job writes is not moved.
        let mut output = vec![0; usize::try_from(self.stdout.metadata()?.len())?];
        let length = self.stdout.read_at(&mut output, 0)?;
        output.truncate(length);
        Ok(job_report::operations(&String::from_utf8_lossy(&output)))
    }

    fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("waiting for a workload")
    }

    /// Waits until it waits at the barrier.
    fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        let begin = Instant::now();
        let Some(mark) = self.ready.clone() else {
            return Ok(());
        };
        while !mark.exists() {
            if self.status()?.is_some() {
                // An error with its status and its output.
                self.finish(Duration::ZERO)?;
                bail!(
                    "expected the workload in {} to wait for its start, it ended",
                    self.tenant
                );
            }
            ensure!(
                begin.elapsed() < timeout,
                "expected the workload in {} to be ready within {} s",
                self.tenant,
                timeout.as_secs()
            );
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits for its end, and reads its report.
    pub(super) fn finish(&mut self, timeout: Duration) -> Result<JobReport> {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.status()? {
                break status;
            }
            ensure!(
                begin.elapsed() < timeout,
                "expected the workload in {} to end within {} s",
                self.tenant,
                timeout.as_secs()
            );
            std::thread::sleep(POLL);
        };
        let output = text(&mut self.stdout)?;
        if !status.success() {
            let errors = text(&mut self.stderr)?;
            let errors: String = errors.chars().take(2000).collect();
            bail!(
                "the workload in {} failed ({status}): {errors}",
                self.tenant
            );
        }
        match self.kind {
            Kind::Fio => job_report::fio(&output),
            Kind::Load => job_report::load(&output),
            Kind::Sh => Ok(JobReport::default()),
        }
        .with_context(|| format!("reading the report of the workload in {}", self.tenant))
    }
}

fn script(
    workload: &Workload,
    target: &Target<'_>,
    parameters: &Parameters,
    barrier: &StartBarrier,
) -> Result<Script> {
    let fill = |text: &str| substitute(text, target, parameters);
    let barrier = barrier.path.display();
    Ok(match workload {
        Workload::Fio(job) => {
            let file = format!("/run/lab/{}.fio", target.name);
            std::fs::write(&file, fill(job)).with_context(|| format!("writing {file}"))?;
            // fio does not wait at a barrier of its own: its shell does.
            Script {
                kind: Kind::Fio,
                text: format!(
                    "while ! test -e {barrier}; do sleep 0.01; done; exec fio --output-format=json {file}"
                ),
                ready: None,
            }
        }
        Workload::Load(arguments) => {
            let mark = PathBuf::from(format!("{barrier}-{}", target.name));
            Script {
                kind: Kind::Load,
                text: format!(
                    "exec justitia-load {} --dir {}/files --ready {} --wait-for {barrier}",
                    fill(arguments),
                    target.dir.display(),
                    mark.display(),
                ),
                // Only a run waits; preparing goes ahead.
                ready: arguments.contains("run").then_some(mark),
            }
        }
        Workload::Sh(script) => Script {
            kind: Kind::Sh,
            text: fill(script),
            ready: None,
        },
    })
}

fn substitute(text: &str, target: &Target<'_>, parameters: &Parameters) -> String {
    let seconds = parameters.seconds.map(|seconds| seconds.to_string());
    let common = [
        ("dir", target.dir.display().to_string()),
        ("files", FILES.to_owned()),
        ("name", target.name.to_owned()),
        ("weight", target.weight.to_string()),
        ("seconds", seconds.unwrap_or_default()),
        ("ramp", parameters.ramp.to_string()),
        ("seed", parameters.seed.to_string()),
    ];
    let own = target
        .variables
        .iter()
        .map(|(name, value)| (&**name, value));
    own.chain(common.iter().map(|(name, value)| (*name, value)))
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{{name}}}"), value)
        })
}

fn text(file: &mut File) -> Result<String> {
    file.rewind()?;
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_substituted() {
        let cgroup = Cgroup::root();
        let target = Target {
            name: "c1",
            weight: 300,
            variables: &[("trace".to_owned(), "web.msr".to_owned())].into(),
            cgroup: &cgroup,
            dir: Path::new("/data/c1"),
        };
        let parameters = Parameters {
            seconds: Some(5),
            ramp: 3,
            seed: 42,
        };
        let text = substitute(
            "{dir} {name} {weight} {seconds} {ramp} {seed} {files}/{trace} {dir}",
            &target,
            &parameters,
        );
        assert_eq!(
            text,
            "/data/c1 c1 300 5 3 42 /run/lab/files/web.msr /data/c1"
        );
    }
}
