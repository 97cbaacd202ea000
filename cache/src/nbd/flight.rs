//! Requests that go to the image through the connection's io_uring, without a thread that waits.

use super::outbox::Reply;
use super::request::Command;
use super::serve::{Answer, Work};
use crate::backing::{AlignedBuf, Beside};
use crate::disk::{Change, Fill, Rest};
use crate::ring::{self, Ring};
use std::io;
use std::os::fd::BorrowedFd;

/// A connection's transfers.
pub struct Flights(Ring<Flight>);

/// A request, and the memory that the kernel reads or writes.
enum Flight {
    Read {
        answer: Answer,
        fill: Fill,
        /// What is read, unless it lies inside `data`.
        around: Option<AlignedBuf>,
        data: AlignedBuf,
        rest: Rest,
    },
    Write {
        answer: Answer,
        payload: AlignedBuf,
        change: Option<Change>,
        _beside: Beside,
    },
    Flush(Answer),
}

impl Flights {
    /// `None` where io_uring is refused.
    pub fn new() -> Option<Self> {
        if ring::refusal().is_some() {
            return None;
        }
        Ring::new()
            .inspect_err(|e| {
                tracing::warn!("no io_uring for a client, whose requests wait for workers: {e}")
            })
            .ok()
            .map(Self)
    }

    /// Requests that have not come back.
    pub const fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    /// Readable when one has come back; `None` when none is in flight.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        (self.in_flight() > 0).then(|| self.0.event())
    }

    /// Lets the kernel begin what was started.
    pub fn submit(&mut self) {
        self.0.submit(0);
    }

    /// Starts a request; gives it back when it takes more than one transfer, or there is no room.
    pub fn start(&mut self, answer: Answer, work: Work) -> Option<(Answer, Work)> {
        match (answer.request.command, work) {
            (Command::Read, Work::Read(data, rest)) => self.read(answer, data, rest),
            (Command::Write { fua }, Work::Write(payload)) => self.write(answer, payload, fua),
            (Command::Flush, work) => {
                let Some(entry) = answer.export.served().file().map(|f| f.sync()) else {
                    return Some((answer, work));
                };
                // SAFETY: no memory; the export keeps the file.
                unsafe { self.0.push(entry, Flight::Flush(answer)) }
                    .err()
                    .map(Flight::back)
            }
            (_, work) => Some((answer, work)),
        }
    }

    fn read(&mut self, answer: Answer, mut data: AlignedBuf, rest: Rest) -> Option<(Answer, Work)> {
        let offset = answer.request.offset;
        let served = answer.export.served();
        let fill = (!rest.on_ssd())
            .then(|| served.begin_fill(&rest, offset, answer.request.length))
            .flatten();
        let Some((file, fill)) = served.file().zip(fill) else {
            return Some((answer, Work::Read(data, rest)));
        };
        let mut around = None;
        let target = match fill.place(&data, offset) {
            Some(place) => &mut data[place],
            None => &mut **around.insert(AlignedBuf::new(fill.len())),
        };
        let Some(entry) = file.read(target, fill.span.start) else {
            return Some((answer, Work::Read(data, rest)));
        };
        let flight = Flight::Read {
            answer,
            fill,
            around,
            data,
            rest,
        };
        // SAFETY: the buffers go along, and do not move in memory when they do; the export keeps the file.
        unsafe { self.0.push(entry, flight) }
            .err()
            .map(Flight::back)
    }

    fn write(&mut self, answer: Answer, payload: AlignedBuf, fua: bool) -> Option<(Answer, Work)> {
        let offset = answer.request.offset;
        let served = answer.export.served();
        let entry = served.file().and_then(|f| f.write(&payload, offset, fua));
        let Some((entry, beside)) = entry else {
            return Some((answer, Work::Write(payload)));
        };
        let flight = Flight::Write {
            change: served.change(offset, answer.request.length),
            answer,
            payload,
            _beside: beside,
        };
        // SAFETY: as in `read`.
        unsafe { self.0.push(entry, flight) }
            .err()
            .map(Flight::back)
    }

    /// Takes in what has come back: replies, and requests that a worker must do again.
    pub fn collect(&mut self, replies: &mut Vec<Reply>, again: &mut Vec<(Answer, Work)>) {
        if self.in_flight() == 0 {
            return;
        }
        self.0.collect(|flight, result| match flight.end(result) {
            Ok(reply) => replies.push(reply),
            Err(left) => again.push(*left),
        });
    }
}

impl Flight {
    /// The request, as it was before it was started.
    fn back(self) -> (Answer, Work) {
        match self {
            Self::Read {
                answer, data, rest, ..
            } => (answer, Work::Read(data, rest)),
            Self::Write {
                answer, payload, ..
            } => (answer, Work::Write(payload)),
            Self::Flush(answer) => (answer, Work::Nothing),
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

    fn end(self, result: io::Result<usize>) -> Result<Reply, Box<(Answer, Work)>> {
        let failed = match result {
            Ok(count) if count == self.expected() => None,
            // Cut short: by the end of the file, a signal, or want of memory.
            Ok(_) => return Err(Box::new(self.back())),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) =>
            {
                return Err(Box::new(self.back()));
            }
            Err(e) => Some(e),
        };
        Ok(match (self, failed) {
            (Self::Read { answer, .. } | Self::Flush(answer), Some(e)) => answer.failed(&e),
            (
                Self::Read {
                    answer,
                    fill,
                    around,
                    mut data,
                    ..
                },
                None,
            ) => {
                let served = answer.export.served();
                let offset = answer.request.offset;
                match (&around, fill.place(&data, offset)) {
                    (Some(around), _) => {
                        served.end_fill(&fill, around);
                        fill.copy(around, &mut data, offset);
                    }
                    (None, Some(place)) => served.end_fill(&fill, &data[place]),
                    (None, None) => {}
                }
                answer.read(data)
            }
            (Self::Write { answer, change, .. }, failed) => {
                // Before the client can know.
                drop(change);
                failed.map_or_else(|| answer.done(), |e| answer.failed(&e))
            }
            (Self::Flush(answer), None) => answer.done(),
        })
    }
}
