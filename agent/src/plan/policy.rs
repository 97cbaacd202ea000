//! The planners' constants.

use std::time::Duration;

use justitia_api::DemandModel;
use justitia_share::num;

use crate::model::Memory;

/// The constants of the planners. The defaults suit every machine that we know; the configuration may change those that
/// are matters of taste.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// What of its cache a tenant demands. Default: what it uses.
    pub demand: DemandModel,
    /// Reclaim begins when free memory, as fast as it falls, would wake kswapd within this time. Default 200 ms: a burst of
    /// allocations takes that long to be noticed and answered.
    pub horizon: Duration,
    /// What reclaim refills as fast as it is consumed is kept free for the time of a [reaction](Memory::reaction), within
    /// these bounds. Default 100 ms, two ticks under pressure, to a second: it is memory that working sets which do not fit
    /// do not have.
    pub reaction: (Duration, Duration),
    /// Nothing is reclaimed from a tenant with this memory pressure (PSI `full avg10`), percent. Default 60.
    pub full_avg10_max: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            demand: DemandModel::Use,
            horizon: Duration::from_millis(200),
            reaction: (Duration::from_millis(100), Duration::from_secs(1)),
            full_avg10_max: 60.0,
        }
    }
}

impl Policy {
    /// The free memory to keep, bytes. Below it tenants give back what exceeds their entitlements. kswapd wakes below the
    /// low watermark and reclaims up to the high one, so the kernel alone keeps what lies in the middle free on the mean.
    /// That is kept, too, or above the low watermark what will be consumed until it is refilled, if that is more, at least
    /// 0.4 % and at most 6 % of the memory: below the low one kswapd, and not the agent, would choose whose pages go. It is
    /// taken from excess only, so it costs no tenant its entitlement.
    #[must_use]
    pub fn free_headroom(&self, memory: &Memory) -> u64 {
        let falls = num::to_f64(memory.fall_rate) * self.horizon.as_secs_f64();
        let reaction = memory.reaction.clamp(self.reaction.0, self.reaction.1);
        let refilled = num::to_f64(memory.refill_rate) * reaction.as_secs_f64();
        // What is consumed between two refills falls and is refilled: it is the same.
        let ahead = num::to_u64(falls.max(refilled)).clamp(memory.total / 256, memory.total / 16);
        let gap = memory.high_watermark.saturating_sub(memory.low_watermark);
        memory.low_watermark.saturating_add(ahead.max(gap / 2))
    }
}
