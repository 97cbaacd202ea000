//! Requests that go to the image through the connection's io_uring, without a thread that waits.

use super::request::{IoRequest, Operation, Outcome, Payload};
use super::volume::Volume;
use super::write_order::WriteTicket;
use crate::backing::AlignedBuf;
use crate::block_dev::{SharedWriteGuard, Sync};
use crate::cache::WriteGuard;
use crate::disk::{MissFill, MissRemainder};
use crate::ring::{self, Ring};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A request, and what its front end needs to answer it.
pub(super) struct Job<C> {
    pub(super) request: IoRequest,
    pub(super) context: C,
    /// Of a write: dropped when it has ended, before the client can know.
    pub(super) ticket: Option<WriteTicket>,
}

/// The transfers of a connection.
pub(super) struct InFlight<C> {
    /// Dropped before the volume: that waits for every transfer.
    ring: Ring<Transfer<C>>,
    volume: Arc<Volume>,
}

/// A request, and the memory that the kernel reads or writes.
enum Transfer<C> {
    Read {
        job: Job<C>,
        fill: MissFill,
        /// What is read, unless it lies inside `data`.
        around: Option<AlignedBuf>,
        data: AlignedBuf,
        remainder: MissRemainder,
    },
    Write {
        job: Job<C>,
        payload: AlignedBuf,
        guard: Option<WriteGuard>,
        _shared: SharedWriteGuard,
    },
    Flush(Job<C>),
}

/// How a transfer ended.
pub(super) enum Ended<C> {
    Complete(Job<C>, io::Result<Outcome>),
    /// A thread that may wait must execute it again.
    Again(Job<C>, Payload),
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
    pub(super) fn start(&mut self, job: Job<C>, payload: Payload) -> Option<(Job<C>, Payload)> {
        match (job.request.operation, payload) {
            (Operation::Read, Payload::Read(data, remainder)) => self.read(job, data, remainder),
            (Operation::Write { fua }, Payload::Write(payload)) => self.write(job, payload, fua),
            (Operation::Flush, payload) => {
                let Some(entry) = self.volume.backend().file().map(|f| f.sync()) else {
                    return Some((job, payload));
                };
                // SAFETY: no memory; `self` keeps the volume, and that the file, until the ring is dropped.
                unsafe { self.ring.push(entry, Transfer::Flush(job)) }
                    .err()
                    .map(Transfer::into_job)
            }
            (_, payload) => Some((job, payload)),
        }
    }

    fn read(
        &mut self,
        job: Job<C>,
        mut data: AlignedBuf,
        remainder: MissRemainder,
    ) -> Option<(Job<C>, Payload)> {
        let IoRequest { offset, length, .. } = job.request;
        let backend = self.volume.backend();
        let fill = (!remainder.is_on_ssd())
            .then(|| backend.begin_fill(&remainder, offset, length))
            .flatten();
        let Some((file, fill)) = backend.file().zip(fill) else {
            return Some((job, Payload::Read(data, remainder)));
        };
        let mut around = None;
        let target = match fill.range_in(&data, offset) {
            Some(range) => &mut data[range],
            None => &mut **around.insert(AlignedBuf::new(fill.len())),
        };
        let Some(entry) = file.read(target, fill.span.start) else {
            return Some((job, Payload::Read(data, remainder)));
        };
        let transfer = Transfer::Read {
            job,
            fill,
            around,
            data,
            remainder,
        };
        // SAFETY: the buffers go along, and do not move in memory when they do; `self` keeps the volume, and that the
        // file, until the ring is dropped.
        unsafe { self.ring.push(entry, transfer) }
            .err()
            .map(Transfer::into_job)
    }

    fn write(&mut self, job: Job<C>, payload: AlignedBuf, fua: bool) -> Option<(Job<C>, Payload)> {
        let IoRequest { offset, length, .. } = job.request;
        let backend = self.volume.backend();
        let entry = backend.file().and_then(|f| f.write(&payload, offset, fua));
        let Some((entry, shared)) = entry else {
            return Some((job, Payload::Write(payload)));
        };
        let transfer = Transfer::Write {
            guard: backend.begin_write(offset, length),
            job,
            payload,
            _shared: shared,
        };
        // SAFETY: as in `read`.
        unsafe { self.ring.push(entry, transfer) }
            .err()
            .map(Transfer::into_job)
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
    /// The request, as it was before it was started.
    fn into_job(self) -> (Job<C>, Payload) {
        match self {
            Self::Read {
                job,
                data,
                remainder,
                ..
            } => (job, Payload::Read(data, remainder)),
            Self::Write { job, payload, .. } => (job, Payload::Write(payload)),
            Self::Flush(job) => (job, Payload::None),
        }
    }

    /// Bytes that are transferred when all goes well.
    fn expected(&self) -> usize {
        match self {
            Self::Read { fill, .. } => fill.len(),
            Self::Write { payload, .. } => payload.len(),
            Self::Flush(_) => 0,
        }
    }

    const fn job(&self) -> &Job<C> {
        match self {
            Self::Read { job, .. } | Self::Write { job, .. } | Self::Flush(job) => job,
        }
    }

    /// What a sync that has ended with `error` is answered with.
    fn settle(&self, volume: &Volume, error: Option<io::Error>) -> Option<io::Error> {
        let sync = match self.job().request.operation {
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
            _ => {
                let (job, payload) = self.into_job();
                return Ended::Again(job, payload);
            }
        };
        let error = self.settle(volume, error);
        match (self, error) {
            (Self::Read { job, .. } | Self::Flush(job), Some(e)) => Ended::Complete(job, Err(e)),
            (
                Self::Read {
                    job,
                    fill,
                    around,
                    mut data,
                    ..
                },
                None,
            ) => {
                let backend = volume.backend();
                let offset = job.request.offset;
                match (&around, fill.range_in(&data, offset)) {
                    (Some(around), _) => {
                        backend.end_fill(&fill, around);
                        fill.copy(around, &mut data, offset);
                    }
                    (None, Some(range)) => backend.end_fill(&fill, &data[range]),
                    (None, None) => {}
                }
                Ended::Complete(job, Ok(Outcome::Data(data)))
            }
            (
                Self::Write {
                    job,
                    guard,
                    payload,
                    ..
                },
                error,
            ) => {
                // Before the client can know that the write has ended.
                match guard {
                    Some(guard) if error.is_none() => guard.completed(&payload),
                    other => drop(other),
                }
                Ended::Complete(job, error.map_or(Ok(Outcome::Done), Err))
            }
            (Self::Flush(job), None) => Ended::Complete(job, Ok(Outcome::Done)),
        }
    }
}
