//! The agent: its state, and the stages of a tick of its loop.

mod events;
#[cfg(test)]
mod tests;
mod tick;

pub use self::tick::Agent;
