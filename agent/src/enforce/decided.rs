//! What was decided about a tenant, for the decision log.

use justitia_api::{Action, Reason};

use crate::model::Key;

/// An action on a tenant, done or, in observe mode, only decided, and the reason for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The tenant.
    pub key: Key,
    /// What was done.
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

impl Decided {
    /// A decision about the tenant `key`.
    pub fn new(key: Key, action: Action, reason: impl Into<Reason>) -> Self {
        let reason = reason.into();
        Self {
            key,
            action,
            reason,
        }
    }
}
