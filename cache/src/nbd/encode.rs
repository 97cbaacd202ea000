//! Replies of the transmission phase.

use super::proto::{
    BASE_ALLOCATION_ID, CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, Errno, SIMPLE_REPLY_MAGIC, chunk,
    extent_flag,
};

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

/// A part of a disk, and what is known of it.
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

/// A reply that says that it was done.
pub(super) fn done(style: Style, cookie: u64, offset: u64, out: &mut Vec<u8>) {
    if style == Style::Extended {
        chunk_header(style, chunk::NONE, cookie, offset, 0, out);
    } else {
        simple(cookie, 0, out);
    }
}

/// A reply that says that it failed. `chunked` when the request was one that a structured reply answers.
pub(super) fn error(
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
    // The message is for people; the protocol allows it 4096 bytes.
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
pub(super) fn block_status(
    style: Style,
    cookie: u64,
    offset: u64,
    extents: &[Extent],
    out: &mut Vec<u8>,
) {
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
