//! Handles the front end's messages, which crate `vhost` parses.

use super::config::{self, Next, config_space, look_ahead, take_channel};
use super::device::{Device, PROTOCOL_FEATURES, refused};
use super::inflight::InflightRegion;
use super::leave::Left;
use super::limits::{MAX_MEMORY_SLOTS, MAX_QUEUE_SIZE, MAX_QUEUES, invalid};
use super::memory::Region;
use super::vring::RingAddresses;
use super::vring_events::eventfd;
use crate::connections::LeftConnection;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Backend, BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
};

const NOT_OFFERED: Error = Error::InvalidOperation("expected a request that was offered");

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(config::features(self.volume.is_read_only()) | PROTOCOL_FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_features()? != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.features = features;
        self.update_write_through();
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        ctx: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let regions = ctx.iter().map(region).zip(files).collect();
        self.replace_memory(regions)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let fits = |size: &u16| size.is_power_of_two() && *size <= MAX_QUEUE_SIZE;
        let valid = u16::try_from(size).ok().filter(fits);
        let none = || {
            format!(
                "ring {index}: expected a size that is a power of two and at most {MAX_QUEUE_SIZE}, found {size}"
            )
        };
        self.idle_vring(index)?.size = valid.ok_or_else(|| invalid(none()))?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        // Logging of dirty pages was not offered.
        if !flags.is_empty() {
            return Err(NOT_OFFERED);
        }
        // The front end gives addresses of its own address space.
        let guest = |part, address| {
            let found = self.slots.guest_address(address);
            found.ok_or_else(|| {
                invalid(format!(
                    "ring {index}: expected its {part} in a region of memory, found it at {address:#x}"
                ))
            })
        };
        let addresses = RingAddresses {
            descriptors: guest("descriptor table", descriptor)?,
            available: guest("available ring", available)?,
            used: guest("used ring", used)?,
        };
        self.idle_vring(index)?.addresses = Some(addresses);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let valid = u16::try_from(base).map_err(|_| {
            invalid(format!(
                "ring {index}: expected an index of its available ring of at most 65535, found {base}"
            ))
        })?;
        self.idle_vring(index)?.base = valid;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let vring = self.vring(index)?;
        vring.stop();
        vring.kick = None;
        Ok(VhostUserVringState::new(index, vring.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let file = fd.ok_or_else(|| {
            invalid(format!(
                "ring {index}: expected an eventfd that says that there are requests, found none"
            ))
        })?;
        let file = eventfd(file).map_err(Error::ReqHandlerError)?;
        let vring = self.used_vring(index.into())?;
        vring.stop();
        vring.kick = Some(Arc::new(file));
        self.start(index.into())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = fd.map(eventfd).transpose();
        let fd = fd.map_err(Error::ReqHandlerError)?;
        self.used_vring(index.into())?.events.set_call(fd);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let fd = fd.map(eventfd).transpose();
        *self.used_vring(index.into())?.events.error.lock() = fd.map_err(Error::ReqHandlerError)?;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_protocol_features()?.bits() != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(MAX_QUEUES.into())
    }

    fn set_vring_enable(&mut self, index: u32, enabled: bool) -> Result<()> {
        let vring = self.vring(index)?;
        vring.enabled = enabled;
        if enabled {
            return self.start(index);
        }
        vring.stop();
        Ok(())
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let space = config_space(self.volume.size(), self.write_back);
        Ok(config::read(space, offset, size))
    }

    // The driver chooses the write cache. It may write nothing else.
    fn set_config(&mut self, offset: u32, buf: &[u8], flags: VhostUserConfigFlags) -> Result<()> {
        let migrates = flags.contains(VhostUserConfigFlags::LIVE_MIGRATION);
        let ([chosen], config::WRITE_BACK, false) = (buf, offset, migrates) else {
            return Err(invalid(format!(
                "expected one byte at {} of the configuration, the write cache, found {} at {offset}",
                config::WRITE_BACK,
                buf.len()
            )));
        };
        self.write_back = *chosen != 0;
        if let Some(region) = &self.inflight {
            region.set_write_back(self.write_back);
        }
        self.update_write_through();
        Ok(())
    }

    // The session handles this message itself.
    fn set_backend_req_fd(&mut self, _backend: Backend) {}

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let created = InflightRegion::create(asked.num_queues, asked.queue_size);
        let (file, bytes) = created.map_err(Error::ReqHandlerError)?;
        let told = VhostUserInflight::new(bytes, 0, asked.num_queues, asked.queue_size);
        Ok((told, file))
    }

    // Uses a region. A used region has the guest's choice of the write cache, since the front end does not repeat it to a new
    // server.
    fn set_inflight_fd(&mut self, told: &VhostUserInflight, file: File) -> Result<()> {
        if self.vrings.iter().any(|v| v.running.is_some()) {
            return Err(Error::InvalidOperation("expected rings that are stopped"));
        }
        let (offset, bytes) = (told.mmap_offset, told.mmap_size);
        let (queues, size) = (told.num_queues, told.queue_size);
        let kept = file.try_clone().map_err(Error::ReqHandlerError)?;
        let region = InflightRegion::open(file, offset, bytes, queues, size, &self.budget);
        let region = region.map_err(refused)?;
        match region.write_back() {
            Some(chosen) => self.write_back = chosen,
            None => region.set_write_back(self.write_back),
        }
        self.update_write_through();
        self.inflight = Some(region);
        self.inflight_file = Some((*told, kept));
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        u64::try_from(MAX_MEMORY_SLOTS).map_err(|_| Error::BackendInternalError)
    }

    fn add_mem_region(
        &mut self,
        added: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        self.set_memory(|slots| slots.add(region(added), fd))?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, removed: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.set_memory(|slots| slots.remove(region(removed)))
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}

fn region(told: &VhostUserMemoryRegion) -> Region {
    Region {
        guest: told.guest_phys_addr,
        size: told.memory_size,
        user: told.user_addr,
        offset: told.mmap_offset,
    }
}

// One front end, from its first message to its end.

/// Answers the front end's messages until it leaves. Then stops its queues, and answers requests in flight. `left` is the state
/// from the last daemon. Returns the connection if the next daemon is to resume it.
///
/// # Errors
/// When it violates the protocol, or a request of it fails.
pub(super) fn serve(
    socket: UnixStream,
    device: Device,
    left: Option<Left>,
) -> io::Result<Option<LeftConnection>> {
    let ahead = socket.try_clone()?;
    let device = Arc::new(Mutex::new(device));
    let mut messages = match left {
        None => BackendReqHandler::from_stream(socket, Arc::clone(&device)),
        Some(left) => left.resume(socket, &device)?,
    };
    let done = answer(&ahead, &device, &mut messages);
    let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
    let is_whole = device.stop();
    let why = device.hangup.why();
    if let (Ok(End::Leaving), true, None) = (&done, is_whole, why) {
        return device.leave(ahead).map(Some);
    }
    device.config_channel.close();
    why.map_or(done.map(|_| None), |why| Err(io::Error::other(why)))
}

/// Why the session ends.
enum End {
    /// The front end has left.
    Left,
    /// The next daemon resumes it.
    Leaving,
}

fn answer(
    socket: &UnixStream,
    device: &Mutex<Device>,
    messages: &mut BackendReqHandler<Mutex<Device>>,
) -> io::Result<End> {
    let hangup = {
        let device = device.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&device.hangup)
    };
    loop {
        if !hangup.wait()? {
            return Ok(End::Leaving);
        }
        match look_ahead(socket)? {
            Next::End => return Ok(End::Left),
            Next::Channel => {
                let device = device.lock().unwrap_or_else(PoisonError::into_inner);
                take_channel(socket, &device.config_channel, |f| device.has_protocol(f))?;
            }
            Next::Other => match messages.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected) => return Ok(End::Left),
                Err(Error::SocketRetry(_)) => {}
                Err(e) => return Err(io::Error::other(e)),
            },
        }
    }
}
