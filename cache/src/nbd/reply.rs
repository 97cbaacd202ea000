//! Makes replies from the results of requests.

use super::proto::{
    BASE_ALLOCATION_ID, CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, Errno, SIMPLE_REPLY_MAGIC, chunk,
    extent_flag,
};
use crate::backing::AlignedBuf;
use crate::frontend::{Operation, Outcome, RequestContext};
use std::io;

/// A reply, ready to be sent.
pub(super) struct Reply {
    pub(super) header: Vec<u8>,
    pub(super) data: Option<AlignedBuf>,
}

/// The state of a request for its reply.
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
                read_header(style, cookie, offset, size, &mut header);
                return Reply {
                    header,
                    data: Some(data),
                };
            }
            Ok(Outcome::Extents(extents)) => {
                let extents = clip(&extents, self.length, style);
                block_status(style, cookie, offset, &extents, &mut header);
            }
            Ok(Outcome::Done) => done(style, cookie, offset, &mut header),
            Err(error) => {
                let chunked = matches!(self.operation, Operation::Read | Operation::Extents { .. });
                let (errno, why) = (Errno::from(&error), error.to_string());
                error_reply(style, chunked, cookie, offset, errno, &why, &mut header);
            }
        }
        Reply { header, data: None }
    }
}

/// Cuts extents off at the end of the request, and merges neighbours of the same kind.
fn clip(extents: &[(u64, bool)], length: u64, style: Style) -> Vec<Extent> {
    // Without extended headers a length has 32 bits. Clients like multiples of a block.
    let most = if style == Style::Extended {
        u64::MAX
    } else {
        u64::from(u32::MAX) / 4096 * 4096
    };
    let mut left = length;
    let mut found: Vec<Extent> = Vec::new();
    for (count, hole) in extents {
        let count = (*count).min(left);
        let told = match found.last_mut() {
            Some(last) if last.hole == *hole => {
                let told = count.min(most - last.length);
                last.length += told;
                told
            }
            _ => {
                let (length, hole) = (count.min(most), *hole);
                found.extend((length > 0).then_some(Extent { length, hole }));
                length
            }
        };
        left -= told;
        // Stop: an extent after a shortened one would be reported at the wrong place. The client asks again for the rest.
        if told < count {
            break;
        }
    }
    found
}

// Replies of the transmission phase.

/// The style of replies that the client has negotiated.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
)]
pub enum Style {
    /// A header of 16 bytes, and the data.
    #[default]
    Simple,
    /// Chunks for READ and BLOCK_STATUS, simple replies otherwise.
    Structured,
    /// Chunks with 64-bit lengths for everything.
    Extended,
}

/// A part of a disk, and its allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes.
    pub length: u64,
    /// Not allocated: it reads as zeroes.
    pub hole: bool,
}

/// The header of a reply to a READ of `length` bytes at `offset`; the data must follow.
pub(super) fn read_header(style: Style, cookie: u64, offset: u64, length: u32, out: &mut Vec<u8>) {
    if style == Style::Simple {
        return simple(cookie, 0, out);
    }
    let count = u64::from(length) + 8;
    chunk_header(style, chunk::OFFSET_DATA, cookie, offset, count, out);
    out.extend(offset.to_be_bytes());
}

/// A reply to a successful request.
pub(super) fn done(style: Style, cookie: u64, offset: u64, out: &mut Vec<u8>) {
    if style == Style::Extended {
        chunk_header(style, chunk::NONE, cookie, offset, 0, out);
    } else {
        simple(cookie, 0, out);
    }
}

/// A reply to a failed request. `chunked`: a structured reply answers the request.
pub(super) fn error_reply(
    style: Style,
    chunked: bool,
    cookie: u64,
    offset: u64,
    errno: Errno,
    why: &str,
    out: &mut Vec<u8>,
) {
    if style == Style::Simple || (style == Style::Structured && !chunked) {
        return simple(cookie, errno.code(), out);
    }
    // The message is for humans; the protocol allows 4096 bytes.
    let why = why.as_bytes();
    let why = why.get(..200).unwrap_or(why);
    let count = u16::try_from(why.len()).unwrap_or(0);
    chunk_header(
        style,
        chunk::ERROR,
        cookie,
        offset,
        6 + u64::from(count),
        out,
    );
    out.extend(errno.code().to_be_bytes());
    out.extend(count.to_be_bytes());
    out.extend(why);
}

/// A reply to BLOCK_STATUS.
fn block_status(style: Style, cookie: u64, offset: u64, extents: &[Extent], out: &mut Vec<u8>) {
    let flags = |e: &Extent| {
        if e.hole {
            extent_flag::HOLE | extent_flag::ZERO
        } else {
            0
        }
    };
    let count = u32::try_from(extents.len()).unwrap_or(u32::MAX);
    if style == Style::Extended {
        let size = 8 + 16 * u64::from(count);
        chunk_header(style, chunk::BLOCK_STATUS_EXT, cookie, offset, size, out);
        out.extend(BASE_ALLOCATION_ID.to_be_bytes());
        out.extend(count.to_be_bytes());
        for extent in extents {
            out.extend(extent.length.to_be_bytes());
            out.extend(u64::from(flags(extent)).to_be_bytes());
        }
    } else {
        let size = 4 + 8 * u64::from(count);
        chunk_header(style, chunk::BLOCK_STATUS, cookie, offset, size, out);
        out.extend(BASE_ALLOCATION_ID.to_be_bytes());
        for extent in extents {
            let length = u32::try_from(extent.length).unwrap_or(u32::MAX);
            out.extend(length.to_be_bytes());
            out.extend(flags(extent).to_be_bytes());
        }
    }
}

fn simple(cookie: u64, error: u32, out: &mut Vec<u8>) {
    out.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend(error.to_be_bytes());
    out.extend(cookie.to_be_bytes());
}

/// Every reply is one chunk, so every chunk is the last.
fn chunk_header(style: Style, kind: u16, cookie: u64, offset: u64, length: u64, out: &mut Vec<u8>) {
    let extended = style == Style::Extended;
    let magic = if extended {
        EXTENDED_CHUNK_MAGIC
    } else {
        CHUNK_MAGIC
    };
    out.extend(magic.to_be_bytes());
    out.extend(chunk::FLAG_DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    if extended {
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
    } else {
        // Payloads are at most 32 MiB and a few bytes.
        out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;
    /// The largest length in 32 bits, in whole blocks.
    const MOST: u64 = (1 << 32) - BLOCK;

    /// No extent is reported at a wrong place.
    #[test]
    fn what_32_bits_cannot_say_is_told_of_the_right_place() {
        let half = 2048;
        let cases: [&[(u64, bool)]; 6] = [
            &[(MOST + half, false), (1 << 20, true)],
            &[(MOST - half, false), (BLOCK, false), (BLOCK, true)],
            &[(MOST, true), (1, false)],
            &[(3 * MOST, false), (BLOCK, true)],
            &[(half, true), (MOST, false), (BLOCK, true)],
            &[(BLOCK, true), (BLOCK, true), (half, false)],
        ];
        for truth in cases {
            for length in [BLOCK, MOST, u64::from(u32::MAX)] {
                let found = clip(truth, length, Style::Structured);
                let told: u64 = found.iter().map(|extent| extent.length).sum();
                assert!(0 < told && told <= length, "{truth:?}: {found:?}");
                let (mut at, mut from) = (0, 0);
                for extent in &found {
                    assert!(extent.length <= MOST);
                    // All of it lies inside extents of its kind.
                    let mut inside = 0;
                    from = 0;
                    for (count, hole) in truth {
                        let overlap = (from + count)
                            .min(at + extent.length)
                            .saturating_sub(at.max(from));
                        inside += if *hole == extent.hole { overlap } else { 0 };
                        from += count;
                    }
                    assert_eq!(inside, extent.length, "at {at}: {truth:?}: {found:?}");
                    at += extent.length;
                }
                assert!(at <= from);
            }
        }
    }
}
