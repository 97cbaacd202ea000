//! The data of options, and the replies to them.

use crate::nbd::parse::Bytes;
use crate::nbd::proto::{MAX_STRING, OPTION_REPLY_MAGIC, info};

pub(super) fn parse_go(data: &[u8]) -> Option<(&str, Vec<u16>)> {
    let mut rest = Bytes(data);
    let name = rest.string(MAX_STRING)?;
    let count = rest.u16()?;
    // Asking for the same thing again and again must not make the replies grow.
    let mut wanted = Vec::new();
    for _ in 0..count {
        let what = rest.u16()?;
        if matches!(what, info::NAME | info::DESCRIPTION | info::BLOCK_SIZE)
            && !wanted.contains(&what)
        {
            wanted.push(what);
        }
    }
    rest.0.is_empty().then_some((name, wanted))
}

pub(super) fn parse_meta(data: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut rest = Bytes(data);
    let name = rest.string(MAX_STRING)?;
    let count = rest.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(rest.string(MAX_STRING)?);
    }
    rest.0.is_empty().then_some((name, queries))
}

pub(super) fn string(s: &str, out: &mut Vec<u8>) {
    out.extend(u32::try_from(s.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(s.as_bytes());
}

pub(super) fn option_reply(option: u32, kind: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(
        u32::try_from(payload.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes(),
    );
    out.extend(payload);
}
