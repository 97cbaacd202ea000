//! How much a counter has grown lately.

use std::time::Instant;

use justitia_share::num::{to_f64, to_u64};

use crate::model::COST_HALF_LIFE;

/// The growth of a counter, decaying by half every [`COST_HALF_LIFE`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DecayingCount {
    /// The highest value so far, and when the growth was last computed; `None` before the first value.
    last: Option<(u64, Instant)>,
    recent: f64,
}

impl DecayingCount {
    /// Takes the counter's value. One that is below an earlier value, such as an estimate, counts as no growth.
    pub(super) fn record(&mut self, value: u64, now: Instant) {
        let Some((before, _)) = self.last else {
            self.last = Some((value, now));
            return;
        };
        self.recent = to_f64(self.recent(now)) + to_f64(value.saturating_sub(before));
        self.last = Some((value.max(before), now));
    }

    /// The growth lately.
    pub(super) fn recent(&self, now: Instant) -> u64 {
        self.last.map_or(0, |(_, at)| {
            to_u64(self.recent * COST_HALF_LIFE.decay(now.saturating_duration_since(at)))
        })
    }

    /// The highest value so far.
    pub(super) fn total(&self) -> u64 {
        self.last.map_or(0, |(value, _)| value)
    }
}
