//! What was decided.

use serde::{Deserialize, Serialize};

/// Something that was decided; the same in a row is told as one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// Seconds since the agent started, at the last step.
    pub at: f64,
    /// The same at the first step.
    #[serde(default)]
    pub since: f64,
    /// About whom.
    pub path: String,
    /// What was done, or would be in observe mode.
    pub what: String,
    /// The facts behind it.
    pub why: String,
}
