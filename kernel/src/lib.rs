//! The kernel's interfaces, typed.
//!
//! * [`cgroup`]: cgroup v2, reached relative to a directory's descriptor and keyed by cgroup id, so that a path which
//!   another cgroup has taken over is never mistaken for the old one.
//! * [`knob`], [`reclaim`](cgroup::Cgroup::reclaim), [`attach_process`](cgroup::Cgroup::attach_process) and [`lru_gen`]:
//!   the only writes.
//! * [`mod@file`] and [`mod@extents`]: a file by its inode number, its part of the page cache, and where it lies.
//! * [`proc`](mod@proc): `/proc/meminfo`, `/proc/vmstat`, `/proc/zoneinfo`, `/proc/pressure`.
//! * [`block`] and [`io`]: schedulers, io.cost, `io.stat` and weights.
//! * [`probes`]: what applications read and write, counted by eBPF.
//! * [`watch`]: changes in the cgroup tree, without rescanning it, and which processes write knobs.
//! * [`capabilities`] and [`release`]: what this kernel and its mounts can do, each with its reason.
//!
//! Every type that the kernel prints has a `parse(&[u8])`, which is pure: it never panics and never allocates more than a
//! small multiple of its input. Every error says which operation failed on which path, and a parse error what was expected
//! and what was found.

#![deny(unsafe_code)]
#![deny(clippy::indexing_slicing)]

pub mod block;
pub mod capabilities;
pub mod cgroup;
pub mod error;
pub mod extents;
pub mod file;
pub mod io;
pub mod knob;
pub mod lru_gen;
pub mod memory;
pub mod mount;
pub mod probes;
pub mod proc;
pub mod psi;
pub mod release;
pub mod watch;

mod buffer;
mod parse;

pub use error::{Error, Operation, Result};
pub use justitia_share::PAGE_SIZE;
pub use parse::ParseError;
