//! The types that the agent's status socket, metrics, recordings, `justitia explain` and `--json` share.
//!
//! This crate is the border between the agent and everything that shows what it does. It has no dependency on the agent,
//! on the kernel's interfaces, or on eBPF.
//!
//! * [`Status`]: the answer of the socket, with [`TenantStatus`], [`KnobStatus`], [`Decision`] and the rest below it.
//! * [`client`]: asks a running agent.
//! * [`Action`] and [`Reason`]: what was done and why, as data. `words` has their words.
//! * [`size`]: bytes as people write them.
//! * [`units`]: bytes, rates and durations as people read them.
//! * [`escape`]: cgroup names and foreign text, made safe for a terminal.

#![deny(unsafe_code)]
#![deny(clippy::indexing_slicing)]

mod action;
mod app;
pub mod client;
mod curve;
mod decision;
mod demand;
pub mod escape;
mod knob;
mod machine;
mod policy;
mod reason;
pub mod size;
mod status;
mod tenant;
pub mod units;
mod words;

pub use action::Action;
pub use app::AppStatus;
pub use curve::CurveStatus;
pub use decision::Decision;
pub use demand::{DemandModel, EstimateBasis};
pub use knob::{ExternalKnob, GivenUpKnob, KnobOwner, KnobStatus};
pub use machine::{AgentUsage, MemoryStatus, ProbeDrops};
pub use policy::{IoPolicyStatus, PolicyStatus};
pub use reason::{
    AnonymousReason, ExcessReason, ProtectionReason, Reason, RechargeGain, RechargeReason,
    RechargeResult, ReclaimExemption, Rule,
};
pub use status::{PV_INFINITE, STATUS_VERSION, Status};
pub use tenant::{RESTS_AFTER, TenantStatus, WeightSource, display_name};
