//! The daemon is stopped and started again, as systemd does, and executed again: what was cached is there, and clients go on
//! over an exec.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod exec;
mod manager;
mod restart;
mod worker;
