//! Keeps the protection: writes `memory.low` through the knob store, never against another writer.

mod controller;
mod events;
#[cfg(test)]
mod tests;

pub use self::controller::{ProtectionController, marked_external};
