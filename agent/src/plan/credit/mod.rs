//! Device credits: which limits each tenant gets on a disk, and how much room its dirty pages.
//!
//! The arithmetic is [`justitia_share::credit`]; here it becomes knobs, each with its reason.

mod limits;
pub mod room;

pub use limits::{LimitIntent, LimitReason, io_max, plan_limits};
pub use room::{LEAST_ROOM, RoomIntent, Writer, plan_rooms};
