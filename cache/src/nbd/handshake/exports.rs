//! Options about exports: LIST, INFO, GO, and metadata contexts.

use super::machine::Handshake;
use super::parse::{option_reply, parse_go, parse_meta, string};
use super::types::{ExportLookup, Next};
use crate::nbd::encode::Style;
use crate::nbd::proto::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, MAX_PAYLOAD, PREFERRED_BLOCK, info, option, reply,
};

impl Handshake {
    pub(super) fn list(&self, data: &[u8], exports: &dyn ExportLookup, out: &mut Vec<u8>) {
        if !data.is_empty() {
            return option_reply(option::LIST, reply::ERR_INVALID, b"LIST takes no data", out);
        }
        for info in exports.list() {
            let mut payload = Vec::new();
            string(&info.name, &mut payload);
            payload.extend(info.description.as_bytes());
            option_reply(option::LIST, reply::SERVER, &payload, out);
        }
        option_reply(option::LIST, reply::ACK, b"", out);
    }

    pub(super) fn go(
        &self,
        kind: u32,
        data: &[u8],
        exports: &dyn ExportLookup,
        out: &mut Vec<u8>,
    ) -> Next {
        let Some((name, wanted)) = parse_go(data) else {
            let why = b"expected a name and a list of information types";
            option_reply(kind, reply::ERR_INVALID, why, out);
            return Next::More;
        };
        let Some(info) = exports.find(name) else {
            let why = b"no export of that name is served";
            option_reply(kind, reply::ERR_UNKNOWN, why, out);
            return Next::More;
        };
        let mut payload = Vec::from(info::EXPORT.to_be_bytes());
        payload.extend(info.size.to_be_bytes());
        payload.extend(info.flags.to_be_bytes());
        option_reply(kind, reply::INFO, &payload, out);
        for what in wanted {
            payload.clear();
            payload.extend(what.to_be_bytes());
            match what {
                info::NAME => payload.extend(info.name.as_bytes()),
                info::DESCRIPTION if !info.description.is_empty() => {
                    payload.extend(info.description.as_bytes());
                }
                info::BLOCK_SIZE => {
                    for size in [1, PREFERRED_BLOCK, MAX_PAYLOAD] {
                        payload.extend(size.to_be_bytes());
                    }
                }
                _ => continue,
            }
            option_reply(kind, reply::INFO, &payload, out);
        }
        option_reply(kind, reply::ACK, b"", out);
        if kind == option::GO {
            self.agreed(info)
        } else {
            Next::More
        }
    }

    pub(super) fn meta_context(
        &mut self,
        kind: u32,
        data: &[u8],
        exports: &dyn ExportLookup,
        out: &mut Vec<u8>,
    ) {
        let set = kind == option::SET_META_CONTEXT;
        if set {
            self.context = None;
            if self.style == Style::Simple {
                let why = b"negotiate structured replies first";
                return option_reply(kind, reply::ERR_INVALID, why, out);
            }
        }
        let Some((name, queries)) = parse_meta(data) else {
            let why = b"expected a name and a list of queries";
            return option_reply(kind, reply::ERR_INVALID, why, out);
        };
        let Some(info) = exports.find(name) else {
            let why = b"no export of that name is served";
            return option_reply(kind, reply::ERR_UNKNOWN, why, out);
        };
        let matches = queries.contains(&BASE_ALLOCATION)
            || (!set && (queries.is_empty() || queries.contains(&"base:")));
        if matches {
            let mut payload = Vec::from(BASE_ALLOCATION_ID.to_be_bytes());
            payload.extend(BASE_ALLOCATION.as_bytes());
            option_reply(kind, reply::META_CONTEXT, &payload, out);
            if set {
                self.context = Some(info.name);
            }
        }
        option_reply(kind, reply::ACK, b"", out);
    }
}
