//! Negotiation (fixed newstyle), apart from I/O.

use super::proto::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, Bytes, MAX_OPTION, MAX_PAYLOAD, MAX_STRING, NBD_MAGIC,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, PREFERRED_BLOCK, handshake, info, option, reply,
};
use super::reply::Style;

// Inputs and results of a negotiation.

/// An export's properties for negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its name.
    pub name: String,
    /// A human-readable description.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Transmission flags (`proto::export_flag`).
    pub flags: u16,
}

/// The exports that negotiation offers.
pub trait ExportLookup {
    /// The export of that name, or the default one for the empty name.
    fn find(&self, name: &str) -> Option<ExportInfo>;
    /// All of them.
    fn list(&self) -> Vec<ExportInfo>;
    /// Their number.
    fn count(&self) -> usize {
        self.list().len()
    }
}

/// The connection's state of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// The server has no certificate.
    Unavailable,
    /// The client may start TLS.
    Offered,
    /// The client must start TLS before anything else.
    Required,
    /// TLS is on.
    Active,
}

/// The next step after the consumed bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// More bytes are needed.
    More,
    /// Send the replies, then start TLS. Call again with the bytes that arrive through it.
    StartTls,
    /// Requests follow.
    Transmission(Agreed),
    /// Send the replies, then close the connection for this reason.
    Close(&'static str),
}

/// The negotiated values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The export's name, as the server knows it.
    pub export: String,
    /// The style of replies.
    pub style: Style,
    /// BLOCK_STATUS is allowed.
    pub allocation: bool,
}

// The negotiation (fixed newstyle), without I/O: it consumes and produces bytes.

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

/// The options that a client may send for each export when it lists a server: `nbdinfo --list` needs two.
const OPTIONS_PER_EXPORT: usize = 8;

impl Handshake {
    /// Begins a negotiation. Appends the server's greeting to `out`.
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

    /// TLS is on. Voids everything negotiated before, perhaps by an attacker.
    pub fn secured(&mut self) {
        self.tls = Tls::Active;
        self.style = Style::Simple;
        self.context = None;
    }

    /// Handles the first message in `bytes`. Returns the number of consumed bytes and the next step; appends replies to `out`.
    /// After [`Next::More`] with bytes consumed, call again.
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

    /// `None` while the option is incomplete.
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

// Options about exports: LIST, INFO, GO, and metadata contexts.

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

    fn go(&self, kind: u32, data: &[u8], exports: &dyn ExportLookup, out: &mut Vec<u8>) -> Next {
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

    fn meta_context(
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

// The data of options, and the replies to them.

fn parse_go(data: &[u8]) -> Option<(&str, Vec<u16>)> {
    let mut rest = Bytes(data);
    let name = rest.string(MAX_STRING)?;
    let count = rest.u16()?;
    // Repeated items must not make the replies grow.
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

fn parse_meta(data: &[u8]) -> Option<(&str, Vec<&str>)> {
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

fn option_reply(option: u32, kind: u32, payload: &[u8], out: &mut Vec<u8>) {
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
