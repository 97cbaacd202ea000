//! Kernel settings of a cgroup that the agent has written, or leaves alone.

use serde::{Deserialize, Serialize};

use crate::Reason;

/// A knob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnobStatus {
    /// Its file, with the device for `io.max`.
    pub knob: String,
    /// Its value; in observe mode, the value that it would get. Empty if the agent has given it up.
    pub value: String,
    /// Who wrote the value.
    pub owner: KnobOwner,
    /// The value before the agent wrote it, if the agent owns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// Why it has the agent's value, or why the agent has given it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Who wrote a knob's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnobOwner {
    /// The agent.
    Agent,
    /// Nobody yet: the agent would write it, but only observes.
    Proposed,
    /// Another process: the agent leaves it alone.
    External,
    /// Not the agent, which has given the knob up: the kernel refused its write, or took too long for it.
    GivenUp,
}

/// A knob that the agent leaves alone: another process has set it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExternalKnob {
    /// The cgroup's path.
    pub path: String,
    /// The knob.
    pub knob: String,
    /// The value found there. Agents of version 1 tell refused writes as external, too, without a value.
    pub value: String,
}

/// A knob that the agent does not write any more: the kernel refused its write, or took too long for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUpKnob {
    /// The cgroup's path.
    pub path: String,
    /// The knob.
    pub knob: String,
    /// What happened, in words.
    pub reason: String,
}
