//! `justitia run`: starts the agent, runs its loop until a signal, restores all knobs.

mod checks;
mod event_loop;
mod process;
mod reload;
mod start;
#[cfg(test)]
mod tests;

pub use self::checks::RunError;
pub use self::start::{Standalone, run};
