//! What runs in the guest: the runner's side of the channel, and what it can do.

mod files;
mod serve;
mod shell;

pub use serve::serve;
