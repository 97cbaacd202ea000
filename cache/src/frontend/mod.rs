//! Code that front ends of all protocols share.
//!
//! A front end takes requests off its transport and answers them. Each request is an `IoRequest` to a [`Volume`]. The `IoQueue`
//! of the connection executes it, with an io_uring of its own; jobs that may wait go to the threads of the `Executor`. The
//! [`Vm`] has the state that the volumes of one VM share: its pools, its part of these threads, and its connection limit.

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
