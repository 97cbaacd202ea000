//! Requests of the transmission phase, parsed apart from I/O.

use super::proto::{
    Bytes, EXTENDED_REQUEST_MAGIC, Errno, MAX_PAYLOAD, REQUEST_MAGIC, command, command_flag,
};
use crate::frontend::Operation;

/// The most extents in one reply to BLOCK_STATUS; the client asks again for the rest.
pub(super) const MAX_EXTENTS: usize = 1024;

/// Bytes of the longest header: that of an extended request.
pub(super) const MAX_HEADER: usize = 32;

/// A request's header, checked for form only. [`checked`](Self::checked) tests the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's id of this request.
    pub cookie: u64,
    /// The command.
    pub command: Command,
    /// The offset, bytes.
    pub offset: u64,
    /// The length, bytes.
    pub length: u64,
    /// Bytes that follow the header. They must be read even if the request is refused.
    pub payload: u32,
    /// Structured replies answer the command in chunks, including any error.
    pub chunked: bool,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Disconnect; has no reply.
    Disconnect,
    /// An operation of a volume.
    Do(Operation),
    /// A request that gets an error.
    Refused(Refusal),
}

/// The result of parsing received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Fewer bytes than a header has.
    Incomplete,
    /// A request, and its header's length.
    Request(Request, usize),
    /// No request: the connection cannot be parsed further.
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
    // Without extended headers only WRITE has a payload, and no flag announces it.
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
    // Clients may set FUA on any command; it is ignored where nothing is written.
    let known = |also: u16| flags & !(command_flag::FUA | command_flag::PAYLOAD_LEN | also) == 0;
    let empty = length == 0;
    Command::Do(match kind {
        command::READ if known(command_flag::DF) && !empty => {
            if length > u64::from(MAX_PAYLOAD) {
                return Command::Refused(Refusal::TooLong);
            }
            Operation::Read
        }
        command::WRITE if known(0) && !empty => Operation::Write { fua },
        command::DISC => return Command::Disconnect,
        command::FLUSH if known(0) => Operation::Flush,
        command::TRIM if known(0) && !empty => Operation::Discard { fua },
        command::WRITE_ZEROES
            if known(command_flag::NO_HOLE | command_flag::FAST_ZERO) && !empty =>
        {
            Operation::WriteZeroes {
                fua,
                may_unmap: flags & command_flag::NO_HOLE == 0,
                fast: flags & command_flag::FAST_ZERO != 0,
            }
        }
        command::BLOCK_STATUS if known(command_flag::REQ_ONE) && !empty => Operation::Extents {
            limit: match flags & command_flag::REQ_ONE {
                0 => MAX_EXTENTS,
                _ => 1,
            },
        },
        _ => return Command::Refused(Refusal::Form { kind, flags }),
    })
}

impl Request {
    /// Checks the request for an export of `size` bytes: refuses a range beyond it, and a change of a read-only export.
    #[must_use]
    pub fn checked(mut self, size: u64, read_only: bool) -> Self {
        let Command::Do(operation) = self.command else {
            return self;
        };
        let writes = operation.is_write();
        let ranged = operation != Operation::Flush;
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

// Why a request is refused.

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It would change a read-only export.
    ReadOnly,
    /// Its range ends beyond the export.
    BeyondEnd {
        /// Bytes of the export.
        size: u64,
        /// It would change the export.
        writes: bool,
    },
    /// It would read more than a reply can hold.
    TooLong,
    /// The command is unknown, has unknown flags, or needs a length.
    Form {
        /// The command's number.
        kind: u16,
        /// Its flags.
        flags: u16,
    },
    /// It asks for the allocation, which was not negotiated.
    NoAllocation,
}

impl Refusal {
    /// The error that the client gets.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::ReadOnly => Errno::Perm,
            Self::BeyondEnd { writes: true, .. } => Errno::NoSpc,
            Self::TooLong => Errno::Overflow,
            Self::BeyondEnd { .. } | Self::Form { .. } | Self::NoAllocation => Errno::Inval,
        }
    }

    /// In words, for a request of `length` bytes at `offset`.
    #[must_use]
    pub fn reason(self, offset: u64, length: u64) -> String {
        match self {
            Self::ReadOnly => format!(
                "expected no change of a read-only export, found one of {length} bytes at {offset}"
            ),
            Self::BeyondEnd { size, .. } => format!(
                "expected a range inside the {size} bytes of the export, found {length} bytes at {offset}"
            ),
            Self::TooLong => {
                format!("expected a read of at most {MAX_PAYLOAD} bytes, found {length}")
            }
            Self::Form { kind, flags } => format!(
                "expected a known command with its flags and at least one byte, found command {kind} with flags {flags:#x} and {length} bytes"
            ),
            Self::NoAllocation => {
                "expected `base:allocation` to be negotiated, found BLOCK_STATUS without".into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Refusal;

    #[test]
    fn a_reason_says_what_was_found_and_fits_a_reply() {
        let (kind, flags) = (u16::MAX, u16::MAX);
        for (refusal, found) in [
            (Refusal::ReadOnly, "one of 9 bytes at 7"),
            (
                Refusal::BeyondEnd {
                    size: 8,
                    writes: true,
                },
                "the 8 bytes of the export, found 9 bytes at 7",
            ),
            (Refusal::TooLong, "33554432 bytes, found 9"),
            (
                Refusal::Form { kind, flags },
                "command 65535 with flags 0xffff and 9 bytes",
            ),
            (Refusal::NoAllocation, "BLOCK_STATUS"),
        ] {
            let reason = refusal.reason(7, 9);
            assert!(reason.contains(found), "{reason}");
            // Only that much of it is sent.
            assert!(refusal.reason(u64::MAX, u64::MAX).len() <= 200, "{reason}");
        }
    }
}
