//! What the next daemon must know of a client to go on with it.

use super::context::Context;
use super::encode::Style;
use super::export::transmission_flags;
use super::handshake::Agreed;
use super::registry::{Identity, View};
use crate::connections::ConnectionState;
use crate::frontend::{DiskIdentity, Volume};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;

/// The protocol's name among what is left.
pub(super) const PROTOCOL: &str = "nbd";

/// What a client has agreed on, and what it was told.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Told {
    style: Style,
    allocation: bool,
    disk: DiskIdentity,
    flags: u16,
}

impl Told {
    pub(super) fn of(volume: &Volume, style: Style, allocation: bool) -> Self {
        Self {
            style,
            allocation,
            disk: DiskIdentity::of(volume),
            flags: transmission_flags(volume),
        }
    }

    /// Is what the client was told so now?
    fn holds(&self, now: &Self) -> bool {
        self.flags & !now.flags == 0 && self.disk.holds(&now.disk)
    }
}

/// What was agreed on, and the volume, if it is still what the client was told.
pub(super) fn resume(
    state: ConnectionState,
    context: &Context,
) -> io::Result<(Agreed, Arc<Volume>)> {
    let ConnectionState { export, agreed, .. } = state;
    let closed = |why: &str| io::Error::other(format!("export {export:?}: {why}"));
    let told: Told = serde_json::from_value(agreed)?;
    if context.certified || context.tls_required {
        return Err(closed(
            "expected TLS, as it is configured now, found a client without",
        ));
    }
    let view = View::new(Arc::clone(&context.exports), Identity::Anonymous);
    let volume = view.open(&export).filter(|found| found.name() == export);
    let volume = volume.ok_or_else(|| closed("it is not served any more"))?;
    if !told.holds(&Told::of(&volume, told.style, told.allocation)) {
        return Err(closed(
            "expected the image, size and access that the client was told of, found others: it must connect again",
        ));
    }
    let agreed = Agreed {
        export,
        style: told.style,
        allocation: told.allocation,
    };
    Ok((agreed, volume))
}
