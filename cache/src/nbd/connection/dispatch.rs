//! Requests that have arrived: answered from the cache, or started.

#![expect(
    clippy::indexing_slicing,
    reason = "positions of our own buffers, not what a client sent"
)]

use super::{Connection, Partial};
use crate::backing::AlignedBuf;
use crate::frontend::{IoRequest, Operation, Outcome, RequestContext};
use crate::nbd::encode::{self, Style};
use crate::nbd::refusal::Refusal;
use crate::nbd::reply::ReplyContext;
use crate::nbd::request::{Command, MAX_HEADER, Parsed, Request, parse};
use std::io;
use std::sync::Arc;

/// Extents in one reply to BLOCK_STATUS; the client asks again for the rest.
const MAX_EXTENTS: usize = 1024;

impl Connection<'_> {
    /// Takes the requests that have arrived. `true` when it stopped at a limit, so that there may be more of them.
    pub(super) fn take_requests(&mut self) -> io::Result<bool> {
        let gate = Arc::clone(&self.gate);
        while self.has_capacity() {
            let Some(_passed) = gate.pass() else {
                // The client is gone, and may be back elsewhere.
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

    /// Takes a request whose header is the first so many bytes.
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
        let read_only = self.volume.is_read_only();
        let request = request.checked(self.volume.size(), read_only);
        let operation = match request.command {
            Command::Disconnect => {
                self.closing = true;
                return;
            }
            Command::Refused(why) => return self.refuse(&request, why),
            Command::BlockStatus { .. } if !self.allocation => {
                return self.refuse(&request, Refusal::NoAllocation);
            }
            Command::Read => return self.read(&request),
            Command::Write { fua } => Operation::Write { fua },
            Command::Flush => Operation::Flush,
            Command::Trim { fua } => Operation::Discard { fua },
            Command::Cache => Operation::Prefetch,
            Command::WriteZeroes {
                fua,
                may_unmap,
                fast,
            } => Operation::WriteZeroes {
                fua,
                may_unmap,
                fast,
            },
            Command::BlockStatus { one } => Operation::Extents {
                limit: if one { 1 } else { MAX_EXTENTS },
            },
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
            encode::error(
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

    /// Answers from the cache into the bytes to be sent, or starts to read what the cache lacks.
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
            encode::read_header(style, request.cookie, request.offset, length, out);
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
