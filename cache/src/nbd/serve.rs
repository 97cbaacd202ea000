//! What a worker does for a request.

use super::encode::{self, Extent, Style};
use super::export::Export;
use super::outbox::{Inbox, Reply};
use super::proto::{Errno, MAX_PAYLOAD};
use super::request::{Command, Request};
use crate::backing::AlignedBuf;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Extents in one reply to BLOCK_STATUS; the client asks again for the rest.
const EXTENTS: usize = 1024;

/// A request, and where its reply goes.
pub struct Answer {
    pub export: Arc<Export>,
    pub inbox: Arc<Inbox>,
    pub style: Style,
    pub request: Request,
    pub held: usize,
}

/// Does what was asked for, and leaves the reply.
pub fn answer(answer: Answer, payload: Option<AlignedBuf>) {
    let mut reply = Reply {
        header: Vec::with_capacity(64),
        data: None,
        held: answer.held,
    };
    // A bug in a disk costs this request, not the client's wait for it and a worker for ever.
    let done = catch_unwind(AssertUnwindSafe(|| execute(&answer, payload, &mut reply)))
        .unwrap_or_else(|_| Err(io::Error::other("the disk panicked")));
    if let Err(e) = done {
        let Answer {
            export,
            style,
            request,
            ..
        } = &answer;
        export.counts.errors.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            export = export.name(),
            offset = request.offset,
            length = request.length,
            "{:?} failed: {e}",
            request.command
        );
        reply.header.clear();
        reply.data = None;
        let chunked = matches!(request.command, Command::Read | Command::BlockStatus { .. });
        encode::error(
            *style,
            chunked,
            request.cookie,
            request.offset,
            Errno::from(&e),
            &e.to_string(),
            &mut reply.header,
        );
    }
    answer.inbox.leave(reply);
}

fn execute(answer: &Answer, payload: Option<AlignedBuf>, reply: &mut Reply) -> io::Result<()> {
    let Request {
        cookie,
        command,
        offset,
        length,
        ..
    } = answer.request;
    let (export, style) = (&answer.export, answer.style);
    let disk = export.served().disk();
    let out = &mut reply.header;
    match command {
        Command::Read => {
            let size = u32::try_from(length).map_err(io::Error::other)?;
            let mut data = AlignedBuf::new(usize::try_from(length).map_err(io::Error::other)?);
            disk.read_at(&mut data, offset)?;
            encode::read_header(style, cookie, offset, size, out);
            reply.data = Some(data);
            export.counts.reads.fetch_add(1, Ordering::Relaxed);
            export
                .counts
                .read_bytes
                .fetch_add(length, Ordering::Relaxed);
            return Ok(());
        }
        Command::Write { fua } => {
            let payload = payload.ok_or_else(|| io::Error::other("a write without payload"))?;
            disk.write_at(&payload, offset, fua)?;
        }
        Command::Flush => {
            if !export.is_read_only() {
                disk.flush()?;
            }
        }
        Command::Trim { fua } => {
            disk.discard(offset, length)?;
            if fua {
                disk.flush()?;
            }
        }
        // A hint is followed as far as a read would go: no client may keep a worker for a whole disk.
        Command::Cache => disk.prefetch(offset, length.min(MAX_PAYLOAD.into()))?,
        Command::WriteZeroes { fua, may_unmap } => {
            disk.write_zeroes(offset, length, fua, may_unmap)?;
        }
        Command::BlockStatus { one } => {
            let limit = if one { 1 } else { EXTENTS };
            let extents = clip(&export.extents(offset, length, limit)?, length, style);
            encode::block_status(style, cookie, offset, &extents, out);
            return Ok(());
        }
        Command::Disconnect | Command::Refused(_) => {}
    }
    if matches!(
        command,
        Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. }
    ) {
        export.counts.writes.fetch_add(1, Ordering::Relaxed);
        export
            .counts
            .write_bytes
            .fetch_add(length, Ordering::Relaxed);
    }
    encode::done(style, cookie, offset, out);
    Ok(())
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
