//! What the agent, the hypervisor cache and the lab need alike: files where something else may stand, TOML files of
//! which every error has its line, metrics over HTTP, and what of a file is in the page cache.

#![deny(unsafe_code)]

pub mod checksum;
pub mod command;
pub mod metrics;
pub mod page_cache;
pub mod regular_file;
pub mod toml_file;
