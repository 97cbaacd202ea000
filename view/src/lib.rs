//! What people see of the agent.
//!
//! Everything here works on the agent's [`Status`](justitia_api::Status), wherever it comes from: a
//! running agent's socket, an agent in this process that only observes, or a recording.
//!
//! * [`explain`]: why each knob of a tenant stands where it stands.
//! * [`top`]: the tree, live, in a terminal.
//! * [`record`]: statuses in a file, compact, seekable, robust.

#![cfg_attr(not(test), deny(unsafe_code))]

pub mod clock;
pub mod curve;
pub mod explain;
pub mod record;
pub mod table;
pub mod top;
pub mod whatif;
