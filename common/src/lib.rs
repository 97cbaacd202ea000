//! What the agent, the hypervisor cache and the lab need alike: sockets that answer with a document, files where something else may stand, TOML files of
//! which every error has its line, metrics over HTTP, signals of daemons, what of a file is in the page cache, formats of
//! images, and processes that end with what started them.

#![deny(unsafe_code)]

pub mod answer_socket;
pub mod checksum;
pub mod command;
pub mod image_format;
pub mod kill_on_drop;
pub mod metrics;
pub mod page_cache;
pub mod regular_file;
pub mod service_manager;
pub mod signals;
pub mod toml_file;
