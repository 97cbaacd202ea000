//! The thread of a listener: accepts clients, each of which gets a thread of its own.

use super::clients::Clients;
use super::connection::{go_on, run};
use super::context::Context;
use super::peer::Peer;
use super::transport::Transport;
use crate::connections::{ConnectionState, LeftConnection};
use crate::frontend::Waker;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Time without traffic after which TCP sends a keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Probes without an answer after which a client counts as gone.
const KEEPALIVE_PROBES: u32 = 6;

pub(super) struct Acceptor {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) waker: Waker,
    pub(super) tcp: bool,
    pub(super) clients: Arc<Clients>,
    pub(super) context: Arc<Context>,
}

impl Acceptor {
    /// Accepts clients until the server closes.
    pub(super) fn run(&self) {
        loop {
            self.waker.wait(&self.socket);
            if self.clients.is_closing() {
                return;
            }
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => self.start_client(Arc::new(socket), None),
                // It has left again.
                Err(Errno::AGAIN) => {}
                Err(e) => {
                    // Out of descriptors or the like: it passes.
                    tracing::warn!("cannot accept a client: {e}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Goes on with clients that the last daemon has left.
    pub(super) fn take(&self, left: Vec<LeftConnection>) {
        for connection in left {
            let LeftConnection { socket, state, .. } = connection;
            self.start_client(Arc::new(socket), Some(state));
        }
    }

    /// Serves a client, which negotiates unless the last daemon has left its state.
    fn start_client(&self, socket: Arc<OwnedFd>, left: Option<ConnectionState>) {
        let limits = self.context.limits;
        let peer = Peer::of(&socket, self.tcp);
        if self.tcp
            && let Err(e) = set_up_tcp(&socket, limits.send)
        {
            return self.refused(&peer, &format!("cannot set its socket up: {e}"));
        }
        let Some(entry) = self.clients.add(&socket, limits.connections) else {
            let connected = limits.connections;
            return self.refused(
                &peer,
                &format!("{connected} are connected, which is the limit"),
            );
        };
        if left.is_some() {
            // Before its thread runs: the server may be closed again by then.
            entry.agreed(false);
        }
        let context = Arc::clone(&self.context);
        let started = std::thread::Builder::new()
            .name("justitia-nbd".into())
            .spawn(move || {
                let served = match left {
                    Some(state) => go_on(socket, state, &context, &entry),
                    None => run(Transport::new(socket), &context, &entry),
                };
                if let Err(e) = served
                    && let Some(left_out) = context.log.permit()
                {
                    tracing::info!(%peer, "a client's connection broke: {e}{left_out}");
                }
            });
        if let Err(e) = started {
            tracing::error!("cannot start a thread for a client: {e}");
        }
    }

    fn refused(&self, peer: &Peer, why: &str) {
        if let Some(left_out) = self.context.log.permit() {
            tracing::warn!(%peer, "refused a client: {why}{left_out}");
        }
    }
}

/// Sends replies at once, and detects a client whose machine is gone: by keepalive probes when nothing is under way to
/// it, else by the user timeout of what it does not acknowledge.
fn set_up_tcp(socket: &OwnedFd, send: Duration) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    let send = u32::try_from(send.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, send)
}
