//! One client.

use super::catalogue::Table;
use super::encode::{self, Style};
use super::export::Export;
use super::flight::Flights;
use super::handshake::Agreed;
use super::input::{INPUT, Input};
use super::negotiate::negotiate;
use super::outbox::{Finished, Inbox, Outgoing, Reply};
use super::proto::Errno;
use super::request::{Command, Parsed, Request, parse};
use super::serve::{Answer, Work};
use super::server::Limits;
use super::transport::Transport;
use super::workers::Workers;
use crate::backing::AlignedBuf;
use rustls::ServerConfig;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Replies are sent before more requests are looked at once there are this many bytes of them.
const OUTPUT: usize = 1 << 20;

/// What a connection needs of its server.
pub struct Context {
    pub exports: Arc<Table>,
    /// A client sees what its certificate's names let it see, otherwise everything.
    pub certified: bool,
    /// Threads that wait for images.
    pub workers: Workers,
    /// Threads that wait for the SSD store.
    pub ssd_workers: Workers,
    pub limits: Limits,
    pub tls: Option<Arc<ServerConfig>>,
    pub tls_required: bool,
}

/// Serves a client to the end; `on_agreed` is told when it has come to terms. An error says why the connection broke; a
/// client that leaves is none.
pub fn run(transport: Transport, context: &Context, on_agreed: impl FnOnce()) -> io::Result<()> {
    let mut transport = transport;
    let mut input = Input::new();
    let Some((agreed, view)) = negotiate(&mut transport, &mut input, context, on_agreed)? else {
        return Ok(());
    };
    let export = view.open(&agreed.export).ok_or_else(|| {
        io::Error::other(format!("export {:?} was removed meanwhile", agreed.export))
    })?;
    let most = context.limits.vm_connections;
    let _seat = export.tenant.seat(most).ok_or_else(|| {
        io::Error::other(format!(
            "the VM of export {:?} has {most} connections already, which is the limit of one VM",
            agreed.export
        ))
    })?;
    Connection::new(transport, input, export, agreed, context)?.serve()
}

/// A client in the transmission phase.
struct Connection<'a> {
    transport: Transport,
    input: Input,
    out: Outgoing,
    inbox: Arc<Inbox>,
    finished: Vec<Reply>,
    export: Arc<Export>,
    context: &'a Context,
    style: Style,
    allocation: bool,
    /// A request whose payload has not arrived as a whole.
    partial: Option<Partial>,
    /// Its transfers; none where io_uring is refused.
    flights: Option<Flights>,
    /// Requests that workers have.
    handed: usize,
    in_flight_bytes: usize,
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
        export: Arc<Export>,
        agreed: Agreed,
        context: &'a Context,
    ) -> io::Result<Self> {
        Ok(Self {
            transport,
            input,
            out: Outgoing::default(),
            inbox: Arc::new(Inbox::new()?),
            finished: Vec::new(),
            export,
            context,
            style: agreed.style,
            allocation: agreed.allocation,
            partial: None,
            flights: context.limits.rings.then(Flights::new).flatten(),
            handed: 0,
            in_flight_bytes: 0,
            stalled: None,
            closing: false,
        })
    }

    fn serve(mut self) -> io::Result<()> {
        loop {
            self.collect();
            let understood = self.requests()?;
            if let Some(flights) = &mut self.flights {
                flights.submit();
            }
            self.send()?;
            if self.closing && self.in_flight() == 0 && self.out.is_empty() {
                self.transport.close();
                return Ok(());
            }
            // Stopped for room, and the replies are gone: go on with what has arrived.
            if !(understood && self.room()) {
                self.receive()?;
            }
        }
    }

    /// Sends what the client takes.
    fn send(&mut self) -> io::Result<()> {
        let before = self.transport.sent();
        self.out.send(&mut self.transport)?;
        if !self.unsent() {
            self.stalled = None;
        } else if self.stalled.is_none() || self.transport.sent() != before {
            self.stalled = Some(Instant::now());
        }
        Ok(())
    }

    /// Are there bytes that the client has not taken?
    fn unsent(&self) -> bool {
        !self.out.is_empty() || self.transport.unsent()
    }

    /// May more requests be taken on?
    fn room(&self) -> bool {
        // A payload that has begun must end: room was found for it when its header came.
        let budget = self.partial.is_some()
            || (self.in_flight() < self.context.limits.in_flight
                && self.in_flight_bytes < self.context.limits.in_flight_bytes);
        !self.closing && self.out.len() < OUTPUT && budget
    }

    /// Requests that are not answered yet.
    fn in_flight(&self) -> usize {
        self.handed + self.flights.as_ref().map_or(0, Flights::in_flight)
    }

    /// Takes in what is finished.
    fn collect(&mut self) {
        let mut finished = std::mem::take(&mut self.finished);
        if self.handed > 0 {
            for done in self.inbox.collect() {
                self.handed -= 1;
                match done {
                    Finished::Reply(reply) => {
                        let counts = &self.export.counts;
                        counts.by_workers.fetch_add(1, Ordering::Relaxed);
                        finished.push(reply);
                    }
                    Finished::Rest(left) => self.start(left.0, left.1),
                }
            }
        }
        let mut again = Vec::new();
        if let Some(flights) = &mut self.flights {
            flights.collect(&mut finished, &mut again);
        }
        for reply in finished.drain(..) {
            self.in_flight_bytes -= reply.held;
            self.out.push(reply);
        }
        self.finished = finished;
        for (answer, work) in again {
            self.hand_on(answer, work);
        }
    }

    /// Takes on the requests that have arrived. `true` when it stopped for want of room, so that there may
    /// be more of them.
    fn requests(&mut self) -> io::Result<bool> {
        while self.room() {
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
                    self.input.consume(used);
                    self.take_on(request);
                }
            }
        }
        Ok(!self.closing)
    }

    fn take_on(&mut self, request: Request) {
        if request.payload > 0 {
            let size = usize::try_from(request.payload).unwrap_or(usize::MAX);
            self.partial = Some(Partial {
                request,
                payload: AlignedBuf::new(size),
                filled: 0,
            });
            return;
        }
        self.dispatch(request, None);
    }

    /// Moves what has arrived to the payload it belongs to; `true` when that is complete.
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
        let export = &self.export;
        let request = request.checked(export.served().disk().size(), export.is_read_only());
        match request.command {
            Command::Disconnect => self.closing = true,
            Command::Refused(errno) => {
                export.counts.errors.fetch_add(1, Ordering::Relaxed);
                let (style, cookie, offset) = (self.style, request.cookie, request.offset);
                self.out.append(|out| {
                    let why = "the request cannot be served";
                    encode::error(style, false, cookie, offset, errno, why, out);
                    true
                });
            }
            Command::BlockStatus { .. } if !self.allocation => {
                self.dispatch(
                    Request {
                        command: Command::Refused(Errno::Inval),
                        ..request
                    },
                    None,
                );
            }
            Command::Read => self.read(request),
            Command::Flush if self.export.is_read_only() => {
                let answer = self.answer(request, 0);
                self.out.push(answer.done());
            }
            _ => {
                let held = payload.as_ref().map_or(0, |p| p.len());
                let work = payload.map_or(Work::Nothing, Work::Write);
                self.begin(self.answer(request, held), work);
            }
        }
    }

    fn answer(&self, request: Request, held: usize) -> Answer {
        Answer {
            export: Arc::clone(&self.export),
            style: self.style,
            request,
            held,
        }
    }

    /// Answers from the cache into the outgoing bytes, or starts to read what the cache lacks.
    fn read(&mut self, request: Request) {
        let (Ok(length), Ok(size)) = (
            u32::try_from(request.length),
            usize::try_from(request.length),
        ) else {
            return;
        };
        let export = &self.export;
        let style = self.style;
        let mut left = None;
        let mut copied = None;
        self.out.append(|out| {
            encode::read_header(style, request.cookie, request.offset, length, out);
            let from = out.len();
            out.resize(from + size, 0);
            left = export.served().look_up(&mut out[from..], request.offset);
            if left.as_ref().is_some_and(|rest| rest.copied > 0) {
                copied = Some(out[from..].to_vec());
            }
            left.is_none()
        });
        let Some(rest) = left else {
            export.counts.at_once.fetch_add(1, Ordering::Relaxed);
            export.counts.read(request.length);
            return;
        };
        let mut buffer = self.out.buffer(size);
        if let Some(copied) = copied {
            buffer.copy_from_slice(&copied);
        }
        self.begin(self.answer(request, size), Work::Read(buffer, rest));
    }

    /// Begins to answer.
    fn begin(&mut self, answer: Answer, work: Work) {
        self.in_flight_bytes += answer.held;
        self.start(answer, work);
    }

    /// Goes on to answer: through the ring if that can be.
    fn start(&mut self, answer: Answer, work: Work) {
        let left = match &mut self.flights {
            Some(flights) => flights.start(answer, work),
            None => Some((answer, work)),
        };
        if let Some((answer, work)) = left {
            self.hand_on(answer, work);
        }
    }

    /// Lets a worker answer.
    fn hand_on(&mut self, answer: Answer, work: Work) {
        self.handed += 1;
        let inbox = Arc::clone(&self.inbox);
        let tenant = &self.export.tenant;
        // Threads that wait for a disk, which may hang, are not those that wait for the SSD store.
        match work {
            Work::Read(data, rest) if rest.on_ssd() => self.context.ssd_workers.submit(
                &tenant.ssd,
                Box::new(move || inbox.leave(answer.read_ssd(data, rest))),
            ),
            work => self.context.workers.submit(
                &tenant.disk,
                Box::new(move || inbox.leave(Finished::Reply(answer.execute(work)))),
            ),
        }
    }

    /// Waits for something to do, and receives what has arrived.
    fn receive(&mut self) -> io::Result<()> {
        let want = self.room();
        let alone = self.in_flight() == 0 && !self.unsent();
        if want && alone {
            // Nothing but the client can have news: the receive itself may wait.
            return self.receive_now(true);
        }
        if want && self.transport.may_hold_bytes() {
            match self.receive_now(false) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        if self.handed > 0 && !self.inbox.may_sleep() {
            return Ok(());
        }
        let wakes = [
            (self.handed > 0).then(|| self.inbox.event()),
            self.flights.as_ref().and_then(Flights::event),
        ];
        let deadline = self.stalled.map(|since| since + self.context.limits.send);
        let ready = self
            .transport
            .wait(want, self.unsent(), wakes, deadline)
            .map_err(|e| match e.kind() {
                io::ErrorKind::TimedOut => io::Error::new(
                    e.kind(),
                    format!(
                        "the client has taken none of its replies for {:?}",
                        self.context.limits.send
                    ),
                ),
                _ => e,
            });
        if self.handed > 0 {
            self.inbox.awake();
        }
        if ready?.readable && want {
            match self.receive_now(false) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
        Ok(())
    }

    fn receive_now(&mut self, wait: bool) -> io::Result<()> {
        // A payload is received where it is needed, unless it is small.
        let count = match &mut self.partial {
            Some(partial) if partial.payload.len() - partial.filled >= INPUT => {
                let count = self
                    .transport
                    .receive(&mut partial.payload[partial.filled..], wait)?;
                partial.filled += count;
                count
            }
            _ => {
                let count = self.transport.receive(self.input.room(), wait)?;
                self.input.arrived(count);
                count
            }
        };
        if count == 0 {
            // Whatever is not there as a whole never comes.
            self.closing = true;
        }
        Ok(())
    }
}
