//! Requests that go to the image through the connection's io_uring, without a thread that waits.

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
    /// Dropped before the volume: that waits for every transfer.
    ring: Ring<Transfer<C>>,
    volume: Arc<Volume>,
}

/// A request that is under way. The kernel reads or writes its data, or what is `around` them.
struct Transfer<C> {
    request: IoRequest<C>,
    state: State,
}

/// What a transfer needs until it has come back.
enum State {
    Read {
        fill: MissFill,
        /// What is read, unless it lies inside the request's data.
        around: Option<AlignedBuf>,
    },
    Write {
        guard: Option<WriteGuard>,
        _shared: SharedWriteGuard,
    },
    Flush,
}

/// How a transfer ended.
pub(super) enum Ended<C> {
    Complete(IoRequest<C>, io::Result<Outcome>),
    /// A thread that may wait must execute it again.
    Again(IoRequest<C>),
}

impl<C> InFlight<C> {
    /// `None` where io_uring is not supported.
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

    /// Requests that have not come back.
    pub(super) const fn len(&self) -> usize {
        self.ring.in_flight()
    }

    /// Readable when one has come back; `None` when none is in flight.
    pub(super) fn event(&self) -> Option<BorrowedFd<'_>> {
        (self.len() > 0).then(|| self.ring.event())
    }

    /// Lets the kernel begin what was started.
    pub(super) fn submit(&mut self) {
        self.ring.submit(0);
    }

    /// Starts a request; returns it when it takes more than one transfer, or the ring is full.
    pub(super) fn start(&mut self, request: IoRequest<C>) -> Option<IoRequest<C>> {
        match request.operation {
            Operation::Read => self.read(request),
            Operation::Write { fua } => self.write(request, fua),
            Operation::Flush => {
                let Some(entry) = self.volume.backend().file().map(|f| f.sync()) else {
                    return Some(request);
                };
                let state = State::Flush;
                // SAFETY: no memory; `self` keeps the volume, and that the file, until the ring is dropped.
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
        // SAFETY: the buffers go along, and do not move in memory when they do; `self` keeps the volume, and that the
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

    /// Passes on what has come back.
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
    /// Bytes that are transferred when all goes well.
    fn expected(&self) -> usize {
        match &self.state {
            State::Read { fill, .. } => fill.len(),
            State::Write { .. } => self.request.data.len(),
            State::Flush => 0,
        }
    }

    /// What a sync that has ended with `error` is answered with.
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
            // Cut short: by the end of the file, a signal, or want of memory.
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
                // Before the client can know that the write has ended.
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
