//! A request to a volume, from its arrival to its answer.
//!
//! One object goes all the way: from the front end, which looks the blocks of a read up in the cache, to a thread that waits
//! for the SSD store, into the connection's io_uring or to a thread that waits for the disk, and back to the front end. What
//! is still to be done is in it ([`IoRequest::remainder`]).

use super::volume::Volume;
use super::write_order::WriteTicket;
use crate::backing::AlignedBuf;
use crate::disk::MissRemainder;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read.
    Read,
    /// With `fua` on stable storage before the reply.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Everything written before goes to stable storage.
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
        /// The space may be given back to the file system.
        may_unmap: bool,
        /// Only if that takes less than to write them, else the error is "unsupported".
        fast: bool,
    },
    /// Tell which parts are allocated.
    Extents {
        /// At most so many.
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

/// A request, and what its front end needs to answer it. Its range lies inside the volume.
pub(crate) struct IoRequest<C> {
    pub(crate) operation: Operation,
    /// Bytes from the volume's beginning.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// What is to be written; of a read the buffer, with what the cache had. Empty for others.
    pub(crate) data: AlignedBuf,
    /// Of a read: what is missing in the buffer.
    pub(crate) remainder: MissRemainder,
    /// Of a write: dropped when it has ended, before the client can know.
    pub(super) ticket: Option<WriteTicket>,
    pub(crate) context: C,
}

/// The result of a request that succeeded.
pub(crate) enum Outcome {
    /// What was read.
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

    /// The buffer of a read, which is read.
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
    /// A request has arrived: the ticket of one that changes the disk.
    pub(super) fn arrived<C>(&self, request: &IoRequest<C>) -> Option<WriteTicket> {
        let end = request.offset.saturating_add(request.length);
        let changes = request.operation.is_write();
        changes.then(|| self.write_order.arrive(request.offset..end))
    }

    /// Executes a request, and waits for it.
    pub(super) fn execute<C>(&self, request: &mut IoRequest<C>) -> io::Result<Outcome> {
        // A bug in a disk costs this request, and neither the worker thread nor the client.
        catch_unwind(AssertUnwindSafe(|| self.try_execute(request)))
            .unwrap_or_else(|_| Err(io::Error::other("the disk panicked")))
    }

    /// Reads what the SSD store has of a read, and waits for it; `true` when nothing is missing then.
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

    /// Counts a request that has ended, and logs why if it failed, unless others have just been logged.
    pub(super) fn record<C>(&self, request: &IoRequest<C>, result: &io::Result<Outcome>) {
        match (request.operation, result) {
            // An answer, not a failure: the client writes the zeroes.
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
