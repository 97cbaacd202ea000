//! The managed cgroups, as the kernel has them: the tree, the weights, and what their operators wrote to `memory.low`.
//! Events keep it up to date; it is rescanned only where events are missing or were lost.
//!
//! The agent and the guest's side of the hypervisor cache follow the same tree. Each keeps its own state of a
//! cgroup's memory in [`Node::memory`].

#![deny(unsafe_code)]

mod follow;
mod identify;
mod inquiry;
mod limits;
mod node;
mod reload;
mod rules;
mod settings;
mod tree;

#[cfg(test)]
mod tests;

pub use follow::memory_low;
pub use justitia_runtimes::{Identity, Resolver, is_unit_name};
pub use limits::MAX_DEPTH;
pub use node::{Node, Protection};
pub use rules::{Matches, Override, Pattern, Rule, Subject, overrides};
pub use tree::{CgroupTree, Changes};
