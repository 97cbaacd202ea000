//! One client in the transmission phase.

mod dispatch;
mod receive;

use super::context::Context;
use super::encode::Style;
use super::handshake::Agreed;
use super::input::Input;
use super::negotiate::negotiate;
use super::reply::{Reply, ReplyContext};
use super::request::Request;
use super::send_queue::SendQueue;
use super::transport::Transport;
use crate::backing::AlignedBuf;
use crate::frontend::{Gate, IoQueue, Volume};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Replies are sent before more requests are looked at once there are this many bytes of them.
const MAX_UNSENT: usize = 1 << 20;

/// Serves a client to the end; `on_agreed` is called when it has negotiated. An error says why the connection broke; a
/// client that leaves is none.
pub(super) fn run(
    transport: Transport,
    context: &Context,
    on_agreed: impl FnOnce(),
) -> io::Result<()> {
    let mut transport = transport;
    let mut input = Input::new();
    let Some((agreed, view)) = negotiate(&mut transport, &mut input, context, on_agreed)? else {
        return Ok(());
    };
    let volume = view.open(&agreed.export).ok_or_else(|| {
        io::Error::other(format!("export {:?} was removed meanwhile", agreed.export))
    })?;
    let limit = context.limits.io.vm_connections;
    let _permit = volume.tenant().connect(limit).ok_or_else(|| {
        io::Error::other(format!(
            "the VM of export {:?} has {limit} connections already, which is the limit of one VM",
            agreed.export
        ))
    })?;
    let served = Connection::new(transport, input, volume, &agreed, context)?.serve();
    served.map_err(|e| io::Error::new(e.kind(), format!("export {:?}: {e}", agreed.export)))
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
}

struct Partial {
    request: Request,
    payload: AlignedBuf,
    filled: usize,
}

impl<'a> Connection<'a> {
    fn new(
        transport: Transport,
        input: Input,
        volume: Arc<Volume>,
        agreed: &Agreed,
        context: &'a Context,
    ) -> io::Result<Self> {
        Ok(Self {
            queue: IoQueue::new(&volume, &context.executor, context.limits.io)?,
            gate: volume.gates.enter(transport.socket()),
            transport,
            input,
            out: SendQueue::default(),
            replies: Vec::new(),
            volume,
            context,
            style: agreed.style,
            allocation: agreed.allocation,
            partial: None,
            stalled: None,
            closing: false,
        })
    }

    fn serve(mut self) -> io::Result<()> {
        loop {
            self.queue.collect(&mut self.replies);
            for reply in self.replies.drain(..) {
                self.out.push(reply);
            }
            let more_arrived = self.take_requests()?;
            self.queue.submit();
            self.send()?;
            if self.closing && self.queue.len() == 0 && self.out.is_empty() {
                self.transport.close();
                return Ok(());
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
        !self.closing && self.out.len() < MAX_UNSENT && within_limits
    }
}
