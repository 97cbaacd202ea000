//! A request to a volume, from its arrival to its answer.
//!
//! One object goes all the way. The front end looks up the blocks of a read in the cache. A thread reads the SSD store. Then
//! the connection's io_uring, or a thread, reads the disk. The object returns to the front end. [`IoRequest::remainder`] tells
//! the missing part.

use super::volume::Volume;
use super::write_order::WriteTicket;
use crate::backing::AlignedBuf;
use crate::disk::MissRemainder;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read.
    Read,
    /// Write; with `fua` on stable storage before the reply.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Make all earlier writes durable.
    Flush,
    /// The content is no longer needed.
    Discard {
        /// Force unit access.
        fua: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// Force unit access.
        fua: bool,
        /// The space may be returned to the file system.
        may_unmap: bool,
        /// Only if that is faster than writing zeroes; else the error is "unsupported".
        fast: bool,
    },
    /// Report the allocated parts.
    Extents {
        /// The most extents.
        limit: usize,
    },
}

impl Operation {
    /// Does it change the volume?
    pub(crate) const fn is_write(self) -> bool {
        matches!(
            self,
            Self::Write { .. } | Self::Discard { .. } | Self::WriteZeroes { .. }
        )
    }
}

/// A request, and its front end's context for the answer. Its range lies inside the volume.
pub(crate) struct IoRequest<C> {
    pub(crate) operation: Operation,
    /// Bytes from the volume's beginning.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// The content to write; for a read, the buffer with the cached parts. Empty for others.
    pub(crate) data: AlignedBuf,
    /// For a read: the missing parts of the buffer.
    pub(crate) remainder: MissRemainder,
    /// For a write: dropped when it has ended, before the client can know.
    pub(super) ticket: Option<WriteTicket>,
    pub(crate) context: C,
}

/// The result of a request that succeeded.
pub(crate) enum Outcome {
    /// The read content.
    Data(AlignedBuf),
    /// Extents: length in bytes, and whether it is a hole.
    Extents(Vec<(u64, bool)>),
    Done,
}

impl<C> IoRequest<C> {
    /// A request that has just arrived, without data.
    pub(crate) fn new(operation: Operation, offset: u64, length: u64, context: C) -> Self {
        Self {
            operation,
            offset,
            length,
            data: AlignedBuf::default(),
            remainder: MissRemainder::default(),
            ticket: None,
            context,
        }
    }

    /// Takes the buffer of a completed read.
    pub(super) fn take_data(&mut self) -> Outcome {
        Outcome::Data(std::mem::take(&mut self.data))
    }

    /// Bytes of its buffer, which count against the connection's limit.
    pub(super) fn buffer_bytes(&self) -> usize {
        match self.operation {
            Operation::Read | Operation::Write { .. } => {
                usize::try_from(self.length).unwrap_or(usize::MAX)
            }
            _ => 0,
        }
    }
}

impl Volume {
    /// Registers a request. Returns the ticket of one that changes the disk.
    pub(super) fn arrived<C>(&self, request: &IoRequest<C>) -> Option<WriteTicket> {
        let end = request.offset.saturating_add(request.length);
        let changes = request.operation.is_write();
        changes.then(|| self.write_order.arrive(request.offset..end))
    }

    /// Executes a request, and waits for it.
    pub(super) fn execute<C>(&self, request: &mut IoRequest<C>) -> io::Result<Outcome> {
        // A panic in a disk fails only this request, not the worker thread or the client.
        catch_unwind(AssertUnwindSafe(|| self.try_execute(request)))
            .unwrap_or_else(|_| Err(io::Error::other("the disk panicked")))
    }

    /// Reads the blocks of a read that are on the SSD store, and waits for them. Returns `true` when nothing is missing then.
    pub(super) fn read_ssd<C>(&self, request: &mut IoRequest<C>) -> io::Result<bool> {
        let (remainder, offset) = (&mut request.remainder, request.offset);
        let data = &mut request.data;
        catch_unwind(AssertUnwindSafe(|| {
            self.backend().read_ssd(remainder, data, offset)
        }))
        .map_err(|_| io::Error::other("the SSD store panicked"))
    }

    fn try_execute<C>(&self, request: &mut IoRequest<C>) -> io::Result<Outcome> {
        let (offset, length) = (request.offset, request.length);
        let disk = self.backend().disk();
        match request.operation {
            Operation::Read => {
                let remainder = std::mem::take(&mut request.remainder);
                self.backend()
                    .finish(remainder, &mut request.data, offset)?;
                return Ok(request.take_data());
            }
            Operation::Write { fua } => disk.write_at(&request.data, offset, fua)?,
            Operation::Flush => disk.flush()?,
            Operation::Discard { fua } => {
                disk.discard(offset, length)?;
                if fua {
                    disk.flush()?;
                }
            }
            Operation::WriteZeroes {
                fua,
                may_unmap,
                fast,
            } => {
                if fast {
                    disk.write_zeroes_fast(offset, length, fua, may_unmap)?;
                } else {
                    disk.write_zeroes(offset, length, fua, may_unmap)?;
                }
            }
            Operation::Extents { limit } => {
                return self.extents(offset, length, limit).map(Outcome::Extents);
            }
        }
        Ok(Outcome::Done)
    }

    /// Counts a finished request. Logs a failure within the log limit.
    pub(super) fn record<C>(&self, request: &IoRequest<C>, result: &io::Result<Outcome>) {
        match (request.operation, result) {
            // Not a failure: the client then writes the zeroes.
            (Operation::WriteZeroes { fast: true, .. }, Err(error))
                if error.kind() == io::ErrorKind::Unsupported => {}
            (operation, Err(error)) => {
                self.count_error();
                if let Some(left_out) = self.log.permit() {
                    tracing::warn!(
                        disk = self.name(),
                        offset = request.offset,
                        length = request.length,
                        "{operation:?} failed: {error}{left_out}"
                    );
                }
            }
            (Operation::Read, Ok(_)) => self.count_read(request.length),
            (write, Ok(_)) if write.is_write() => self.count_write(request.length),
            _ => {}
        }
    }
}
