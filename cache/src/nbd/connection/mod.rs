//! One client in the transmission phase.

mod dispatch;
mod leave;
mod receive;

use super::clients::ClientEntry;
use super::context::Context;
use super::encode::Style;
use super::handshake::Agreed;
use super::input::Input;
use super::left::resume;
use super::negotiate::negotiate;
use super::reply::{Reply, ReplyContext};
use super::request::{MAX_HEADER, Request};
use super::send_queue::SendQueue;
use super::transport::Transport;
use crate::backing::AlignedBuf;
use crate::connections::{ConnectionState, LeftConnection};
use crate::frontend::{Gate, IoQueue, Volume};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Replies are sent before more requests are looked at once there are this many bytes of them.
const MAX_UNSENT: usize = 1 << 20;

/// How long the thread of an idle connection waits in a receive, before it waits for the server's end, too.
const WAITING: Duration = Duration::from_millis(50);

/// Serves a client to the end. An error says why the connection broke; a client that leaves is none.
pub(super) fn run(transport: Transport, context: &Context, entry: &ClientEntry) -> io::Result<()> {
    let mut transport = transport;
    let mut input = Input::new();
    let on_agreed = |transport: &Transport| entry.agreed(transport.is_secure());
    let Some((agreed, view)) = negotiate(&mut transport, &mut input, context, on_agreed)? else {
        return Ok(());
    };
    let volume = view.open(&agreed.export).ok_or_else(|| {
        io::Error::other(format!("export {:?} was removed meanwhile", agreed.export))
    })?;
    let parts = (transport, input, SendQueue::default());
    serve(parts, volume, &agreed, context, entry)
}

/// Goes on with a client that the last daemon has left, as [`run`] does.
pub(super) fn go_on(
    socket: Arc<OwnedFd>,
    state: ConnectionState,
    context: &Context,
    entry: &ClientEntry,
) -> io::Result<()> {
    let input = Input::with(&state.received);
    let out = SendQueue::with(&state.unsent);
    let (agreed, volume) = resume(state, context)?;
    let parts = (Transport::new(socket), input, out);
    serve(parts, volume, &agreed, context, entry)
}

fn serve(
    parts: (Transport, Input, SendQueue),
    volume: Arc<Volume>,
    agreed: &Agreed,
    context: &Context,
    entry: &ClientEntry,
) -> io::Result<()> {
    let limit = context.limits.io.vm_connections;
    let _permit = volume.vm().connect(limit).ok_or_else(|| {
        io::Error::other(format!(
            "the VM of export {:?} has {limit} connections already, which is the limit of one VM",
            agreed.export
        ))
    })?;
    parts.0.bound_waiting(WAITING)?;
    let connection = Connection::new(parts, volume, agreed, context, entry)?;
    let left = connection.serve();
    let left =
        left.map_err(|e| io::Error::new(e.kind(), format!("export {:?}: {e}", agreed.export)))?;
    if let Some(left) = left {
        entry.leave(left);
    }
    Ok(())
}

/// A client in the transmission phase.
struct Connection<'a> {
    transport: Transport,
    input: Input,
    out: SendQueue,
    queue: IoQueue<ReplyContext>,
    /// Empty between two turns of the loop.
    replies: Vec<Reply>,
    volume: Arc<Volume>,
    context: &'a Context,
    entry: &'a ClientEntry,
    gate: Arc<Gate>,
    style: Style,
    /// `base:allocation` was negotiated.
    allocation: bool,
    /// A request whose payload has not arrived as a whole.
    partial: Option<Partial>,
    /// Since when the client has taken nothing of the replies that wait for it.
    stalled: Option<Instant>,
    /// No more requests come; what is in flight is finished.
    closing: bool,
    /// No more requests are taken; once what is in flight is finished, the next daemon goes on.
    leaving: bool,
}

struct Partial {
    request: Request,
    /// As it came: the first so many bytes.
    header: ([u8; MAX_HEADER], usize),
    payload: AlignedBuf,
    filled: usize,
}

impl<'a> Connection<'a> {
    fn new(
        (transport, input, out): (Transport, Input, SendQueue),
        volume: Arc<Volume>,
        agreed: &Agreed,
        context: &'a Context,
        entry: &'a ClientEntry,
    ) -> io::Result<Self> {
        Ok(Self {
            queue: IoQueue::new(&volume, &context.executor, context.limits.io)?,
            gate: volume.gates.enter(transport.socket()),
            transport,
            input,
            out,
            replies: Vec::new(),
            volume,
            context,
            entry,
            style: agreed.style,
            allocation: agreed.allocation,
            partial: None,
            stalled: None,
            closing: false,
            leaving: false,
        })
    }

    /// Returns the connection if the next daemon is to go on with it.
    fn serve(mut self) -> io::Result<Option<LeftConnection>> {
        loop {
            self.leaving = self.leaving || self.entry.is_leaving();
            self.queue.collect(&mut self.replies);
            for reply in self.replies.drain(..) {
                self.out.push(reply);
            }
            let more_arrived = self.take_requests()?;
            self.queue.submit();
            self.send()?;
            let is_answered = self.queue.len() == 0;
            if is_answered && self.leaving && !self.closing {
                return self.leave();
            }
            if is_answered && self.closing && self.out.is_empty() {
                self.transport.close();
                return Ok(None);
            }
            // Stopped at a limit, and the replies are sent: go on with what has arrived.
            if !(more_arrived && self.has_capacity()) {
                self.receive()?;
            }
        }
    }

    /// Sends what the client takes.
    fn send(&mut self) -> io::Result<()> {
        let before = self.transport.sent();
        self.out.send(&mut self.transport)?;
        if !self.has_unsent() {
            self.stalled = None;
        } else if self.stalled.is_none() || self.transport.sent() != before {
            self.stalled = Some(Instant::now());
        }
        Ok(())
    }

    /// Are there bytes that the client has not taken?
    fn has_unsent(&self) -> bool {
        !self.out.is_empty() || self.transport.has_unsent()
    }

    /// May more requests be taken?
    fn has_capacity(&self) -> bool {
        // A payload that has begun must end: it was within the limits when its header came.
        let within_limits = self.partial.is_some() || self.queue.has_capacity();
        !self.closing && !self.leaving && self.out.len() < MAX_UNSENT && within_limits
    }
}
