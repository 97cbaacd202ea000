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
        // The rest of it is told when the client asks again; what follows would be told of the wrong place.
        if told < count {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;
    /// What 32 bits can say, in whole blocks.
    const MOST: u64 = (1 << 32) - BLOCK;

    /// Of what is told, nothing is told of another place.
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
