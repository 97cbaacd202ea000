//! The weight of a tenant, as cgroup v2 understands it.

use std::num::NonZeroU16;

/// A tenant's weight among its siblings: 1..=10000, default 100 (Documentation/admin-guide/cgroup-v2.rst,
/// "Weights").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(NonZeroU16);

/// A number that is no weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightError(
    /// What was found.
    pub u64,
);

impl Weight {
    /// The lowest weight, 1.
    pub const MIN: Self = Self(NonZeroU16::MIN);

    /// The weight as a number, 1..=10000.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get() as u64
    }
}

impl Default for Weight {
    fn default() -> Self {
        const { Self(NonZeroU16::new(100).unwrap()) }
    }
}

impl TryFrom<u64> for Weight {
    type Error = WeightError;

    fn try_from(value: u64) -> Result<Self, WeightError> {
        u16::try_from(value)
            .ok()
            .filter(|w| *w <= 10_000)
            .and_then(NonZeroU16::new)
            .map(Self)
            .ok_or(WeightError(value))
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> Self {
        Self::from(weight.0.get())
    }
}

impl std::fmt::Display for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::fmt::Display for WeightError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expected a weight from 1 to 10000, found {}", self.0)
    }
}

impl std::error::Error for WeightError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_that_of_cgroup_v2() {
        assert_eq!(Weight::default().get(), 100);
        assert_eq!(Weight::try_from(1).unwrap(), Weight::MIN);
        assert_eq!(Weight::try_from(10_000).unwrap().get(), 10_000);
        for bad in [0, 10_001, u64::MAX] {
            assert_eq!(Weight::try_from(bad), Err(WeightError(bad)));
        }
    }
}
