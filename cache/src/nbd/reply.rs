//! The reply to a request, made from its result.

use super::encode::{self, Extent, Style};
use super::proto::Errno;
use crate::backing::AlignedBuf;
use crate::frontend::{Operation, Outcome, RequestContext};
use std::io;

/// A reply, ready to be sent.
pub(super) struct Reply {
    pub(super) header: Vec<u8>,
    pub(super) data: Option<AlignedBuf>,
}

/// What the reply to a request needs of it.
pub(super) struct ReplyContext {
    pub(super) style: Style,
    pub(super) cookie: u64,
    pub(super) operation: Operation,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl RequestContext for ReplyContext {
    type Reply = Reply;

    fn reply(self, result: io::Result<Outcome>) -> Reply {
        let Self {
            style,
            cookie,
            offset,
            ..
        } = self;
        let mut header = Vec::with_capacity(64);
        match result {
            Ok(Outcome::Data(data)) => {
                let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
                encode::read_header(style, cookie, offset, size, &mut header);
                return Reply {
                    header,
                    data: Some(data),
                };
            }
            Ok(Outcome::Extents(extents)) => {
                let extents = clip(&extents, self.length, style);
                encode::block_status(style, cookie, offset, &extents, &mut header);
            }
            Ok(Outcome::Done) => encode::done(style, cookie, offset, &mut header),
            Err(error) => {
                let chunked = matches!(self.operation, Operation::Read | Operation::Extents { .. });
                let (errno, why) = (Errno::from(&error), error.to_string());
                encode::error(style, chunked, cookie, offset, errno, &why, &mut header);
            }
        }
        Reply { header, data: None }
    }
}

/// Extents that end where the request ends, with neighbours of the same kind merged.
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
