//! What front ends share, whatever their protocol.
//!
//! A front end takes requests off its transport and answers them. In between, a request is the same for all of them:
//! an `IoRequest` to a [`Volume`], executed by the `IoQueue` of the connection, which uses an io_uring of its own
//! and hands what may wait to the threads of the `Executor`. The [`Vm`] holds what the volumes of one VM share:
//! its pools, its part of these threads, and its limit of connections.

mod backend;
mod budget;
mod completion;
mod executor;
mod flush;
mod gate;
mod identity;
mod in_flight;
mod io_queue;
mod limits;
mod log_limit;
mod request;
mod socket;
mod vm;
mod volume;
mod waker;
mod workers;
mod write_order;

pub use backend::{Allocation, Backend};
pub(crate) use budget::{Amount, Budget, BudgetShare, OverBudget};
pub(crate) use executor::Executor;
pub(crate) use flush::{flush_each, said as flushed};

pub(crate) use gate::Gate;
pub(crate) use identity::DiskIdentity;
pub(crate) use io_queue::{IoQueue, RequestContext};
pub use limits::IoLimits;
pub(crate) use log_limit::LogLimit;
pub(crate) use request::{IoRequest, Operation, Outcome};
pub(crate) use socket::unix_listener;
pub use socket::{ListenError, SocketAccess};
pub(crate) use vm::VmPools;
pub use vm::{ContainerTag, Vm};
pub use volume::{Volume, VolumeStats};
pub(crate) use waker::Waker;
