//! What of a running agent another configuration changes: the agent itself, and the metrics.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use justitia_api::client::ask_within;
use justitia_api::escape;
use justitia_cgroup_tree::Rule;
use justitia_common::metrics::Server;

use super::checks::unmatched;
use crate::agent::Agent;
use crate::config::{Checked, Config};
use crate::status::metrics;

/// How long the metrics wait for the status: less than their clients are served for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// A rule that no cgroup has matched for so long after it was read is told. Of a container that runs a runtime has written the
/// files by then.
const UNMATCHED: Duration = Duration::from_secs(60);

/// The configuration's file, and what follows it beside the agent.
#[derive(Debug)]
pub(super) struct Live {
    /// The file that was named; `None` for the default place.
    pub(super) file: Option<PathBuf>,
    pub(super) metrics: Exporter,
    /// What limits the agent's work on this machine, for the status.
    pub(super) limitations: Vec<String>,
    /// Rules that no cgroup had matched when that was last looked at, and what is told of them.
    pub(super) doubts: Vec<(Rule, String)>,
    /// When rules that no cgroup has matched are looked for, once.
    pub(super) doubts_due: Option<Instant>,
}

impl Live {
    /// Everything that limits the agent's work.
    pub(super) fn limitations(&self) -> Vec<String> {
        let metrics = self.metrics.error.as_slice();
        [self.limitations.as_slice(), metrics, &self.doubts()].concat()
    }

    /// What the configuration can hardly mean: nothing of rules that a cgroup has matched meanwhile.
    fn doubts(&self) -> Vec<String> {
        let doubts = self.doubts.iter().filter(|(rule, _)| !rule.has_matched());
        doubts
            .map(|(_, doubt)| format!("Configuration: {doubt}"))
            .collect()
    }

    /// Notes of the configuration in use, which was just read, what it can hardly mean, and logs it.
    pub(super) fn doubt(&mut self, agent: &Agent, now: Instant) {
        self.doubts.clear();
        self.doubts_due = Some(now + UNMATCHED);
        self.log_doubts(unmatched(agent, false));
    }

    /// The same of all rules that no cgroup has matched, once that is due.
    pub(super) fn doubt_late(&mut self, agent: &Agent, now: Instant) {
        if self.doubts_due.take_if(|due| now >= *due).is_some() {
            self.log_doubts(unmatched(agent, true));
        }
    }

    /// Takes these for the doubts, and logs those that are new.
    fn log_doubts(&mut self, found: Vec<(Rule, String)>) {
        let before = std::mem::replace(&mut self.doubts, found);
        for (_, doubt) in &self.doubts {
            if !before.iter().any(|(_, told)| told == doubt) {
                tracing::warn!("{doubt}");
            }
        }
    }

    /// Reads the configuration again, and has `agent` go on with it. Returns what was read, and what is odd, a line each.
    ///
    /// # Errors
    /// Everything that keeps it from being used, a line each. Then nothing has changed.
    pub(super) fn reload(&mut self, agent: &mut Agent) -> Result<Vec<String>, Vec<String>> {
        let checked = Config::check_owned(self.file.as_deref())
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let Checked { config, .. } = &checked;
        let fixed = agent.config.fixed(config);
        let fixed = fixed.iter().map(|key| {
            format!("{key} cannot change while the agent runs: restart to change it (`systemctl restart justitia`)")
        });
        let mut errors: Vec<String> = fixed.collect();
        let state = config.state_on_disk().filter(|state| state.refused());
        errors.extend(
            state
                .filter(|_| agent.knobs.is_some())
                .map(|s| s.to_string()),
        );
        if !errors.is_empty() {
            return Err(errors);
        }
        // The last step that can fail.
        self.metrics.follow(config).map_err(|error| vec![error])?;
        let lines = told(&checked);
        let now = Instant::now();
        agent.reconfigure(checked.config, now);
        self.doubt(agent, now);
        Ok([lines, self.doubts()].concat())
    }
}

/// What was read, what not, and what is odd.
fn told(checked: &Checked) -> Vec<String> {
    let name = |path: &PathBuf| escape::encode(path.as_os_str());
    let read = checked.files.iter().map(|f| format!("read: {}", name(f)));
    let skipped = checked.skipped.iter();
    let skipped = skipped.map(|file| {
        format!(
            "not read: {} (a drop-in's name ends with .toml)",
            name(file)
        )
    });
    let warnings = checked.warnings.iter().map(|w| format!("warning: {w}"));
    let mut lines: Vec<String> = read.chain(skipped).chain(warnings).collect();
    if checked.files.is_empty() {
        lines.push("no configuration file; defaults apply".to_owned());
    }
    lines
}

/// The server of the metrics, if any.
#[derive(Debug)]
pub(super) struct Exporter {
    server: Option<Server>,
    /// Where they are served.
    listen: Option<SocketAddr>,
    /// Where they are to be served.
    wanted: Option<SocketAddr>,
    socket: PathBuf,
    max_tenants: Arc<AtomicUsize>,
    /// Why they are not served, if so.
    error: Option<String>,
}

impl Exporter {
    /// Serves the metrics, if that is configured. The agent also runs if it cannot.
    pub(super) fn start(config: &Config) -> Self {
        let mut exporter = Self {
            server: None,
            listen: None,
            wanted: config.metrics.listen,
            socket: config.socket.clone(),
            max_tenants: Arc::default(),
            error: None,
        };
        // An address that cannot be had is noted. An error is returned only for one that is not wanted yet.
        let _ = exporter.follow(config);
        exporter
    }

    /// Serves them as configured now. At another address they are served there before they are no more at the old one. Where
    /// the address is the same as before and still cannot be had, that limits the agent as it did.
    ///
    /// # Errors
    /// If another address cannot be had. Then nothing has changed.
    fn follow(&mut self, config: &Config) -> Result<(), String> {
        let max = config.metrics.max_tenants;
        let listen = config.metrics.listen;
        if listen != self.listen || self.error.is_some() {
            match listen.map(|address| self.serve(address)).transpose() {
                Ok(server) => (self.server, self.listen, self.error) = (server, listen, None),
                Err(error) if listen == self.wanted => self.error = Some(error),
                Err(error) => return Err(error),
            }
        }
        self.wanted = listen;
        self.max_tenants.store(max, Ordering::Relaxed);
        Ok(())
    }

    fn serve(&self, address: SocketAddr) -> Result<Server, String> {
        let (socket, max_tenants) = (self.socket.clone(), Arc::clone(&self.max_tenants));
        let text = move || {
            let status = ask_within(&socket, ANSWER_TIMEOUT)
                .map_err(|e| format!("the agent does not answer: {e}"))?;
            metrics::text(&status, max_tenants.load(Ordering::Relaxed))
        };
        Server::start(address, text)
            .map_err(|error| format!("Metrics are not served at {address}: {error}"))
    }
}
