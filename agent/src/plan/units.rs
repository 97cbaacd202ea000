//! Amounts in reasons.

use justitia_share::num::to_f64;

/// Bytes in a MiB.
pub(super) const MIB: f64 = 1_048_576.0;

/// Bytes in MiB.
pub(super) fn mib(bytes: u64) -> f64 {
    to_f64(bytes) / MIB
}
