//! What front ends share, whatever their protocol.
//!
//! A front end takes requests off its transport and answers them. In between, a request is the same for all of them:
//! an `IoRequest` to a [`Volume`], executed by the `IoQueue` of the connection, which uses an io_uring of its own
//! and hands what may wait to the threads of the `Executor`. The [`Vm`] holds what the volumes of one VM share:
//! its pools, its part of these threads, and its limit of connections.

mod budget;
mod in_flight;
mod io_queue;
mod request;
mod socket;
mod vm;
mod volume;
mod workers;
mod write_order;

pub(crate) use budget::{Amount, Budget, BudgetShare, LogLimit, OverBudget};
pub use io_queue::IoLimits;
pub(crate) use io_queue::{Executor, IoQueue, RequestContext};
pub use request::Operation;
pub(crate) use request::{IoRequest, Outcome};
pub use socket::{ListenError, SocketAccess};
pub(crate) use socket::{Waker, check_socket_place, reopen_to, unix_listener};
pub(crate) use vm::VmPools;
pub use vm::{ContainerTag, Vm};
pub use volume::{Backend, Volume, VolumeStats};
pub(crate) use volume::{DiskIdentity, flush_each, said as flushed};
pub(crate) use write_order::Gate;
