//! Memory between virtual machines, on the host.
//!
//! [`law`] decides, pure: from what the host sees of its VMs and what their guests report it makes requests to give memory
//! back, and balloon sizes. The rest finds the VMs, asks their guests, sets balloons, and restores them. [`duplicates`] says what a guest and its host cache both.

#![deny(unsafe_code)]

pub mod channel;
pub mod config;
pub mod discover;
pub mod duplicates;
pub mod held;
mod images;
pub mod journal;
pub mod law;
mod managed;
pub mod metrics;
pub mod monitor;
pub mod run;
pub mod socket;
pub mod status;
mod vm;
