//! Negotiates with a client: moves bytes between its socket and the handshake.

#![expect(
    clippy::indexing_slicing,
    reason = "as many bytes arrive as there is room for"
)]

use super::buffers::Input;
use super::export::Context;
use super::export::{Identity, View, transmission_flags};
use super::handshake::{Agreed, Handshake, Next, Tls};
use super::reply::Style;
use super::transport::Transport;
use crate::connections::ConnectionState;
use crate::frontend::{DiskIdentity, Volume};
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Negotiates with a client; also sets the exports that it sees. `None` when it has left, or the negotiation has failed.
pub(super) fn negotiate(
    transport: &mut Transport,
    input: &mut Input,
    context: &Context,
    on_agreed: impl FnOnce(&Transport),
) -> io::Result<Option<(Agreed, View)>> {
    let deadline = Some(Instant::now() + context.limits.negotiation);
    let mut view = view_of(context);
    let mut out = Vec::new();
    let mut handshake = Handshake::new(tls_of(context), &mut out);
    // An option may be larger than the input buffer.
    let mut option = Vec::new();
    loop {
        send_all(transport, &mut out, deadline)?;
        if let Identity::Certified(names) = &mut view.identity
            && names.is_empty()
        {
            *names = transport.client_names();
        }
        let (used, next) = handshake.step(&option, &view, &mut out);
        option.drain(..used);
        match next {
            Next::More if used > 0 => continue,
            Next::More => {}
            Next::StartTls => {
                send_all(transport, &mut out, deadline)?;
                if !option.is_empty() {
                    return Err(io::Error::other(
                        "the client sent bytes between STARTTLS and the TLS handshake",
                    ));
                }
                let config = context.tls.clone().ok_or(io::ErrorKind::Unsupported)?;
                transport.secure(config)?;
                handshake.secured();
            }
            Next::Close(why) => {
                tracing::debug!("negotiation ended: {why}");
                // The client may not wait for the answer.
                let _ = send_all(transport, &mut out, deadline);
                transport.close();
                return Ok(None);
            }
            Next::Transmission(agreed) => {
                // Call it before the client gets the reply.
                on_agreed(transport);
                send_all(transport, &mut out, deadline)?;
                pass_on(&option, input)?;
                return Ok(Some((agreed, view)));
            }
        }
        let mut chunk = [0; 4096];
        match transport.receive(&mut chunk, false) {
            Ok(0) => return Ok(None),
            Ok(count) => option.extend(&chunk[..count]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                transport.wait(true, transport.has_unsent(), [None; 3], deadline)?;
                transport.flush()?;
            }
            Err(e) => return Err(e),
        }
    }
}

fn tls_of(context: &Context) -> Tls {
    match (&context.tls, context.tls_required) {
        (None, _) => Tls::Unavailable,
        (Some(_), false) => Tls::Offered,
        (Some(_), true) => Tls::Required,
    }
}

/// The exports that a client sees before it has shown a certificate.
fn view_of(context: &Context) -> View {
    let identity = if context.certified {
        Identity::Certified(Vec::new())
    } else {
        Identity::Anonymous
    };
    View::new(Arc::clone(&context.exports), identity)
}

/// Passes on the bytes after the negotiation: requests.
fn pass_on(arrived: &[u8], input: &mut Input) -> io::Result<()> {
    let free = input
        .free_space()
        .get_mut(..arrived.len())
        .ok_or_else(|| io::Error::other("more requests than fit before the negotiation's end"))?;
    free.copy_from_slice(arrived);
    input.arrived(arrived.len());
    Ok(())
}

fn send_all(
    transport: &mut Transport,
    out: &mut Vec<u8>,
    deadline: Option<Instant>,
) -> io::Result<()> {
    while !out.is_empty() || transport.has_unsent() {
        match transport.send(&[io::IoSlice::new(out)]) {
            Ok(count) => {
                out.drain(..count);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                transport.wait(false, true, [None; 3], deadline)?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

// A client's state for the next daemon.

/// The protocol's name in the saved state.
pub(super) const PROTOCOL: &str = "nbd";

/// The values that a client has negotiated, and those that it was told.
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

    /// Does the client's information still hold?
    fn holds(&self, now: &Self) -> bool {
        self.flags & !now.flags == 0 && self.disk.holds(&now.disk)
    }
}

/// The negotiated values and the volume, if the volume is still as the client was told.
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
