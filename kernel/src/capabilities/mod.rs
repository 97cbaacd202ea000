//! What this kernel and its mounts can do. Capabilities are detected first, each with its reason; which features of the
//! product work follows from them, so that every fallback can name the capability that is missing.

mod capability;
mod detect;
mod feature;

#[cfg(test)]
mod tests;

pub use capability::{Capability, CapabilityId, Paths, State};
pub use detect::Capabilities;
pub use feature::{Cause, Feature, FeatureSupport, SupportLevel};
