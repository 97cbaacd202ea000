//! Disks that BFQ or io.cost divides by weight: the weights of their tenants there, corrected in a closed loop.
//!
//! The weights that operators have set stay as they are, and say what is wanted; only the lines of single devices are ours. A
//! weight fails open: whatever stands, no tenant is held while the disk is free. So it needs no watchdog.

mod actuator;
mod law;
mod weighted;

pub use actuator::Controller;
pub use law::{Contention, Corrected, Law, Looked, MOST_CORRECTION, Used};
pub use weighted::{Change, Weighted};

#[cfg(test)]
pub(super) use weighted::tests::a_line_is_written;
