//! The protocol between the host and the guest's runner: one JSON document a line, over a
//! virtio-serial port.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::{Configuration, Experiment};
use crate::report::schema::{Curve, Series, TenantValues};
use crate::spec::Throttle;

/// The port's name, under `/sys/class/virtio-ports/*/name` in the guest.
pub(crate) const PORT: &str = "org.justitia.lab";

/// The interval of the guest's heartbeats, in seconds.
pub(crate) const HEARTBEAT_SECONDS: u64 = 1;

/// Where the guest has an experiment's files.
pub(crate) const FILES: &str = "/run/lab/files";

/// The most that one message carries of a file, in bytes.
pub(crate) const CHUNK: usize = 1 << 20;

/// From the host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HostMessage {
    /// The request's number; of [`Request::Done`], the number of the request whose [`Event`] it answers.
    pub id: u64,
    /// What is requested.
    pub request: Request,
}

/// What the host requests.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Run a shell script in the root cgroup.
    Sh {
        /// For `sh -c`.
        script: String,
        /// It is killed after this many seconds.
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
    /// Run an experiment with one configuration.
    Run(Box<RunRequest>),
    /// The host did what an event requested.
    Done,
}

/// One run of an experiment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunRequest {
    /// The experiment.
    pub experiment: Experiment,
    /// The configuration.
    pub configuration: Configuration,
    /// With or without MGLRU; the kernel's default when absent.
    pub mglru: Option<bool>,
    /// The workloads' seed.
    pub seed: u64,
}

/// What a run measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measurements {
    /// Whether MGLRU was on; absent where the kernel has none.
    pub mglru: Option<bool>,
    /// Each tenant's values.
    pub tenants: Vec<TenantValues>,
    /// The values of the run as a whole.
    pub values: BTreeMap<String, f64>,
    /// The tenants' values over time.
    pub timeline: Vec<Series>,
    /// The tenants' miss-ratio curves at the end.
    pub curves: Vec<Curve>,
}

/// From the guest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GuestMessage {
    /// The first message.
    Ready {
        /// `uname -r`.
        kernel: String,
    },
    /// The guest is alive.
    Heartbeat,
    /// The end of a request.
    Response {
        /// The request's number.
        id: u64,
        /// Its result; an error as text.
        result: Result<Response, String>,
    },
    /// Something before the end of a request.
    Event {
        /// The request's number.
        id: u64,
        /// What happened.
        event: Event,
    },
}

/// The result of a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Response {
    /// The script's end.
    Sh(ShResult),
    /// A part was written.
    Pushed,
    /// The experiment ran.
    Ran(Box<Measurements>),
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

/// Something before the end of a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// What is going on now, for people.
    Progress(String),
    /// Set the disk's speed. The guest waits for [`Request::Done`].
    Disk(Throttle),
}
