//! The weights of tenants on disks that BFQ or io.cost divides, corrected in a closed loop.
//!
//! The operators' weights stay, and are the target; the agent writes only the lines of single devices. A weight fails open: it
//! holds no tenant while the disk is free. So it needs no watchdog.

mod actuator;
mod law;
mod weighted;

pub use actuator::Controller;
pub use law::{Contention, Corrected, Law, Looked, MOST_CORRECTION, Used};
pub use weighted::{Change, Weighted};

#[cfg(test)]
pub(super) use weighted::tests::a_line_is_written;
