//! Where a scheduler takes the weight of a cgroup on one disk.

use justitia_kernel::io::DevId;
use justitia_kernel::knob::Knob;

/// The weights of single devices, as a scheduler takes them.
pub trait Actuator {
    /// The largest weight.
    const MOST: u64;

    /// The knob of a cgroup.
    fn knob(device: DevId) -> Knob;

    /// The value of a weight, as the kernel prints it.
    fn value(device: DevId, weight: u64) -> String {
        format!("{device} {weight}")
    }
}

/// BFQ, whose weights are 1 to 1000 (`BFQ_MAX_WEIGHT`, block/bfq-iosched.h).
#[derive(Clone, Copy, Debug)]
pub struct Bfq;

impl Actuator for Bfq {
    const MOST: u64 = 1000;

    fn knob(device: DevId) -> Knob {
        Knob::IoBfqWeightOn(device)
    }
}
