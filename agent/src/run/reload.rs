//! Applies another configuration to a running agent: to the agent itself, and to the metrics.

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

/// How long the metrics wait for the status: less than the server's timeout for their clients.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// A rule that no cgroup has matched is reported this long after it was read. By then the runtime has written the files of a
/// running container.
const UNMATCHED: Duration = Duration::from_secs(60);

/// The configuration's file, and its parts outside the agent.
#[derive(Debug)]
pub(super) struct Live {
    /// The named file; `None` for the default path.
    pub(super) file: Option<PathBuf>,
    pub(super) metrics: Exporter,
    /// The limits of the agent's work on this machine, for the status.
    pub(super) limitations: Vec<String>,
    /// Rules that no cgroup had matched at the last check, and their warnings.
    pub(super) doubts: Vec<(Rule, String)>,
    /// When the rules that no cgroup has matched are checked, once.
    pub(super) doubts_due: Option<Instant>,
}

impl Live {
    /// Everything that limits the agent's work.
    pub(super) fn limitations(&self) -> Vec<String> {
        let metrics = self.metrics.error.as_slice();
        [self.limitations.as_slice(), metrics, &self.doubts()].concat()
    }

    /// Doubtful parts of the configuration, without rules that a cgroup has matched meanwhile.
    fn doubts(&self) -> Vec<String> {
        let doubts = self.doubts.iter().filter(|(rule, _)| !rule.has_matched());
        doubts
            .map(|(_, doubt)| format!("Configuration: {doubt}"))
            .collect()
    }

    /// Records and logs doubtful parts of the configuration that was just read.
    pub(super) fn doubt(&mut self, agent: &Agent, now: Instant) {
        self.doubts.clear();
        self.doubts_due = Some(now + UNMATCHED);
        self.log_doubts(unmatched(agent, false));
    }

    /// The same for all rules that no cgroup has matched, once that is due.
    pub(super) fn doubt_late(&mut self, agent: &Agent, now: Instant) {
        if self.doubts_due.take_if(|due| now >= *due).is_some() {
            self.log_doubts(unmatched(agent, true));
        }
    }

    /// Records these doubts, and logs those that are new.
    fn log_doubts(&mut self, found: Vec<(Rule, String)>) {
        let before = std::mem::replace(&mut self.doubts, found);
        for (_, doubt) in &self.doubts {
            if !before.iter().any(|(_, told)| told == doubt) {
                tracing::warn!("{doubt}");
            }
        }
    }

    /// Reads the configuration again, and has `agent` adopt it. Returns the read files and the warnings, a line each.
    ///
    /// # Errors
    /// Everything that makes it invalid, a line each. Then nothing has changed.
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

/// The read files, the skipped ones, and the warnings.
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
    /// The current address.
    listen: Option<SocketAddr>,
    /// The configured address.
    wanted: Option<SocketAddr>,
    socket: PathBuf,
    max_tenants: Arc<AtomicUsize>,
    /// Why they are not served, if so.
    error: Option<String>,
}

impl Exporter {
    /// Serves the metrics, if configured. The agent also runs without them.
    pub(super) fn start(config: &Config) -> Self {
        let mut exporter = Self {
            server: None,
            listen: None,
            wanted: config.metrics.listen,
            socket: config.socket.clone(),
            max_tenants: Arc::default(),
            error: None,
        };
        // An unavailable address is recorded. An error is returned only for a new address.
        let _ = exporter.follow(config);
        exporter
    }

    /// Serves the metrics as configured now. A new address is served before the old one is closed. If the address is unchanged
    /// and still unavailable, that stays a limitation.
    ///
    /// # Errors
    /// If another address is unavailable. Then nothing has changed.
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
