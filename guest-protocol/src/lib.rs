//! The messages between a guest and its host: [`puts`] carries blocks that the guest evicts; [`memory`] tells how the guest uses
//! its memory, and how much the host asks back.
//!
//! Both sides are untrusted here: nothing does I/O, knows the time or panics, and every length is bounded.

#![forbid(unsafe_code)]
// Input comes from the other side of a trust boundary: nothing may panic.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

pub mod memory;
pub mod puts;
