//! `justitia run`: starts the agent, runs its loop until a signal, restores all knobs.

mod checks;
mod error;
mod event_loop;
mod process;
mod standalone;
mod start;
#[cfg(test)]
mod tests;

pub use self::error::RunError;
pub use self::standalone::Standalone;
pub use self::start::run;
