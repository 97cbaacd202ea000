//! The numbers of the NBD protocol (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>).

/// First bytes of a server.
pub(super) const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Announces newstyle negotiation, and begins every option.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins every reply to an option.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins a compact request.
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins an extended request.
pub(super) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Begins a simple reply.
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub(super) const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// Begins a chunk of a reply when extended headers were negotiated.
pub(super) const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// Handshake flags, the same in both directions.
pub(super) mod handshake {
    /// The fixed newstyle negotiation: an unknown option gets a reply.
    pub(crate) const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeroes after EXPORT_NAME.
    pub(crate) const NO_ZEROES: u16 = 2;
}

/// Options of a client during negotiation.
pub(super) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
    pub(crate) const EXTENDED_HEADERS: u32 = 11;
}

/// Types of a reply to an option.
pub(super) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = ERROR | 1;
    pub(crate) const ERR_POLICY: u32 = ERROR | 2;
    pub(crate) const ERR_INVALID: u32 = ERROR | 3;
    pub(crate) const ERR_TLS_REQD: u32 = ERROR | 5;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR | 6;
    pub(crate) const ERR_EXT_HEADER_REQD: u32 = ERROR | 10;
}

/// Types of information in a reply of type [`reply::INFO`].
pub(super) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub(super) mod export_flag {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub(super) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub(super) mod command_flag {
    pub(crate) const FUA: u16 = 1;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
    pub(crate) const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of a chunk of a structured or extended reply.
pub(super) mod chunk {
    pub(crate) const FLAG_DONE: u16 = 1;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const BLOCK_STATUS_EXT: u16 = 6;
    pub(crate) const ERROR: u16 = (1 << 15) | 1;
}

/// Flags of an extent (context `base:allocation`).
pub(super) mod extent_flag {
    pub(crate) const HOLE: u32 = 1;
    pub(crate) const ZERO: u32 = 2;
}

/// The one metadata context that is served.
pub(super) const BASE_ALLOCATION: &str = "base:allocation";
/// The number by which replies name it.
pub(super) const BASE_ALLOCATION_ID: u32 = 1;

/// Error numbers of the protocol, which equal Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not allowed: a write to a read-only export.
    Perm = 1,
    /// The backing store failed.
    Io = 5,
    /// No memory.
    NoMem = 12,
    /// An invalid request, or a range beyond the export.
    Inval = 22,
    /// No space, also a write beyond the export.
    NoSpc = 28,
    /// A request that is too large.
    Overflow = 75,
    /// Not supported.
    NotSup = 95,
    /// The server is going away.
    Shutdown = 108,
}

impl Errno {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }
}

impl From<&std::io::Error> for Errno {
    fn from(e: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        match e.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::Perm,
            ErrorKind::InvalidInput => Self::Inval,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Self::NoSpc
            }
            ErrorKind::OutOfMemory => Self::NoMem,
            ErrorKind::Unsupported => Self::NotSup,
            _ => Self::Io,
        }
    }
}

/// The largest option that is read: names are at most 4096 bytes, queries a few more.
pub(super) const MAX_OPTION: u32 = 64 << 10;
/// The longest export name and query (a "string" of the protocol).
pub(super) const MAX_STRING: usize = 4096;
/// The largest payload of a READ or WRITE: the default that clients assume.
pub(super) const MAX_PAYLOAD: u32 = 32 << 20;
/// The preferred block size of requests.
pub(super) const PREFERRED_BLOCK: u32 = 4096;

// Cutting numbers and strings off received bytes.

/// The remaining bytes of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next `count` bytes; `None` when there are fewer.
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    /// A big-endian number.
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// A big-endian number.
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A big-endian number.
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string after its length (32 bits), at most `max` bytes, UTF-8.
    pub(super) fn string(&mut self, max: usize) -> Option<&'a str> {
        let count = usize::try_from(self.u32()?).ok().filter(|n| *n <= max)?;
        std::str::from_utf8(self.take(count)?).ok()
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}
