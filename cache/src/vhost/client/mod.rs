//! A front end with a driver, for tests and measurements: what QEMU and a guest's kernel are for a real VM.

mod guest;
mod handshake;
mod options;
mod ring;
mod workload;

pub use guest::{Guest, QUEUE_BYTES, slot_size};
pub use handshake::{FrontEnd, Tracking};
pub use options::FrontEndOptions;
pub use ring::{BlkRequest, Completed, DriverQueue, kind, range};
pub use workload::Workload;
