//! The protocol of the port: the small disk that a guest writes messages to and reads answers from.
//!
//! A guest puts what its page cache evicts, and manages the pools of its own VM (the paper's section 4.1). A message is
//! one write at offset 0, an answer is read from the same disk. Layouts: `docs/design/guest-port.md`.
//!
//! Both sides are untrusted here. Nothing does I/O or panics, and only [`AlignedBuf`] allocates; every count is bounded by
//! the layout.

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

/// Bytes of a block, and of the page that a message begins with. Messages are whole pages, as `O_DIRECT` wants.
pub const PAGE: usize = 4096;

/// Blocks that one message can carry.
pub const MAX_BLOCKS: usize = 31;

/// Bytes of the longest message: its first page and [`MAX_BLOCKS`] blocks, 128 KiB.
pub const MAX_MESSAGE: usize = 131_072;

/// Bytes of the port: as many as the longest message and as the answer area.
pub const PORT_SIZE: usize = MAX_MESSAGE;

/// Answers that the area holds, newest first.
pub const MAX_ANSWERS: usize = 48;

/// Pools that a VM can have over the port, and rows of the pool table.
pub const MAX_POOLS: usize = 256;

/// Blocks that one MIGRATE can name: 16 MiB of a disk.
pub const MAX_MIGRATE: u64 = 4096;

/// The pool of blocks that belong to no container.
pub const DEFAULT_POOL: u32 = 0;

/// The highest version of messages that this is. A message has the lowest that has what it says: 1, or 2 where a pool has a
/// weight in both stores. The host says in the area's header which it understands.
pub const VERSION: u16 = 2;

/// The version of the answer area.
pub(crate) const AREA_VERSION: u16 = 1;
