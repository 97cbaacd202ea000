//! A request, and how it is answered.

use super::encode::{self, Extent, Style};
use super::export::Export;
use super::outbox::{Finished, Reply};
use super::proto::{Errno, MAX_PAYLOAD};
use super::request::{Command, Request};
use crate::backing::AlignedBuf;
use crate::disk::Rest;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Extents in one reply to BLOCK_STATUS; the client asks again for the rest.
const EXTENTS: usize = 1024;

/// A request that is being answered.
pub struct Answer {
    pub export: Arc<Export>,
    pub style: Style,
    pub request: Request,
    /// What it holds of the connection's budget.
    pub held: usize,
}

/// What a request brings along.
pub enum Work {
    /// What the cache had of a read, and what it left.
    Read(AlignedBuf, Rest),
    /// A write's payload.
    Write(AlignedBuf),
    Nothing,
}

impl Answer {
    /// Does what was asked for, and waits for it.
    pub fn execute(&self, work: Work) -> Reply {
        // A bug in a disk costs this request, not the client's wait for it and a worker for ever.
        catch_unwind(AssertUnwindSafe(|| self.try_execute(work)))
            .unwrap_or_else(|_| Err(io::Error::other("the disk panicked")))
            .unwrap_or_else(|e| self.failed(&e))
    }

    /// Reads what the SSD store has of a read, and waits for it. What is missing then is left to be read from the disk.
    pub fn read_ssd(self, mut data: AlignedBuf, mut rest: Rest) -> Finished {
        let read = catch_unwind(AssertUnwindSafe(|| {
            let served = self.export.served();
            served.read_ssd(&mut rest, &mut data, self.request.offset)
        }));
        match read {
            Ok(true) => Finished::Reply(self.read(data)),
            Ok(false) => Finished::Rest(Box::new((self, Work::Read(data, rest)))),
            Err(_) => Finished::Reply(self.failed(&io::Error::other("the SSD store panicked"))),
        }
    }

    fn try_execute(&self, work: Work) -> io::Result<Reply> {
        let Request {
            command,
            offset,
            length,
            ..
        } = self.request;
        let disk = self.export.served().disk();
        match (command, work) {
            (Command::Read, Work::Read(mut data, rest)) => {
                self.export.served().finish(rest, &mut data, offset)?;
                return Ok(self.read(data));
            }
            (Command::Write { fua }, Work::Write(payload)) => {
                disk.write_at(&payload, offset, fua)?;
            }
            (Command::Flush, _) => disk.flush()?,
            (Command::Trim { fua }, _) => {
                disk.discard(offset, length)?;
                if fua {
                    disk.flush()?;
                }
            }
            // A hint is followed as far as a read would go: no client may keep a worker for a whole disk.
            (Command::Cache, _) => disk.prefetch(offset, length.min(MAX_PAYLOAD.into()))?,
            (Command::WriteZeroes { fua, may_unmap }, _) => {
                disk.write_zeroes(offset, length, fua, may_unmap)?;
            }
            (Command::BlockStatus { one }, _) => {
                let limit = if one { 1 } else { EXTENTS };
                let extents = self.export.extents(offset, length, limit)?;
                return Ok(self.extents(&clip(&extents, length, self.style)));
            }
            (Command::Read | Command::Write { .. }, _) => {
                return Err(io::Error::other("a request without what it needs"));
            }
            (Command::Disconnect | Command::Refused(_), _) => {}
        }
        Ok(self.done())
    }

    fn reply(&self, header: Vec<u8>, data: Option<AlignedBuf>) -> Reply {
        Reply {
            header,
            data,
            held: self.held,
        }
    }

    /// A read has succeeded.
    pub fn read(&self, data: AlignedBuf) -> Reply {
        let Request { cookie, offset, .. } = self.request;
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let mut header = Vec::with_capacity(64);
        encode::read_header(self.style, cookie, offset, size, &mut header);
        self.export.counts.read(self.request.length);
        self.reply(header, Some(data))
    }

    /// Anything else has succeeded.
    pub fn done(&self) -> Reply {
        let Request { cookie, offset, .. } = self.request;
        if matches!(
            self.request.command,
            Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. }
        ) {
            self.export.counts.wrote(self.request.length);
        }
        let mut header = Vec::with_capacity(64);
        encode::done(self.style, cookie, offset, &mut header);
        self.reply(header, None)
    }

    fn extents(&self, extents: &[Extent]) -> Reply {
        let Request { cookie, offset, .. } = self.request;
        let mut header = Vec::new();
        encode::block_status(self.style, cookie, offset, extents, &mut header);
        self.reply(header, None)
    }

    /// It has failed.
    pub fn failed(&self, error: &io::Error) -> Reply {
        let Request {
            cookie,
            command,
            offset,
            length,
            ..
        } = self.request;
        self.export.counts.errors.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            export = self.export.name(),
            offset,
            length,
            "{command:?} failed: {error}"
        );
        let mut header = Vec::new();
        encode::error(
            self.style,
            matches!(command, Command::Read | Command::BlockStatus { .. }),
            cookie,
            offset,
            Errno::from(error),
            &error.to_string(),
            &mut header,
        );
        self.reply(header, None)
    }
}

/// Extents that end where the request ends, and merge where neighbours are alike.
fn clip(extents: &[(u64, bool)], length: u64, style: Style) -> Vec<Extent> {
    // Without extended headers a length has 32 bits; clients like multiples of a block.
    let most = if style == Style::Extended {
        u64::MAX
    } else {
        u64::from(u32::MAX) / 4096 * 4096
    };
    let mut left = length;
    let mut found: Vec<Extent> = Vec::new();
    for (count, hole) in extents {
        let count = (*count).min(left).min(most);
        left -= count;
        match found.last_mut() {
            Some(last) if last.hole == *hole && last.length + count <= most => {
                last.length += count;
            }
            _ if count > 0 => found.push(Extent {
                length: count,
                hole: *hole,
            }),
            _ => {}
        }
    }
    found
}
