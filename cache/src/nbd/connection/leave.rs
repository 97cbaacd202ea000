//! Leaving a connection to the next daemon.

#![expect(
    clippy::indexing_slicing,
    reason = "what was filled of a payload is at most its length"
)]

use super::Connection;
use crate::connections::{ConnectionState, LeftConnection};
use crate::nbd::left::{PROTOCOL, Told};
use std::io;

impl Connection<'_> {
    /// The connection, of which nothing is in flight, for the next daemon, which also sends what its client has not taken. `None` when its client is back elsewhere: what it
    /// has sent here is void.
    pub(super) fn leave(self) -> io::Result<Option<LeftConnection>> {
        if self.gate.pass().is_none() {
            return Ok(None);
        }
        let mut received = Vec::new();
        if let Some(partial) = &self.partial {
            let (header, bytes) = &partial.header;
            received.extend(&header[..*bytes]);
            received.extend(&partial.payload[..partial.filled]);
        }
        received.extend(self.input.pending());
        let told = Told::of(&self.volume, self.style, self.allocation);
        Ok(Some(LeftConnection {
            socket: self.transport.socket().try_clone()?,
            others: Vec::new(),
            state: ConnectionState {
                protocol: PROTOCOL.to_owned(),
                export: self.volume.name().to_owned(),
                agreed: serde_json::to_value(told)?,
                received,
                unsent: self.out.unsent(),
            },
        }))
    }
}
