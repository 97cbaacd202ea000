//! Kernel settings of a cgroup that the agent has written, or leaves alone.

use serde::{Deserialize, Serialize};

use crate::Reason;

/// A knob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnobStatus {
    /// Its file, with the device for `io.max`.
    pub knob: String,
    /// What stands there, or would in observe mode.
    pub stands: String,
    /// Who has put it there.
    pub by: Holder,
    /// What stood there before the agent came, if it holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// Why it has the agent's value.
    #[serde(default, alias = "why", skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Who has put a value where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// The agent.
    Agent,
    /// Nobody yet: in observe mode the agent would.
    Would,
    /// Someone else: the agent leaves it alone.
    Other,
}

/// A knob that someone else has written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Yield {
    /// The cgroup's path.
    pub path: String,
    /// The knob.
    pub knob: String,
    /// What was found there.
    pub found: String,
}
