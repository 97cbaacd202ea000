//! One client.

use super::encode::{self, Style};
use super::export::Export;
use super::flight::Flights;
use super::handshake::{Agreed, Catalogue};
use super::input::{INPUT, Input};
use super::negotiate::negotiate;
use super::outbox::{Inbox, Outgoing, Reply};
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

/// Replies are sent before more requests are looked at once there are this many bytes of them.
const OUTPUT: usize = 1 << 20;

/// What a connection needs of its server.
pub struct Context {
    pub catalogue: Arc<dyn Exports>,
    pub workers: Workers,
    pub limits: Limits,
    pub tls: Option<Arc<ServerConfig>>,
    pub tls_required: bool,
}

/// The server's exports.
pub trait Exports: Catalogue + Send + Sync {
    /// By the name that the catalogue gave.
    fn open(&self, name: &str) -> Option<Arc<Export>>;
}

/// Serves a client to the end. An error says why the connection broke; a client that leaves is none.
pub fn run(transport: Transport, context: &Context) -> io::Result<()> {
    let mut transport = transport;
    let mut input = Input::new();
    let Some(agreed) = negotiate(&mut transport, &mut input, context)? else {
        return Ok(());
    };
    let export = context.catalogue.open(&agreed.export).ok_or_else(|| {
        io::Error::other(format!("export {:?} was removed meanwhile", agreed.export))
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
            self.out.send(&mut self.transport)?;
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
            self.inbox.collect(&mut finished);
            self.handed -= finished.len();
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
                self.start(self.answer(request, held), work);
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
        self.start(self.answer(request, size), Work::Read(buffer, rest));
    }

    /// Begins to answer: through the ring if that can be.
    fn start(&mut self, answer: Answer, work: Work) {
        self.in_flight_bytes += answer.held;
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
        self.export
            .counts
            .by_workers
            .fetch_add(1, Ordering::Relaxed);
        let inbox = Arc::clone(&self.inbox);
        self.context.workers.submit(
            &self.export.lane,
            Box::new(move || inbox.leave(answer.execute(work))),
        );
    }

    /// Waits for something to do, and receives what has arrived.
    fn receive(&mut self) -> io::Result<()> {
        let want = self.room();
        let alone = self.in_flight() == 0 && self.out.is_empty() && !self.transport.unsent();
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
        let write = !self.out.is_empty() || self.transport.unsent();
        let wakes = [
            (self.handed > 0).then(|| self.inbox.event()),
            self.flights.as_ref().and_then(Flights::event),
        ];
        let ready = self.transport.wait(want, write, wakes, None);
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
