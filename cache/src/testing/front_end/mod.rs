//! A front end with a driver, for tests and measurements: what QEMU and a guest's kernel are for a real VM.

mod handshake;
mod ring;
mod workload;

pub use handshake::{FrontEnd, Tracking};
pub use ring::{
    BlkRequest, Completed, DriverQueue, FrontEndOptions, Guest, QUEUE_BYTES, kind, range, slot_size,
};
pub use workload::Workload;
