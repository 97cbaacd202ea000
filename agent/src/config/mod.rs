//! Configuration: optional, and small. What people set on their cgroups is where weights come from;
//! this only overrides it.
//!
//! ```toml
//! socket = "/run/justitia/justitia.sock"  # `justitia status` asks here
//! state = "/run/justitia"                 # the ledger: what stood in each knob before; on a tmpfs
//! cpu_budget = 1.0                        # percent of one CPU that observing may cost
//!
//! latency = false                         # time every read, write and fsync (some 100 ns each)
//!
//! [eyes]                                  # room for what the probes count; the rest is counted together
//! cgroups = 2048                          # 192 bytes each and processor
//! requests = 16384                        # of libaio, or held back by io.max, at one time
//! shared_files = 4096                     # pairs of a file and a tenant that uses it
//!
//! [metrics]
//! listen = "127.0.0.1:9742"               # OpenMetrics over HTTP; "" for none
//! tenants = 1000                          # at most so many get series of their own
//!
//! [credits]                               # device credits: `io.max` and `memory.high` under contention
//! enabled = false                         # off unless switched on: see docs/design/device.md
//!
//! [ownership]                             # pages of shared files belong to their heaviest user
//! enabled = false                         # off unless switched on: see docs/design/device.md
//! every = "60s"                           # how often to look for such files, for 5 s
//!
//! [cache]
//! demand = "use"                          # what a tenant uses again and again comes first; "usage": whatever it holds
//!                                         # or takes in counts alike
//!
//! [pressure]
//! thrash = 60                             # PSI full avg10, percent: who waits more for memory is left alone
//!
//! [outside]                               # what runs outside any managed cgroup
//! weight = 100
//!
//! [[tenant]]
//! match = "system.slice/docker-*.scope"   # a path below the cgroup mount; `*` stays within a name
//! weight = 300                            # 1..10000, instead of io.weight
//! floor = "64MiB"                         # file pages that are never taken (in a subtree that is delegated to
//!                                         # a user: of what that subtree gets)
//!
//! [[tenant]]
//! match = "system.slice/backup.service"
//! exclude = true                          # leave it and everything below it alone (in a subtree that is delegated:
//!                                         # only where `match` has no wildcards)
//!
//! [[tenant]]
//! match = "machine.slice/vendor.scope"
//! delegated = true                        # others make the cgroups below it: what these say counts inside only
//! ```
//!
//! Drop-ins (`justitia.toml.d/*.toml`, in the order of their names) are read after the main file: a later
//! scalar replaces an earlier one, a later `[[tenant]]` wins over an earlier one that matches too.

mod file;
mod read;
mod state;
mod tenant;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use justitia_kernel::probes::Limits;
use justitia_share::Weight;

use crate::escape;
use crate::plan::Policy;

pub use state::StateOnDisk;
pub use tenant::{Override, Rule};

/// Where the configuration is looked for when none is named.
pub const DEFAULT_PATH: &str = "/etc/justitia/justitia.toml";

/// What the agent was told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The status socket.
    pub socket: PathBuf,
    /// Where the ledger lives.
    pub state: PathBuf,
    /// The part of one CPU that observing may cost, 0.001 to 1.
    pub cpu_budget: f64,
    /// Whether calls are timed.
    pub latency: bool,
    /// How much the probes can count apart.
    pub eyes: Limits,
    /// Where OpenMetrics are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// How many tenants have series of their own there.
    pub metrics_tenants: usize,
    /// Whether disks are shared by credits (`io.max`, and where writers contend `memory.high` and `vm.dirty_background_ratio`).
    pub credits: bool,
    /// Whether the pages of shared files are handed to their heaviest user.
    pub ownership: bool,
    /// How often such files are looked for, 10 s to a day.
    pub ownership_every: Duration,
    /// The planners' constants.
    pub policy: Policy,
    /// The weight of what runs outside any managed cgroup.
    pub outside: Weight,
    /// Overrides by path, later ones first.
    pub rules: Vec<Rule>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/run/justitia/justitia.sock"),
            state: PathBuf::from("/run/justitia"),
            cpu_budget: 0.01,
            latency: false,
            eyes: Limits::default(),
            metrics: Some(SocketAddr::from(([127, 0, 0, 1], 9742))),
            metrics_tenants: 1000,
            credits: false,
            ownership: false,
            ownership_every: Duration::from_secs(60),
            policy: Policy::default(),
            outside: Weight::default(),
            rules: Vec::new(),
        }
    }
}

/// One thing that is wrong with a configuration file. Its text and its name are shown so that a terminal is safe of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}{}: {}",
    escape::encode(path.as_os_str()),
    if *line == 0 { String::new() } else { format!(":{line}") },
    escape::plain(what)
)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 if it is about the whole file.
    pub line: usize,
    /// What was expected and what was found.
    pub what: String,
}

/// A configuration, and what it was made of.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// The files that were read, in this order.
    pub files: Vec<PathBuf>,
    /// Files among the drop-ins that were passed over: their names do not end in `.toml`.
    pub skipped: Vec<PathBuf>,
    /// What is allowed and can hardly be meant, by file and line.
    pub warnings: Vec<ConfigError>,
}

impl Config {
    /// Reads `path` (or the default place, where a missing file is no error) and its drop-ins, regular files of at
    /// most 1 MiB each.
    ///
    /// # Errors
    /// Everything that is wrong, in all files.
    pub fn load(path: Option<&Path>) -> Result<Self, Vec<ConfigError>> {
        Self::check(path).map(|checked| checked.config)
    }

    /// As [`Config::load`], and says what was read and what is odd.
    ///
    /// # Errors
    /// Everything that is wrong, in all files.
    pub fn check(path: Option<&Path>) -> Result<Checked, Vec<ConfigError>> {
        let (checked, errors) = Self::read(path);
        if errors.is_empty() {
            Ok(checked)
        } else {
            Err(errors)
        }
    }

    /// Where the ledger is, whatever else is wrong with the configuration: giving back what an agent has left must not
    /// wait for somebody to correct it. Also returns what is wrong.
    #[must_use]
    pub fn state_of(path: Option<&Path>) -> (PathBuf, Vec<ConfigError>) {
        let (checked, errors) = Self::read(path);
        (checked.config.state, errors)
    }

    /// What can be read, and what is wrong.
    fn read(path: Option<&Path>) -> (Checked, Vec<ConfigError>) {
        let main = path.unwrap_or(Path::new(DEFAULT_PATH));
        let mut config = Self::default();
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        let mut drop_in_dir = main.as_os_str().to_owned();
        drop_in_dir.push(".d");
        let (mut files, skipped) = drop_ins(Path::new(&drop_in_dir)).unwrap_or_else(|error| {
            errors.push(error);
            Default::default()
        });
        if path.is_some() || main.exists() {
            files.insert(0, main.to_owned());
        }
        for file in &files {
            match file::read(file) {
                Ok(text) => read::apply(&mut config, file, &text, &mut errors, &mut warnings),
                Err(error) => errors.push(error),
            }
        }
        config.rules.reverse();
        let checked = Checked {
            config,
            files,
            skipped,
            warnings,
        };
        (checked, errors)
    }

    /// What the rules say of the cgroup at `path` (below the mount): for each matter, the last rule that matches and
    /// speaks of it. Where somebody else may have `made` it and chosen its name, it is excluded only by a rule without
    /// wildcards.
    #[must_use]
    pub fn overrides(&self, path: &Path, made: bool) -> Override {
        let mut sum = Override::default();
        for rule in self.rules.iter().filter(|r| r.is_match(path)) {
            sum.weight = sum.weight.or(rule.says.weight);
            sum.floor = sum.floor.or(rule.says.floor);
            sum.delegated = sum.delegated.or(rule.says.delegated);
            if !made || rule.is_literal() {
                sum.exclude = sum.exclude.or(rule.says.exclude);
            }
        }
        sum
    }
}

/// The drop-ins, and the files beside them that are none.
fn drop_ins(dir: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), ConfigError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(e) => return Err(file::error(dir, 0, format!("cannot be read: {e}"))),
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort();
    Ok(files
        .into_iter()
        .partition(|p| p.extension().is_some_and(|e| e == "toml")))
}

#[cfg(test)]
mod tests;
