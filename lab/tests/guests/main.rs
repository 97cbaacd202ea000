//! What is tested in guests: the agent, the hypervisor cache, guests that put what they evict, the package, the lab itself.

#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the helpers of tests are tests"
)]

mod agent_caps;
mod agent_contract;
mod agent_credits;
mod agent_disks;
mod agent_dying_cgroups;
mod agent_guest;
mod agent_old_kernel;
mod agent_pressure;
mod agent_restore;
mod agent_working_set;
mod cache_daemon;
mod cache_devices;
mod cache_script;
mod cache_vm;
mod commands;
mod cooperation;
mod databases;
mod double_caching;
mod guest_host;
mod guest_memory;
mod guest_puts;
mod host_memory;
mod memory_split;
mod nbd_files;
mod ordinary;
mod package;
mod power_loss;
mod probes_agent;
mod programs;
mod real_databases;
mod recharge;
mod reference;
mod retry;
mod runtimes;
mod runtimes_files;
mod runtimes_fleet;
mod runtimes_libvirt;
mod runtimes_pages;
mod runtimes_reloads;
mod runtimes_rootless;
mod runtimes_writers;
mod soak;
mod unmapped;
mod vm_lab;
