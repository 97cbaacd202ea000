//! The knob with the weight of a cgroup on one disk.

use justitia_kernel::io::DevId;
use justitia_kernel::knob::Knob;

/// A controller that divides a disk by weight, and takes weights of single devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// The BFQ scheduler.
    Bfq,
    /// io.cost, before any scheduler.
    IoCost,
}

impl Controller {
    /// The largest weight: `BFQ_MAX_WEIGHT` (block/bfq-iosched.h), `CGROUP_WEIGHT_MAX` (include/linux/cgroup.h).
    #[must_use]
    pub const fn most(self) -> u64 {
        match self {
            Self::Bfq => 1000,
            Self::IoCost => 10_000,
        }
    }

    /// Whether it follows weights exactly. BFQ serves requests past them while it idles for another queue (injection).
    #[must_use]
    pub const fn is_exact(self) -> bool {
        matches!(self, Self::IoCost)
    }

    /// The knob of a cgroup.
    #[must_use]
    pub const fn knob(self, device: DevId) -> Knob {
        match self {
            Self::Bfq => Knob::IoBfqWeightOn(device),
            Self::IoCost => Knob::IoWeightOn(device),
        }
    }
}

impl std::fmt::Display for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bfq => "BFQ",
            Self::IoCost => "io.cost",
        })
    }
}
