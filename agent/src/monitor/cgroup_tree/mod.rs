//! The managed cgroups, as the kernel has them: the tree, the weights, and what their operators wrote to `memory.low`.
//! Events keep it up to date; it is rescanned only where events are missing or were lost.

mod delegation;
mod events;
mod node;
mod quota;
mod rate_limit;
mod scan;
mod tree;
mod weight;

#[cfg(test)]
mod tests;

pub use node::Node;
pub use quota::MAX_DEPTH;
pub use scan::memory_low;
pub use tree::{CgroupTree, Changes};
