//! The agent in a guest: what it must never do to others' knobs, and what it says where it cannot work.

#[path = "../agent_guest/mod.rs"]
mod agent_guest;

mod delegation;
mod knobs;
mod start;

use agent_guest::{Guest, in_guest, paths, small, tenant};
