//! The protocol of the port: the small disk that a guest writes messages to and reads answers from.
//!
//! A guest puts the pages that its page cache evicts, and manages the pools of its own VM (the paper's section 4.1). A message is
//! one write at offset 0, an answer is read from the same disk. Layouts: `docs/design/guest-port.md`.
//!
//! Both sides are untrusted here. Nothing does I/O or panics, and only [`AlignedBuf`] allocates. The layout bounds every count.

mod aligned;
mod answer;
mod area;
mod command;
mod header;
mod message;
mod name;
pub mod sequence;

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "a test that panics fails")]
mod tests;

pub use aligned::AlignedBuf;
pub use answer::{Answer, Status, Tally, Verdict};
pub use area::{Area, AreaHeader, AreaWriter, PoolRow, ReadTime};
pub use command::{Command, Store};
pub use header::{Fault, Kind};
pub use message::{Body, Decoded, Put, PutWriter, decode};
pub use name::{Name, Serial};

/// Bytes of a block, and of a message's first page. Messages are whole pages, as `O_DIRECT` requires.
pub const PAGE: usize = 4096;

/// The most blocks of a message.
pub const MAX_BLOCKS: usize = 31;

/// Bytes of the longest message: its first page and [`MAX_BLOCKS`] blocks, 128 KiB.
pub const MAX_MESSAGE: usize = 131_072;

/// Bytes of the port: the length of the longest message and of the answer area.
pub const PORT_SIZE: usize = MAX_MESSAGE;

/// Answers that the area holds, newest first.
pub const MAX_ANSWERS: usize = 48;

/// Pools that a VM can have over the port, and rows of the pool table.
pub const MAX_POOLS: usize = 256;

/// The most blocks of one MIGRATE: 16 MiB of a disk.
pub const MAX_MIGRATE: u64 = 4096;

/// The pool of blocks that belong to no container.
pub const DEFAULT_POOL: u32 = 0;

/// The highest version of messages here. Each message has the lowest version that can express it: 1, or 2 for a pool with a
/// weight in both stores. The area's header tells the versions that the host understands.
pub const VERSION: u16 = 2;

/// The version of the answer area.
pub(crate) const AREA_VERSION: u16 = 1;
