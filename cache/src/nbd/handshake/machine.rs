//! Negotiation (fixed newstyle), apart from I/O: bytes in, bytes out, and what comes next.

use super::parse::option_reply;
use super::types::{Agreed, ExportInfo, ExportLookup, Next, Tls};
use crate::nbd::encode::Style;
use crate::nbd::parse::Bytes;
use crate::nbd::proto::{
    MAX_OPTION, MAX_STRING, NBD_MAGIC, OPTION_MAGIC, handshake, option, reply,
};

/// A negotiation in progress.
#[derive(Debug)]
pub struct Handshake {
    pub(super) greeted: bool,
    pub(super) zeroes: bool,
    pub(super) tls: Tls,
    pub(super) style: Style,
    /// The export for which `base:allocation` was selected.
    pub(super) context: Option<String>,
    /// Options so far: clients need about a dozen.
    pub(super) options: usize,
}

/// More options than this end the connection, besides [`OPTIONS_PER_EXPORT`].
const MAX_OPTIONS: usize = 1000;

/// What a client that lists a server may ask of each export: `nbdinfo --list` needs two.
const OPTIONS_PER_EXPORT: usize = 8;

impl Handshake {
    /// The beginning; what the server says first is appended to `out`.
    pub fn new(tls: Tls, out: &mut Vec<u8>) -> Self {
        out.extend(NBD_MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES).to_be_bytes());
        Self {
            greeted: false,
            zeroes: true,
            tls,
            style: Style::Simple,
            context: None,
            options: 0,
        }
    }

    /// TLS is on: what was negotiated before it, perhaps by an attacker, is void.
    pub fn secured(&mut self) {
        self.tls = Tls::Active;
        self.style = Style::Simple;
        self.context = None;
    }

    /// Handles what `bytes` begins with. Returns how many were consumed and what comes next; replies are
    /// appended to `out`. After [`Next::More`] with bytes consumed, call again.
    pub fn step(
        &mut self,
        bytes: &[u8],
        exports: &dyn ExportLookup,
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        let mut rest = Bytes(bytes);
        let next = if self.greeted {
            self.option(&mut rest, exports, out)
        } else {
            self.greeting(&mut rest)
        };
        next.map_or((0, Next::More), |next| (bytes.len() - rest.0.len(), next))
    }

    fn greeting(&mut self, rest: &mut Bytes) -> Option<Next> {
        let flags = rest.u32()?;
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        if flags & !known != 0 {
            return Some(Next::Close(
                "the client has handshake flags that we do not know",
            ));
        }
        self.greeted = true;
        self.zeroes = flags & u32::from(handshake::NO_ZEROES) == 0;
        Some(Next::More)
    }

    /// `None` while the option is not there as a whole.
    fn option(
        &mut self,
        rest: &mut Bytes,
        exports: &dyn ExportLookup,
        out: &mut Vec<u8>,
    ) -> Option<Next> {
        if rest.u64()? != OPTION_MAGIC {
            return Some(Next::Close("an option that does not begin with its magic"));
        }
        let kind = rest.u32()?;
        let length = rest.u32()?;
        if length > MAX_OPTION {
            return Some(Next::Close("an option of more than 64 KiB"));
        }
        let data = rest.take(usize::try_from(length).ok()?)?;
        self.options += 1;
        if self.options > MAX_OPTIONS
            && self.options > MAX_OPTIONS + OPTIONS_PER_EXPORT * exports.count()
        {
            return Some(Next::Close("more options than any client needs"));
        }
        Some(self.answer(kind, data, exports, out))
    }

    fn answer(
        &mut self,
        kind: u32,
        data: &[u8],
        exports: &dyn ExportLookup,
        out: &mut Vec<u8>,
    ) -> Next {
        if self.tls == Tls::Required && !matches!(kind, option::STARTTLS | option::ABORT) {
            if kind == option::EXPORT_NAME {
                return Next::Close("the client asks for an export without TLS");
            }
            let why = b"TLS is required: use STARTTLS";
            option_reply(kind, reply::ERR_TLS_REQD, why, out);
            return Next::More;
        }
        match kind {
            option::EXPORT_NAME => return self.export_name(data, exports, out),
            option::ABORT => {
                option_reply(kind, reply::ACK, b"", out);
                return Next::Close("the client ended the negotiation");
            }
            option::LIST => self.list(data, exports, out),
            option::STARTTLS => return self.start_tls(data, out),
            option::INFO | option::GO => return self.go(kind, data, exports, out),
            option::STRUCTURED_REPLY => self.set_style(kind, Style::Structured, data, out),
            option::EXTENDED_HEADERS => self.set_style(kind, Style::Extended, data, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(kind, data, exports, out);
            }
            _ => {
                let why = b"an option that this server does not know";
                option_reply(kind, reply::ERR_UNSUP, why, out);
            }
        }
        Next::More
    }

    fn start_tls(&self, data: &[u8], out: &mut Vec<u8>) -> Next {
        let (code, why): (u32, &[u8]) = match self.tls {
            _ if !data.is_empty() => (reply::ERR_INVALID, b"STARTTLS takes no data"),
            Tls::Unavailable => (reply::ERR_POLICY, b"this server has no TLS certificate"),
            Tls::Active => (reply::ERR_INVALID, b"TLS is already on"),
            Tls::Offered | Tls::Required => (reply::ACK, b""),
        };
        option_reply(option::STARTTLS, code, why, out);
        if code == reply::ACK {
            Next::StartTls
        } else {
            Next::More
        }
    }

    fn set_style(&mut self, kind: u32, style: Style, data: &[u8], out: &mut Vec<u8>) {
        let (code, why): (u32, &[u8]) = if !data.is_empty() {
            (reply::ERR_INVALID, b"the option takes no data")
        } else if style < self.style {
            (reply::ERR_EXT_HEADER_REQD, b"extended headers are on")
        } else {
            self.style = style;
            (reply::ACK, b"")
        };
        option_reply(kind, code, why, out);
    }

    fn export_name(&self, data: &[u8], exports: &dyn ExportLookup, out: &mut Vec<u8>) -> Next {
        let found = std::str::from_utf8(data)
            .ok()
            .filter(|name| name.len() <= MAX_STRING)
            .and_then(|name| exports.find(name));
        let Some(info) = found else {
            return Next::Close("the client asks for an export that is not served");
        };
        out.extend(info.size.to_be_bytes());
        out.extend(info.flags.to_be_bytes());
        if self.zeroes {
            out.extend([0; 124]);
        }
        self.agreed(info)
    }

    pub(super) fn agreed(&self, info: ExportInfo) -> Next {
        Next::Transmission(Agreed {
            allocation: self.context.as_deref() == Some(&info.name),
            export: info.name,
            style: self.style,
        })
    }
}
