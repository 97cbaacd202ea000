//! The control socket of a daemon: its server and its client.

#![deny(clippy::indexing_slicing)]

mod client;
mod server;

pub use client::{ControlError, default_control_path, make_directory_of, send_request};
pub(super) use server::ControlServer;
