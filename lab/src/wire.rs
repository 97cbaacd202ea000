//! What the host and the guest's runner say to each other: one JSON document a line, over a
//! virtio-serial port.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::{Configuration, Experiment};
use crate::report::schema::{Curve, Series, TenantValues};
use crate::vm::Throttle;

/// The port's name, under `/sys/class/virtio-ports/*/name` in the guest.
pub const PORT: &str = "org.justitia.lab";

/// How often the guest shows that it lives, in seconds.
pub const BEAT_SECONDS: u64 = 1;

/// Where the guest has an experiment's files.
pub const FILES: &str = "/run/lab/files";

/// The most that one message carries of a file, in bytes.
pub const CHUNK: usize = 1 << 20;

/// From the host.
#[derive(Debug, Serialize, Deserialize)]
pub struct ToGuest {
    /// Which request this is, or which one it answers an [`Event`] of.
    pub id: u64,
    /// What is asked.
    pub ask: Ask,
}

/// What the host asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Run a shell script in the root cgroup.
    Sh {
        /// For `sh -c`.
        script: String,
        /// It is killed after so many seconds.
        seconds: u64,
    },
    /// Write a part of a file.
    Push {
        /// Where.
        path: String,
        /// Its permissions.
        mode: u32,
        /// From which byte; 0 creates the file anew.
        offset: u64,
        /// The part, in base64.
        part: String,
    },
    /// Read a part of a file.
    Pull {
        /// Where.
        path: String,
        /// From which byte.
        offset: u64,
    },
    /// Run an experiment with one configuration.
    Run(Box<Plan>),
    /// The host did what an event asked for.
    Done,
}

/// One run of an experiment.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Which.
    pub experiment: Experiment,
    /// With whom.
    pub configuration: Configuration,
    /// With or without MGLRU; as the kernel comes when absent.
    pub mglru: Option<bool>,
    /// The workloads' seed.
    pub seed: u64,
}

/// What a run measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Whether MGLRU was on; absent where the kernel has none.
    pub mglru: Option<bool>,
    /// Each tenant's values.
    pub tenants: Vec<TenantValues>,
    /// The run's, as a whole.
    pub values: BTreeMap<String, f64>,
    /// How it went.
    pub timeline: Vec<Series>,
    /// The tenants' miss-ratio curves at the end.
    pub curves: Vec<Curve>,
}

/// From the guest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromGuest {
    /// The first message.
    Hello {
        /// `uname -r`.
        kernel: String,
    },
    /// It lives.
    Beat,
    /// The end of a request.
    Answer {
        /// Which.
        id: u64,
        /// What came of it; an error as text.
        result: Result<Answer, String>,
    },
    /// Something on the way to an answer.
    Event {
        /// Of which request.
        id: u64,
        /// What.
        event: Event,
    },
}

/// What came of a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The script's end.
    Sh(ShResult),
    /// A part was written.
    Pushed,
    /// A part was read, in base64; empty at the file's end.
    Pulled(String),
    /// The experiment ran.
    Ran(Box<Measured>),
}

/// What a script printed and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShResult {
    /// Its exit status; 128 + the signal's number when a signal ended it.
    pub status: i32,
    /// Whether it was killed because its time was up.
    pub timed_out: bool,
    /// Its standard output (the last 4 MiB), invalid UTF-8 replaced.
    pub stdout: String,
    /// Its standard error (the last 4 MiB), invalid UTF-8 replaced.
    pub stderr: String,
}

/// Something on the way.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// What is going on now, for people.
    Progress(String),
    /// Make the disk so fast. The guest waits for [`Ask::Done`].
    Disk(Throttle),
}
