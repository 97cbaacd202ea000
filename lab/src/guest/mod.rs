//! What runs in the guest: the runner's side of the channel, and what it can do.

mod agent;
mod cgroup;
mod contention;
mod evaluate;
mod files;
mod probes;
mod sampler;
mod scale;
mod serve;
mod setup;
mod shell;
mod split;
mod watch;
mod work;

pub use serve::serve;
