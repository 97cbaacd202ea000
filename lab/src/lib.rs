//! Experiments on a stock kernel in a virtual machine.
//!
//! * [`kernel`] finds the kernel, [`image`] builds the guest's file system, [`vm`] boots it and
//!   runs scripts in it;
//! * [`experiment`] reads the definitions, [`run`] runs them, each time in a fresh guest, where
//!   [`guest`] does what they say and measures;
//! * [`command_reference`] writes the documents that are made from the code;
//! * [`cache_experiment`] writes down experiments with the hypervisor cache for the same report;
//! * [`report`] is what the lab writes down, and how it is shown to people.

mod host;

pub mod cache_experiment;
pub mod command_reference;
pub mod experiment;
pub mod guest;
pub mod image;
pub mod kernel;
mod protocol;
pub mod report;
pub mod run;
mod spec;
pub mod vm;

pub use host::LabDir;
