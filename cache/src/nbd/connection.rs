//! One client in the transmission phase.

#![expect(
    clippy::indexing_slicing,
    reason = "positions of our own buffers, not what a client sent"
)]

use super::buffers::{INPUT, Input, SendQueue};
use super::clients::ClientEntry;
use super::export::Context;
use super::handshake::Agreed;
use super::negotiate::{PROTOCOL, Told, negotiate, resume};
use super::reply::{self, Reply, ReplyContext, Style};
use super::request::{Command, MAX_HEADER, Parsed, Refusal, Request, parse};
use super::transport::Transport;
use crate::backing::AlignedBuf;
use crate::connections::{ConnectionState, LeftConnection};
use crate::frontend::{Gate, IoQueue, IoRequest, Operation, Outcome, RequestContext, Volume};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Above this many bytes of replies, they are sent before more requests are taken.
const MAX_UNSENT: usize = 1 << 20;

/// The time that an idle connection's thread waits in a receive before it also waits for the server's end.
const WAITING: Duration = Duration::from_millis(50);

/// Serves a client to the end. Returns why the connection broke; a client that leaves is no error.
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

/// Resumes a client that the last daemon has left, as [`run`] does.
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
    /// A request with an incomplete payload.
    partial: Option<Partial>,
    /// The time since which the client has taken none of its waiting replies.
    stalled: Option<Instant>,
    /// No more requests come; those in flight are finished.
    closing: bool,
    /// No more requests are taken. The next daemon resumes the connection once those in flight are finished.
    leaving: bool,
}

struct Partial {
    request: Request,
    /// The received header and its length.
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

    /// Returns the connection if the next daemon is to resume it.
    fn serve(mut self) -> io::Result<Option<LeftConnection>> {
        match self.answer() {
            Ok(true) => self.leave(),
            Ok(false) => Ok(None),
            Err(e) => {
                self.drain();
                Err(e)
            }
        }
    }

    /// Answers until the client is gone. Returns `true` if the next daemon is to resume it.
    fn answer(&mut self) -> io::Result<bool> {
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
                return Ok(true);
            }
            if is_answered && self.closing && self.out.is_empty() {
                self.transport.close();
                return Ok(false);
            }
            // If it stopped at a limit and has sent the replies, it continues with the received requests.
            if !(more_arrived && self.has_capacity()) {
                self.receive()?;
            }
        }
    }

    /// Waits for requests in flight, though the client is gone: a failed flush is remembered, writes leave the order of writes,
    /// and the connection counts against its VM's limit until then.
    fn drain(&mut self) {
        self.transport.shut_down();
        loop {
            self.queue.collect(&mut self.replies);
            self.replies.clear();
            self.queue.submit();
            if self.queue.len() == 0 {
                return;
            }
            self.queue.wait();
        }
    }

    /// Sends as much as the client takes.
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
        // A started payload must be completed: it was within the limits when its header came.
        let within_limits = self.partial.is_some() || self.queue.has_capacity();
        !self.closing && !self.leaving && self.out.len() < MAX_UNSENT && within_limits
    }
}

// Waiting for the client and for requests in flight.

impl Connection<'_> {
    /// Waits for something to do, and receives what has arrived.
    pub(super) fn receive(&mut self) -> io::Result<()> {
        let want = self.has_capacity();
        let idle = self.queue.len() == 0 && !self.has_unsent();
        if want && idle {
            // Only the client is likely to act, so the receive itself waits for a while. That is faster than poll.
            match self.receive_now(true) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        // TLS may hold received bytes that poll does not report.
        if want && self.transport.is_secure() {
            match self.receive_now(false) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        let wake = !self.leaving && !self.closing && self.entry.wants_to_know();
        if wake && self.entry.is_leaving() {
            return Ok(());
        }
        if !self.queue.may_sleep() {
            return Ok(());
        }
        let limit = self.context.limits.send;
        let deadline = self.stalled.map(|since| since + limit);
        let unsent = self.has_unsent();
        let [completions, ring] = self.queue.events();
        let events = [completions, ring, wake.then(|| self.context.waker.event())];
        let ready = self.transport.wait(want, unsent, events, deadline);
        self.queue.awake();
        let ready = ready.map_err(|e| match e.kind() {
            io::ErrorKind::TimedOut => io::Error::new(
                e.kind(),
                format!("the client has taken none of its replies for {limit:?}"),
            ),
            _ => e,
        })?;
        if ready.readable && want {
            match self.receive_now(false) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        Ok(())
    }

    fn receive_now(&mut self, wait: bool) -> io::Result<()> {
        // A large payload is received into its own buffer.
        let count = match &mut self.partial {
            Some(partial) if partial.payload.len() - partial.filled >= INPUT => {
                let count = self
                    .transport
                    .receive(&mut partial.payload[partial.filled..], wait)?;
                partial.filled += count;
                count
            }
            _ => {
                let count = self.transport.receive(self.input.free_space(), wait)?;
                self.input.arrived(count);
                count
            }
        };
        if count == 0 {
            // The client has closed the connection: a partial request stays partial.
            self.closing = true;
        }
        Ok(())
    }
}

// Answering received requests from the cache, or starting them.

impl Connection<'_> {
    /// Takes the received requests. Returns `true` when it stopped at a limit, so that there may be more.
    fn take_requests(&mut self) -> io::Result<bool> {
        let gate = Arc::clone(&self.gate);
        while self.has_capacity() {
            let Some(_passed) = gate.pass() else {
                // The client is gone, and may have reconnected.
                self.closing = true;
                return Ok(false);
            };
            if self.partial.is_some() {
                if !self.fill_partial() {
                    return Ok(false);
                }
                continue;
            }
            match parse(self.input.pending(), self.style == Style::Extended) {
                Parsed::Incomplete => return Ok(false),
                Parsed::Garbage(why) => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                Parsed::Request(request, used) => {
                    self.take_request(request, used);
                }
            }
        }
        Ok(!self.closing)
    }

    /// Takes a request whose header is the first `header` bytes.
    fn take_request(&mut self, request: Request, header: usize) {
        let mut bytes = [0; MAX_HEADER];
        bytes[..header].copy_from_slice(&self.input.pending()[..header]);
        self.input.consume(header);
        if request.payload > 0 {
            let size = usize::try_from(request.payload).unwrap_or(usize::MAX);
            self.partial = Some(Partial {
                request,
                header: (bytes, header),
                payload: AlignedBuf::new(size),
                filled: 0,
            });
            return;
        }
        self.dispatch(request, None);
    }

    /// Moves received bytes to the partial payload. Returns `true` when it is complete.
    fn fill_partial(&mut self) -> bool {
        let Some(partial) = &mut self.partial else {
            return true;
        };
        let pending = self.input.pending();
        let count = pending.len().min(partial.payload.len() - partial.filled);
        partial.payload[partial.filled..partial.filled + count].copy_from_slice(&pending[..count]);
        partial.filled += count;
        self.input.consume(count);
        if partial.filled < partial.payload.len() {
            return false;
        }
        if let Some(whole) = self.partial.take() {
            self.dispatch(whole.request, Some(whole.payload));
        }
        true
    }

    fn dispatch(&mut self, request: Request, payload: Option<AlignedBuf>) {
        let read_only = self.volume.is_read_only();
        let request = request.checked(self.volume.size(), read_only);
        let operation = match request.command {
            Command::Disconnect => {
                self.closing = true;
                return;
            }
            Command::Refused(why) => return self.refuse(&request, why),
            Command::Do(Operation::Extents { .. }) if !self.allocation => {
                return self.refuse(&request, Refusal::NoAllocation);
            }
            Command::Do(Operation::Read) => return self.read(&request),
            Command::Do(operation) => operation,
        };
        if operation == Operation::Flush && read_only {
            let context = self.context_of(&request, operation);
            self.out.push(context.reply(Ok(Outcome::Done)));
            return;
        }
        let mut started = self.started(&request, operation);
        if let Some(payload) = payload {
            started.data = payload;
        }
        self.queue.start(started);
    }

    fn refuse(&mut self, request: &Request, why: Refusal) {
        self.volume.count_error();
        let style = self.style;
        let (cookie, offset) = (request.cookie, request.offset);
        let reason = why.reason(offset, request.length);
        self.out.append(|out| {
            reply::error_reply(
                style,
                request.chunked,
                cookie,
                offset,
                why.errno(),
                &reason,
                out,
            );
            true
        });
    }

    /// Answers from the cache into the send buffer, or starts reading the missing blocks.
    fn read(&mut self, request: &Request) {
        let (Ok(length), Ok(size)) = (
            u32::try_from(request.length),
            usize::try_from(request.length),
        ) else {
            return;
        };
        let backend = self.volume.backend();
        let style = self.style;
        let mut left = None;
        let mut copied = None;
        self.out.append(|out| {
            reply::read_header(style, request.cookie, request.offset, length, out);
            let from = out.len();
            out.resize(from + size, 0);
            left = backend.look_up(None, &mut out[from..], request.offset);
            if left.as_ref().is_some_and(|remainder| remainder.copied > 0) {
                copied = Some(out[from..].to_vec());
            }
            left.is_none()
        });
        let Some(remainder) = left else {
            self.volume.count_inline_hit(request.length);
            return;
        };
        let mut buffer = self.out.buffer(size);
        if let Some(copied) = copied {
            buffer.copy_from_slice(&copied);
        }
        let mut started = self.started(request, Operation::Read);
        (started.data, started.remainder) = (buffer, remainder);
        self.queue.start(started);
    }

    fn started(&self, request: &Request, operation: Operation) -> IoRequest<ReplyContext> {
        let context = self.context_of(request, operation);
        IoRequest::new(operation, request.offset, request.length, context)
    }

    fn context_of(&self, request: &Request, operation: Operation) -> ReplyContext {
        ReplyContext {
            style: self.style,
            cookie: request.cookie,
            operation,
            offset: request.offset,
            length: request.length,
        }
    }
}

// Leaving a connection to the next daemon.

impl Connection<'_> {
    /// Returns the idle connection for the next daemon, which also sends the unsent replies. `None` when the client has
    /// reconnected: its requests here are void.
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
