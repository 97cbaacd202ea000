//! A watchdog process beside the agent, which restores limits when the agent cannot.
//!
//! The agent starts it before it sets the first limit. The watchdog reads the agent's heartbeat from its standard input,
//! and does two things:
//!
//! - If the heartbeat stops for [`TIMEOUT`] (the agent was stopped by SIGSTOP, or hangs), it restores all knobs that
//!   throttle, as the journal names them. It then interrupts the agent, in case the kernel holds it in a write, and waits on.
//! - If its input ends without `CLEAN_SHUTDOWN` (the agent is gone), it does what `justitia reset` does, unless another
//!   agent has started.
//!
//! It is in a process group of its own, so that a signal to the agent's group does not reach it. What freezes the whole
//! cgroup (`cgroup.freeze`) or the machine also freezes the watchdog.

mod handle;
mod process;
mod protocol;

pub use self::handle::Watchdog;
pub use self::process::{interrupt, watch};
pub use self::protocol::{INTERRUPT, LEASE_EXPIRY, TIMEOUT};
