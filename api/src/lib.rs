//! The types that the agent's status socket, metrics, recordings, `justitia explain` and `--json` share.
//!
//! This crate is the border between the agent and everything that shows what it does. It has no dependency on the agent,
//! on the kernel's interfaces, or on eBPF.
//!
//! * [`Status`]: the answer of the socket, with [`TenantStatus`], [`KnobStatus`], [`Decision`] and the rest below it.
//! * [`client`]: asks a running agent. [`control`]: has it do something.
//! * [`Action`] and [`Reason`]: what was done and why, as data. `words` has their words.
//! * [`size`]: bytes as people write them.
//! * [`units`]: bytes, rates and durations as people read them.
//! * [`escape`]: cgroup names and foreign text, made safe for a terminal.

#![deny(unsafe_code)]
#![deny(clippy::indexing_slicing)]

pub mod client;
pub mod control;
mod decision;
pub mod escape;
mod identity;
mod name;
mod reason;
pub mod size;
mod status;
pub mod units;
mod words;

pub use decision::{Action, Decision, ExternalKnob, GivenUpKnob, KnobOwner, KnobStatus};
pub use identity::{DeclaredWeight, TenantKind, WeightSource};
pub use name::display_name;
pub use reason::{
    AnonymousReason, ExcessReason, ProtectionReason, Reason, RechargeGain, RechargeReason,
    RechargeResult, ReclaimExemption, Rule, SlabReason,
};
pub use status::{
    AgentUsage, AppStatus, CurveStatus, DemandModel, EstimateBasis, IoPolicyStatus, MemoryStatus,
    PV_INFINITE, PolicyStatus, ProbeDrops, RESTS_AFTER, STATUS_VERSION, Status, TenantStatus,
};
