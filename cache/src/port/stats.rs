//! What came over a port.

use justitia_link::{Status, Verdict};
use serde::Serialize;
use std::collections::BTreeMap;

/// What came over the port of a VM since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortStats {
    /// The VM.
    pub vm: String,
    /// Messages handled.
    pub messages: u64,
    /// Writes that were no message, and messages that were wrong.
    pub malformed: u64,
    /// Messages that were handled before, or were too old.
    pub replayed: u64,
    /// Commands executed.
    pub commands: u64,
    /// Commands refused.
    pub commands_refused: u64,
    /// Offered blocks, by what became of them.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// Offered blocks whose pool was unknown: the default pool took them.
    pub unknown_pool: u64,
}

impl PortStats {
    /// Counts a command.
    pub(super) const fn command(&mut self, status: Status) {
        match status {
            Status::Done => self.commands += 1,
            _ => self.commands_refused += 1,
        }
    }

    /// All verdicts, with those that did not occur.
    pub(super) fn set_verdicts(&mut self, of: impl Fn(Verdict) -> u64) {
        self.verdicts = Verdict::ALL.map(|v| (v.name(), of(v))).into();
    }
}
