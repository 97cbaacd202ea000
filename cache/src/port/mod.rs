//! The host's side of a port: the small disk over which the guest of one VM puts blocks and manages its pools.
//!
//! A port only knows its VM's disks and pools, so a guest cannot reach another VM. A message costs at most 31 verified puts, or
//! one command, whose rate is bounded. The protocol is [`justitia_guest_protocol::puts`]; `docs/design/guest-port.md` describes
//! the effect of each message.

#![deny(clippy::indexing_slicing)]

mod commands;
mod device;
mod state;

#[cfg(test)]
mod test;
#[cfg(test)]
mod test_hostile;

pub use device::{Port, PutTarget};
pub use state::PortStats;
