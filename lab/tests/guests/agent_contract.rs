//! The agent in a guest: what it must never do to others' knobs, and what it says where it cannot work.

mod delegation;
mod knobs;
mod start;

use super::agent_guest::{Guest, in_guest, paths, small, tenant};
