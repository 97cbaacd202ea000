//! What the agent, the hypervisor cache and the lab need alike: files where something else may stand, and metrics over HTTP.

#![deny(unsafe_code)]

pub mod metrics;
pub mod regular_file;
