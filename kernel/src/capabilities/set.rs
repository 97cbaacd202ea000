//! All capabilities of a machine.

use serde::{Deserialize, Serialize};

use super::{Capability, CapabilityId, Paths, State, detect};

/// The capabilities of this machine, one for each [`CapabilityId`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(Vec<Capability>);

impl Capabilities {
    /// Detects them. It only reads. What cannot be read is [`State::Unknown`] with the reason, so there is no error to
    /// return.
    #[must_use]
    pub fn detect(paths: &Paths) -> Self {
        Self(detect::all(paths))
    }

    /// All of them, in the order of [`CapabilityId::ALL`].
    #[must_use]
    pub fn all(&self) -> &[Capability] {
        &self.0
    }

    /// One of them; `None` only in a value that was deserialised from elsewhere.
    #[must_use]
    pub fn get(&self, id: CapabilityId) -> Option<&Capability> {
        self.0.iter().find(|capability| capability.id == id)
    }

    /// Whether the machine has it, [`State::Unknown`] if nothing is known.
    #[must_use]
    pub fn state(&self, id: CapabilityId) -> State {
        self.get(id)
            .map_or(State::Unknown, |capability| capability.state)
    }

    /// Whether the machine is known to have it.
    #[must_use]
    pub fn has(&self, id: CapabilityId) -> bool {
        self.state(id) == State::Yes
    }
}
