//! The numbers of the NBD protocol (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>).

/// First bytes of a server.
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Announces newstyle negotiation, and begins every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins a compact request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins an extended request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Begins a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;
/// Begins a chunk of a reply when extended headers were negotiated.
pub const EXTENDED_CHUNK_MAGIC: u32 = 0x6e8a_278c;

/// Handshake flags, the same in both directions.
pub mod handshake {
    /// The fixed newstyle negotiation: an unknown option gets a reply.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeroes after EXPORT_NAME.
    pub const NO_ZEROES: u16 = 2;
}

/// What a client may ask for during negotiation.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of a reply to an option.
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERROR | 1;
    pub const ERR_POLICY: u32 = ERROR | 2;
    pub const ERR_INVALID: u32 = ERROR | 3;
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR | 10;
}

/// Types of information in a reply of type [`reply::INFO`].
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub mod export_flag {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
}

/// Commands.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub mod command_flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Types of a chunk of a structured or extended reply.
pub mod chunk {
    pub const FLAG_DONE: u16 = 1;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = (1 << 15) | 1;
}

/// What is known of an extent (context `base:allocation`).
pub mod extent_flag {
    pub const HOLE: u32 = 1;
    pub const ZERO: u32 = 2;
}

/// The one metadata context that is served.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number by which replies name it.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Errors as the protocol numbers them; they happen to be Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not allowed: a write to a read-only export.
    Perm = 1,
    /// The backing store failed.
    Io = 5,
    /// No memory.
    NoMem = 12,
    /// A request that makes no sense, or a range beyond the export.
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
pub const MAX_OPTION: u32 = 64 << 10;
/// The longest export name and query (a "string" of the protocol).
pub const MAX_STRING: usize = 4096;
/// The largest payload of a READ or WRITE; what clients assume unless told otherwise.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// The block size that is best for requests.
pub const PREFERRED_BLOCK: u32 = 4096;
