//! The front end: it describes the guest's memory and rings to the back end.

use super::ring::{DriverQueue, FrontEndOptions, Guest, QUEUE_BYTES, slot_size};
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// The region in which the back end records requests in flight.
pub struct Tracking {
    /// Its size, and the queues.
    pub shape: VhostUserInflight,
    /// The region.
    pub file: File,
}

/// A front end with its guest.
pub struct FrontEnd {
    /// The connection.
    pub frontend: Frontend,
    /// The guest.
    pub guest: Guest,
    /// The driver's queues.
    pub queues: Vec<DriverQueue>,
    /// The requests in flight.
    pub tracking: Option<Tracking>,
    /// The front end's side of the channel for the back end's messages.
    pub channel: Option<UnixStream>,
    connection: UnixStream,
    options: FrontEndOptions,
    path: PathBuf,
}

/// The features that the driver accepts, if offered.
const DRIVER_FEATURES: [u32; 8] = [
    VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_CONFIG_WCE,
    VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_DISCARD,
    VIRTIO_BLK_F_WRITE_ZEROES,
    VIRTIO_RING_F_INDIRECT_DESC,
    VIRTIO_RING_F_EVENT_IDX,
    VIRTIO_F_VERSION_1,
];

fn other(e: vhost::Error) -> io::Error {
    io::Error::other(e)
}

fn connect(path: &Path, queues: u16) -> io::Result<(Frontend, UnixStream)> {
    let connection = UnixStream::connect(path)?;
    let frontend = Frontend::from_stream(connection.try_clone()?, queues.into());
    frontend.set_owner().map_err(other)?;
    Ok((frontend, connection))
}

impl FrontEnd {
    /// Connects, and starts all queues.
    ///
    /// # Errors
    /// When the back end does not answer, or refuses.
    pub fn connect(path: &Path, options: FrontEndOptions) -> io::Result<Self> {
        let part = QUEUE_BYTES + slot_size(options.data) * u64::from(options.queue_size);
        let size = (part * u64::from(options.queues)).next_multiple_of(1 << 21);
        let guest = if options.can_shrink {
            Guest::new_unsealed(0, size)?
        } else {
            Guest::new(0, size)?
        };
        let queues = (0..options.queues)
            .map(|i| DriverQueue::new(&guest, part * u64::from(i), options))
            .collect::<io::Result<_>>()?;
        let (frontend, connection) = connect(path, options.queues)?;
        let mut new = Self {
            frontend,
            connection,
            guest,
            queues,
            tracking: None,
            channel: None,
            options,
            path: path.to_owned(),
        };
        new.start(true)?;
        Ok(new)
    }

    /// Adds memory while the queues run.
    ///
    /// # Errors
    /// When the back end refuses.
    pub fn add_memory(&mut self, guest: &Guest) -> io::Result<()> {
        self.frontend
            .add_mem_region(&guest.region())
            .map(drop)
            .map_err(other)
    }

    /// Removes memory while the queues run.
    ///
    /// # Errors
    /// When the back end refuses.
    pub fn remove_memory(&mut self, guest: &Guest) -> io::Result<()> {
        self.frontend
            .remove_mem_region(&guest.region())
            .map_err(other)
    }

    /// Connects again, as QEMU does when the back end is gone: with the memory, rings and the region of before. The
    /// available ring goes on where the used ring is.
    ///
    /// # Errors
    /// When the back end does not answer, or refuses.
    pub fn reconnect(&mut self) -> io::Result<()> {
        // An error says that the other side has closed it already.
        let _ = self.connection.shutdown(Shutdown::Both);
        (self.frontend, self.connection) = connect(&self.path, self.options.queues)?;
        self.start(false)
    }

    fn start(&mut self, first: bool) -> io::Result<()> {
        let protocol = self.negotiate()?;
        if self.options.tracking && protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            self.track()?;
        }
        self.frontend
            .set_mem_table(&[self.guest.region()])
            .map_err(other)?;
        for (index, queue) in self.queues.iter().enumerate() {
            let base = if first { 0 } else { queue.used_index()? };
            start_queue(&mut self.frontend, &self.guest, index, queue, base)?;
        }
        Ok(())
    }

    fn negotiate(&mut self) -> io::Result<VhostUserProtocolFeatures> {
        let offered = self.frontend.get_features().map_err(other)?;
        let protocol_bit = 1u64 << 30;
        let known: u64 = DRIVER_FEATURES.iter().map(|bit| 1u64 << bit).sum();
        let protocol = self.frontend.get_protocol_features().map_err(other)?;
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        self.frontend
            .set_protocol_features(protocol & wanted)
            .map_err(other)?;
        self.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        if protocol.contains(VhostUserProtocolFeatures::BACKEND_REQ) {
            let (ours, theirs) = UnixStream::pair()?;
            self.frontend
                .set_backend_request_fd(&theirs)
                .map_err(other)?;
            self.channel = Some(ours);
        }
        let accepted = offered & (known | protocol_bit) & !self.options.without;
        self.frontend.set_features(accepted).map_err(other)?;
        Ok(protocol)
    }

    fn track(&mut self) -> io::Result<()> {
        if self.tracking.is_none() {
            let asked = VhostUserInflight::new(0, 0, self.options.queues, self.options.queue_size);
            let (shape, file) = self.frontend.get_inflight_fd(&asked).map_err(other)?;
            self.tracking = Some(Tracking { shape, file });
        }
        if let Some(Tracking { shape, file }) = &self.tracking {
            self.frontend
                .set_inflight_fd(shape, file.as_raw_fd())
                .map_err(other)?;
        }
        Ok(())
    }

    /// Stops a queue; the next index of its available ring.
    ///
    /// # Errors
    /// When the back end refuses.
    pub fn stop_queue(&mut self, index: usize) -> io::Result<u32> {
        self.frontend.get_vring_base(index).map_err(other)
    }

    /// Starts a queue where it was stopped.
    ///
    /// # Errors
    /// When the back end refuses.
    pub fn start_queue(&mut self, index: usize, base: u16) -> io::Result<()> {
        let queue = self.queues.get(index).ok_or(io::ErrorKind::NotFound)?;
        start_queue(&mut self.frontend, &self.guest, index, queue, base)
    }

    /// Reads the configuration space.
    ///
    /// # Errors
    /// When the back end refuses.
    pub fn config(&mut self, offset: u32, size: u32) -> io::Result<Vec<u8>> {
        let empty = vec![0; usize::try_from(size).map_err(io::Error::other)?];
        let flags = VhostUserConfigFlags::empty();
        let read = self.frontend.get_config(offset, size, flags, &empty);
        Ok(read.map_err(other)?.1)
    }

    /// Writes the configuration space.
    ///
    /// # Errors
    /// When the back end refuses.
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        let flags = VhostUserConfigFlags::WRITABLE;
        self.frontend
            .set_config(offset, flags, bytes)
            .map_err(other)
    }
}

fn start_queue(
    frontend: &mut Frontend,
    guest: &Guest,
    index: usize,
    queue: &DriverQueue,
    base: u16,
) -> io::Result<()> {
    let (descriptors, available, used) = queue.addresses();
    frontend.set_vring_num(index, queue.size()).map_err(other)?;
    frontend.set_vring_base(index, base).map_err(other)?;
    let addresses = VringConfigData {
        queue_max_size: queue.size(),
        queue_size: queue.size(),
        flags: 0,
        desc_table_addr: guest.user(descriptors),
        used_ring_addr: guest.user(used),
        avail_ring_addr: guest.user(available),
        log_addr: None,
    };
    frontend.set_vring_addr(index, &addresses).map_err(other)?;
    frontend.set_vring_call(index, &queue.call).map_err(other)?;
    frontend.set_vring_err(index, &queue.error).map_err(other)?;
    frontend.set_vring_kick(index, &queue.kick).map_err(other)?;
    frontend.set_vring_enable(index, true).map_err(other)
}
