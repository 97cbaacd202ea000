//! What a front end and its driver are like.

/// What a front end and its driver are like.
#[derive(Clone, Copy, Debug)]
pub struct FrontEndOptions {
    /// Queues.
    pub queues: u16,
    /// Entries of a ring, and requests in flight.
    pub queue_size: u16,
    /// Bytes of data that a request has at most.
    pub data: u64,
    /// Keep track of requests in flight, so that a new back end can go on, where the back end offers it.
    pub tracking: bool,
    /// Features that the driver does not accept.
    pub without: u64,
    /// The file of the guest's memory can be truncated, as that of libblkio and cloud-hypervisor.
    pub can_shrink: bool,
}

impl Default for FrontEndOptions {
    fn default() -> Self {
        Self {
            queues: 1,
            queue_size: 32,
            data: 64 << 10,
            tracking: true,
            without: 0,
            can_shrink: false,
        }
    }
}
