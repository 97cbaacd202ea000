//! A request to a volume, and how it is executed by a thread that may wait.

use super::volume::Volume;
use super::write_order::WriteTicket;
use crate::backing::AlignedBuf;
use crate::disk::MissRemainder;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes that a prefetch reads at most, so that no client keeps a worker thread for a whole disk.
const MAX_PREFETCH: u64 = 32 << 20;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    /// With `fua` on stable storage before the reply.
    Write {
        fua: bool,
    },
    /// Everything written before goes to stable storage.
    Flush,
    /// The content is no longer needed.
    Discard {
        fua: bool,
    },
    /// A hint: make the range fast to read.
    Prefetch,
    /// With `may_unmap` the space may be given back to the file system; `fast` only if that takes less than to write
    /// them, else the error is "unsupported".
    WriteZeroes {
        fua: bool,
        may_unmap: bool,
        fast: bool,
    },
    /// Which parts are allocated, at most `limit` of them.
    Extents {
        limit: usize,
    },
}

/// A request. Its range lies inside the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoRequest {
    pub(crate) operation: Operation,
    /// Bytes from the volume's beginning.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
}

/// The buffers that a request brings along.
pub(crate) enum Payload {
    /// A read's buffer with what the cache had, and what is missing.
    Read(AlignedBuf, MissRemainder),
    /// What is to be written.
    Write(AlignedBuf),
    None,
}

/// The result of a request that succeeded.
pub(crate) enum Outcome {
    /// What was read.
    Data(AlignedBuf),
    /// Extents: length in bytes, and whether it is a hole.
    Extents(Vec<(u64, bool)>),
    Done,
}

impl IoRequest {
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
    pub(super) fn arrived(&self, request: &IoRequest) -> Option<WriteTicket> {
        let changes = matches!(
            request.operation,
            Operation::Write { .. } | Operation::Discard { .. } | Operation::WriteZeroes { .. }
        );
        let end = request.offset.saturating_add(request.length);
        changes.then(|| self.write_order.arrive(request.offset..end))
    }

    /// Executes a request, and waits for it.
    pub(super) fn execute(&self, request: &IoRequest, payload: Payload) -> io::Result<Outcome> {
        // A bug in a disk costs this request, and neither the worker thread nor the client.
        catch_unwind(AssertUnwindSafe(|| self.try_execute(request, payload)))
            .unwrap_or_else(|_| Err(io::Error::other("the disk panicked")))
    }

    /// Reads what the SSD store has of a read, and waits for it; `true` when nothing is missing then.
    pub(super) fn read_ssd(
        &self,
        request: &IoRequest,
        data: &mut AlignedBuf,
        remainder: &mut MissRemainder,
    ) -> io::Result<bool> {
        catch_unwind(AssertUnwindSafe(|| {
            self.backend().read_ssd(remainder, data, request.offset)
        }))
        .map_err(|_| io::Error::other("the SSD store panicked"))
    }

    fn try_execute(&self, request: &IoRequest, payload: Payload) -> io::Result<Outcome> {
        let IoRequest {
            operation,
            offset,
            length,
        } = *request;
        let disk = self.backend().disk();
        match (operation, payload) {
            (Operation::Read, Payload::Read(mut data, remainder)) => {
                self.backend().finish(remainder, &mut data, offset)?;
                return Ok(Outcome::Data(data));
            }
            (Operation::Write { fua }, Payload::Write(content)) => {
                disk.write_at(&content, offset, fua)?;
            }
            (Operation::Flush, _) => disk.flush()?,
            (Operation::Discard { fua }, _) => {
                disk.discard(offset, length)?;
                if fua {
                    disk.flush()?;
                }
            }
            (Operation::Prefetch, _) => disk.prefetch(offset, length.min(MAX_PREFETCH))?,
            (
                Operation::WriteZeroes {
                    fua,
                    may_unmap,
                    fast,
                },
                _,
            ) => {
                if fast {
                    disk.write_zeroes_fast(offset, length, fua, may_unmap)?;
                } else {
                    disk.write_zeroes(offset, length, fua, may_unmap)?;
                }
            }
            (Operation::Extents { limit }, _) => {
                return self.extents(offset, length, limit).map(Outcome::Extents);
            }
            (Operation::Read | Operation::Write { .. }, _) => {
                return Err(io::Error::other("a request without its buffer"));
            }
        }
        Ok(Outcome::Done)
    }

    /// Counts a request that has ended, and logs why if it failed, unless others have just been logged.
    pub(super) fn record(&self, request: &IoRequest, result: &io::Result<Outcome>) {
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
            (
                Operation::Write { .. } | Operation::Discard { .. } | Operation::WriteZeroes { .. },
                Ok(_),
            ) => self.count_write(request.length),
            _ => {}
        }
    }
}
