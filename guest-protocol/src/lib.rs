//! What a guest and its host say to each other: [`puts`], blocks that the guest evicts; [`memory`], what its memory is used
//! for, and how much the host asks back.
//!
//! Both sides are untrusted here: nothing does I/O, knows the time or panics, and every length is bounded.

#![forbid(unsafe_code)]
// What is read comes from the other side of a trust boundary: nothing may panic.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

pub mod memory;
pub mod puts;
