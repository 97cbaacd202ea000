//! The constants of the agent's policy, for those who explain its decisions.

use justitia_api::{IoPolicyStatus, PolicyStatus};
use justitia_share::credit::limit::{LEAST_BYTES, LEAST_DIRECTION, LEAST_REQUESTS, WOBBLE};
use justitia_share::credit::{MOST_EMPTYING, Settings};
use justitia_share::fairness_window::{MIN_IO_STALLED, SUSTAINED};
use justitia_share::num::to_u64;

use crate::model::MIN_OBSERVATION;
use crate::plan::credit::room;
use crate::plan::protection::{DEADBAND, MIN_DEADBAND};

/// All of them.
pub(super) fn policy() -> PolicyStatus {
    PolicyStatus {
        min_observation: MIN_OBSERVATION.as_secs_f64(),
        backlogged_active: SUSTAINED.get(),
        backlogged_stalled: MIN_IO_STALLED.get(),
        low_deadband: DEADBAND,
        low_min_deadband: MIN_DEADBAND,
        io: Some(io()),
    }
}

fn io() -> IoPolicyStatus {
    let reserved = Settings::default().reserve;
    IoPolicyStatus {
        reserved,
        max_reserved: reserved + MOST_EMPTYING,
        direction_margin: WOBBLE,
        min_direction: LEAST_DIRECTION + WOBBLE,
        min_rate: to_u64(LEAST_BYTES),
        min_requests: to_u64(LEAST_REQUESTS),
        min_dirty_budget: room::LEAST_ROOM,
        reclaim_step: room::STEP,
        high_deadband: room::DEADBAND,
        ample_free: room::SPARE,
        ample_budget: room::KEEPS,
    }
}
