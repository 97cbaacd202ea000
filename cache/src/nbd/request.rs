//! Requests of the transmission phase, parsed apart from I/O.

use super::parse::Bytes;
use super::proto::{EXTENDED_REQUEST_MAGIC, MAX_PAYLOAD, REQUEST_MAGIC, command, command_flag};
use super::refusal::Refusal;

/// Bytes of the longest header: that of an extended request.
pub(super) const MAX_HEADER: usize = 32;

/// A request's header, checked for form; whether the range fits the export is asked later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the client calls this request.
    pub cookie: u64,
    /// What to do.
    pub command: Command,
    /// Where.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// Bytes that follow the header, to be read whatever becomes of the request.
    pub payload: u32,
    /// Of a command that structured replies answer in chunks, errors too, whatever is wrong with the request.
    pub chunked: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read,
    /// Write; on stable storage before the reply if `fua`.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Disconnect; has no reply.
    Disconnect,
    /// All that was written before goes to stable storage.
    Flush,
    /// The content is no longer needed.
    Trim {
        /// Force unit access.
        fua: bool,
    },
    /// Make it fast to read.
    Cache,
    /// Write zeroes.
    WriteZeroes {
        /// Force unit access.
        fua: bool,
        /// The space may be given back.
        may_unmap: bool,
        /// Only if that takes less than to write them.
        fast: bool,
    },
    /// Tell which parts are allocated.
    BlockStatus {
        /// One extent is enough.
        one: bool,
    },
    /// A request that gets an error.
    Refused(Refusal),
}

/// What the received bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Fewer bytes than a header has.
    Incomplete,
    /// A request, and its header's length.
    Request(Request, usize),
    /// No request: the connection cannot be understood any more.
    Garbage(&'static str),
}

/// Parses the header at the beginning of `bytes`.
#[must_use]
pub fn parse(bytes: &[u8], extended: bool) -> Parsed {
    let mut rest = Bytes(bytes);
    header(&mut rest, extended).map_or(Parsed::Incomplete, |parsed| match parsed {
        Ok(request) => Parsed::Request(request, bytes.len() - rest.0.len()),
        Err(why) => Parsed::Garbage(why),
    })
}

fn header(rest: &mut Bytes, extended: bool) -> Option<Result<Request, &'static str>> {
    let magic = if extended {
        EXTENDED_REQUEST_MAGIC
    } else {
        REQUEST_MAGIC
    };
    if rest.u32()? != magic {
        return Some(Err("a request that does not begin with its magic"));
    }
    let flags = rest.u16()?;
    let kind = rest.u16()?;
    let cookie = rest.u64()?;
    let offset = rest.u64()?;
    let length = if extended {
        rest.u64()?
    } else {
        u64::from(rest.u32()?)
    };
    let has_payload = if extended {
        flags & command_flag::PAYLOAD_LEN != 0
    } else {
        kind == command::WRITE
    };
    let payload = if has_payload { length } else { 0 };
    let Ok(payload) = u32::try_from(payload) else {
        return Some(Err("a payload of more than 4 GiB"));
    };
    if payload > MAX_PAYLOAD {
        return Some(Err("a payload of more than 32 MiB"));
    }
    // Without extended headers, a payload is a WRITE's, and no flag says so.
    let flagged = flags & command_flag::PAYLOAD_LEN != 0;
    let allowed = has_payload == (kind == command::WRITE) && (extended || !flagged);
    Some(Ok(Request {
        cookie,
        command: if allowed {
            command_of(kind, flags, length)
        } else {
            Command::Refused(Refusal::Form { kind, flags })
        },
        offset,
        length,
        payload,
        chunked: matches!(kind, command::READ | command::BLOCK_STATUS),
    }))
}

fn command_of(kind: u16, flags: u16, length: u64) -> Command {
    let fua = flags & command_flag::FUA != 0;
    // Clients may set FUA on any command; where nothing is written it means nothing.
    let known = |also: u16| flags & !(command_flag::FUA | command_flag::PAYLOAD_LEN | also) == 0;
    let empty = length == 0;
    match kind {
        command::READ if known(command_flag::DF) && !empty => {
            if length > u64::from(MAX_PAYLOAD) {
                Command::Refused(Refusal::TooLong)
            } else {
                Command::Read
            }
        }
        command::WRITE if known(0) && !empty => Command::Write { fua },
        command::DISC => Command::Disconnect,
        command::FLUSH if known(0) => Command::Flush,
        command::TRIM if known(0) && !empty => Command::Trim { fua },
        command::CACHE if known(0) && !empty => Command::Cache,
        command::WRITE_ZEROES
            if known(command_flag::NO_HOLE | command_flag::FAST_ZERO) && !empty =>
        {
            Command::WriteZeroes {
                fua,
                may_unmap: flags & command_flag::NO_HOLE == 0,
                fast: flags & command_flag::FAST_ZERO != 0,
            }
        }
        command::BLOCK_STATUS if known(command_flag::REQ_ONE) && !empty => Command::BlockStatus {
            one: flags & command_flag::REQ_ONE != 0,
        },
        _ => Command::Refused(Refusal::Form { kind, flags }),
    }
}

impl Request {
    /// The request as far as an export of `size` bytes can serve it: a range beyond it, or a change of a
    /// read-only export, is refused.
    #[must_use]
    pub fn checked(mut self, size: u64, read_only: bool) -> Self {
        let writes = matches!(
            self.command,
            Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. }
        );
        let ranged = !matches!(
            self.command,
            Command::Flush | Command::Disconnect | Command::Refused(_)
        );
        let fits = self
            .offset
            .checked_add(self.length)
            .is_some_and(|end| end <= size);
        if writes && read_only {
            self.command = Command::Refused(Refusal::ReadOnly);
        } else if ranged && !fits {
            self.command = Command::Refused(Refusal::BeyondEnd { size, writes });
        }
        self
    }
}
