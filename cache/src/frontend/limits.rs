//! What a front end allows its clients.

/// Limits of requests in flight and of the threads that wait for disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoLimits {
    /// Requests of one connection that wait for a disk.
    pub in_flight: usize,
    /// Bytes of payload that they hold.
    pub in_flight_bytes: usize,
    /// Connections of one VM.
    pub vm_connections: usize,
    /// Threads that wait for disks, for all clients together. One VM has at most a quarter of them.
    pub workers: usize,
    /// Threads that wait for the SSD store, for all clients together.
    pub ssd_workers: usize,
    /// Read and write images through io_uring where the host has it; otherwise worker threads do it.
    pub io_uring: bool,
}

impl Default for IoLimits {
    fn default() -> Self {
        Self {
            in_flight: 128,
            in_flight_bytes: 32 << 20,
            vm_connections: 64,
            workers: 64,
            ssd_workers: 16,
            io_uring: true,
        }
    }
}
