//! What a cgroup is: the container, pod, virtual machine or unit that it belongs to, its name, image and labels, and the I/O
//! weight that was declared for it.
//!
//! [`Resolver::resolve`] answers from the cgroup's path and from files that runtimes and systemd keep; it asks no daemon.
//! `path` says what a path can mean; [`parse`] reads the files' formats; `docker`, `podman`, `containerd`, `libvirt` and `unit`
//! know where which file is.
//!
//! Cgroups' names are chosen by others. Only what has the form of an id becomes part of a path, and what a runtime's files say
//! counts for the cgroup that they name and for no other. A file counts only if it is a regular one, owned by root (of
//! rootless containers: or by their user), not writable by others, reached without a link below the runtime's directory, and
//! at most [`MAX_FILE`] bytes long. Whatever is wrong with one, the next source is asked; [`Resolver::errors`] counts.

#![deny(unsafe_code)]
#![deny(clippy::indexing_slicing)]

mod answer;
mod containerd;
mod docker;
mod files;
mod identity;
mod installed;
mod libvirt;
pub mod parse;
mod path;
mod podman;
mod resolve;
mod unit;

pub use files::MAX_FILE;
pub use identity::{Declared, Found, Identity};
pub use installed::{Installed, Reads, installed};
pub use path::{is_unit_name, system_unit};
pub use resolve::Resolver;
