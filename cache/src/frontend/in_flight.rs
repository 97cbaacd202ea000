//! Requests to the image through the connection's io_uring, without a waiting thread.

use super::request::{IoRequest, Operation, Outcome};
use super::volume::Volume;
use crate::backing::AlignedBuf;
use crate::block_dev::{SharedWriteGuard, Sync};
use crate::cache::WriteGuard;
use crate::disk::MissFill;
use crate::ring::{self, Ring};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The transfers of a connection.
pub(super) struct InFlight<C> {
    /// Dropped before the volume: the drop waits for every transfer.
    ring: Ring<Transfer<C>>,
    volume: Arc<Volume>,
}

/// A request in flight. The kernel transfers its data, or `around`.
struct Transfer<C> {
    request: IoRequest<C>,
    state: State,
}

/// State of a transfer until its completion.
enum State {
    Read {
        fill: MissFill,
        /// The buffer of the read, if it is larger than the request's data.
        around: Option<AlignedBuf>,
    },
    Write {
        guard: Option<WriteGuard>,
        _shared: SharedWriteGuard,
    },
    Flush,
}

/// The result of a transfer.
pub(super) enum Ended<C> {
    Complete(IoRequest<C>, io::Result<Outcome>),
    /// A worker thread must execute it again.
    Again(IoRequest<C>),
}

impl<C> InFlight<C> {
    /// `None` if io_uring is not supported.
    pub(super) fn new(volume: &Arc<Volume>) -> Option<Self> {
        if ring::unsupported_reason().is_some() {
            return None;
        }
        let ring = Ring::new()
            .inspect_err(|e| {
                if let Some(left_out) = volume.log.permit() {
                    tracing::warn!(
                        disk = volume.name(),
                        "no io_uring for a client: worker threads execute its requests: {e}{left_out}"
                    );
                }
            })
            .ok()?;
        Some(Self {
            ring,
            volume: Arc::clone(volume),
        })
    }

    /// The number of requests in flight.
    pub(super) const fn len(&self) -> usize {
        self.ring.in_flight()
    }

    /// Readable when a request has completed; `None` when none is in flight.
    pub(super) fn event(&self) -> Option<BorrowedFd<'_>> {
        (self.len() > 0).then(|| self.ring.event())
    }

    /// Submits the started transfers to the kernel.
    pub(super) fn submit(&mut self) {
        self.ring.submit(0);
    }

    /// Starts a request. Returns it when it needs more than one transfer, or the ring is full.
    pub(super) fn start(&mut self, request: IoRequest<C>) -> Option<IoRequest<C>> {
        match request.operation {
            Operation::Read => self.read(request),
            Operation::Write { fua } => self.write(request, fua),
            Operation::Flush => {
                let Some(entry) = self.volume.backend().file().map(|f| f.sync()) else {
                    return Some(request);
                };
                let state = State::Flush;
                // SAFETY: it uses no memory. `self` keeps the volume, and so the file, until the ring is dropped.
                unsafe { self.ring.push(entry, Transfer { request, state }) }
                    .err()
                    .map(|left| left.request)
            }
            _ => Some(request),
        }
    }

    fn read(&mut self, mut request: IoRequest<C>) -> Option<IoRequest<C>> {
        let offset = request.offset;
        let backend = self.volume.backend();
        let fill = (!request.remainder.is_on_ssd())
            .then(|| backend.begin_fill(&request.remainder, offset, request.length))
            .flatten();
        let Some((file, fill)) = backend.file().zip(fill) else {
            return Some(request);
        };
        let mut around = None;
        let target = match fill.range_in(&request.data, offset) {
            Some(range) => &mut request.data[range],
            None => &mut **around.insert(AlignedBuf::new(fill.len())),
        };
        let Some(entry) = file.read(target, fill.span.start) else {
            return Some(request);
        };
        let state = State::Read { fill, around };
        // SAFETY: the buffers move with the transfer, but their memory stays in place. `self` keeps the volume, and so the
        // file, until the ring is dropped.
        unsafe { self.ring.push(entry, Transfer { request, state }) }
            .err()
            .map(|left| left.request)
    }

    fn write(&mut self, request: IoRequest<C>, fua: bool) -> Option<IoRequest<C>> {
        let backend = self.volume.backend();
        let file = backend.file();
        let entry = file.and_then(|f| f.write(&request.data, request.offset, fua));
        let Some((entry, shared)) = entry else {
            return Some(request);
        };
        let state = State::Write {
            guard: backend.begin_write(request.offset, request.length),
            _shared: shared,
        };
        // SAFETY: as in `read`.
        unsafe { self.ring.push(entry, Transfer { request, state }) }
            .err()
            .map(|left| left.request)
    }

    /// Passes completed requests to `ended`.
    pub(super) fn collect(&mut self, mut ended: impl FnMut(Ended<C>)) {
        if self.len() == 0 {
            return;
        }
        let volume = &self.volume;
        self.ring
            .collect(|transfer, result| ended(transfer.end(volume, result)));
    }
}

impl<C> Transfer<C> {
    /// The bytes of a complete transfer.
    fn expected(&self) -> usize {
        match &self.state {
            State::Read { fill, .. } => fill.len(),
            State::Write { .. } => self.request.data.len(),
            State::Flush => 0,
        }
    }

    /// The final error of a sync that has ended with `error`.
    fn settle(&self, volume: &Volume, error: Option<io::Error>) -> Option<io::Error> {
        let sync = match self.request.operation {
            Operation::Flush => Sync::Flush,
            Operation::Write { fua: true } => Sync::Write,
            _ => return error,
        };
        let result = error.map_or(Ok(()), Err);
        match volume.backend().file() {
            Some(file) => file.sync_errors().settle(sync, result).err(),
            None => result.err(),
        }
    }

    fn end(self, volume: &Volume, result: io::Result<usize>) -> Ended<C> {
        let error = match result {
            Ok(count) if count == self.expected() => None,
            Err(e)
                if !matches!(
                    e.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) =>
            {
                Some(e)
            }
            // A short transfer: at the end of the file, by a signal, or for want of memory.
            _ => return Ended::Again(self.request),
        };
        let error = self.settle(volume, error);
        let Self { mut request, state } = self;
        let outcome = match (state, error) {
            (State::Read { .. } | State::Flush, Some(e)) => Err(e),
            (State::Read { fill, around }, None) => {
                let backend = volume.backend();
                let (data, offset) = (&mut request.data, request.offset);
                match (&around, fill.range_in(data, offset)) {
                    (Some(around), _) => {
                        backend.end_fill(&fill, around);
                        fill.copy(around, data, offset);
                    }
                    (None, Some(range)) => backend.end_fill(&fill, &data[range]),
                    (None, None) => {}
                }
                Ok(request.take_data())
            }
            (State::Write { guard, .. }, error) => {
                // Do it before the client can know that the write has ended.
                match guard {
                    Some(guard) if error.is_none() => guard.completed(&request.data),
                    other => drop(other),
                }
                error.map_or(Ok(Outcome::Done), Err)
            }
            (State::Flush, None) => Ok(Outcome::Done),
        };
        Ended::Complete(request, outcome)
    }
}
