//! What the NBD server allows its clients.

use crate::frontend::IoLimits;
use std::time::Duration;

/// What a server allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of a listener at a time. More are refused, except that the oldest connection that still negotiates
    /// is closed for a new one.
    pub connections: usize,
    /// Time for a client to negotiate.
    pub negotiation: Duration,
    /// Time in which a client must take at least a part of the replies that wait for it.
    pub send: Duration,
    /// Requests in flight, and the threads that execute them.
    pub io: IoLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            negotiation: Duration::from_secs(15),
            send: Duration::from_secs(120),
            io: IoLimits::default(),
        }
    }
}
