//! What runs in the guest: the runner's side of the channel, and what it can do.

mod agent;
mod app_counters;
mod background;
mod cgroup;
mod counted;
mod disk;
mod execute;
mod files;
mod host;
mod job;
mod job_report;
mod machine;
mod process;
mod recorder;
mod run;
mod scale;
mod serve;
mod settling;
mod setup;
mod shell;
mod split_sampler;
mod timeline;
mod window;

pub use serve::serve;
