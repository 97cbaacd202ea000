//! What this kernel and its mounts can do. Capabilities are detected first, each with its reason; which features of the
//! product work follows from them, so that every fallback can name the capability that is missing.

mod capability;
mod controllers;
mod detect;
mod disks;
mod feature;
mod finding;
mod memory;
mod paths;
mod set;

#[cfg(test)]
mod tests;

pub use capability::{Capability, CapabilityId, State};
pub use detect::IO_MAX_WITHOUT_INVERSION;
pub use feature::{Cause, Feature, FeatureSupport, SupportLevel};
pub use paths::Paths;
pub use set::Capabilities;
