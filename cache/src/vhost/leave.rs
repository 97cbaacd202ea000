//! Hands a front end over to the next daemon: saves the state that its messages have set.

use super::device::{Device, PROTOCOL_FEATURES};
use super::memory::Region;
use super::vring::{RingAddresses, Vring};
use crate::connections::{ConnectionState, LeftConnection};
use crate::frontend::DiskIdentity;
use rustix::io::{DupFlags, dup3};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{BackendReqHandler, Error, VhostUserBackendReqHandlerMut};
use vm_memory::GuestAddress;

/// The protocol's name in the saved state.
pub(super) const PROTOCOL: &str = "vhost-user-blk";

/// A front end that the last daemon has left.
pub(super) struct Left {
    pub(super) state: ConnectionState,
    /// In the order of [`Told`].
    pub(super) others: Vec<OwnedFd>,
}

/// The region of requests in flight: its offset and size in its file, in bytes, and the number and size of its queues.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InflightPlace {
    offset: u64,
    bytes: u64,
    queues: u16,
    queue_size: u16,
}

impl InflightPlace {
    const fn of(told: &VhostUserInflight) -> Self {
        Self {
            offset: told.mmap_offset,
            bytes: told.mmap_size,
            queues: told.num_queues,
            queue_size: told.queue_size,
        }
    }

    fn told(self) -> VhostUserInflight {
        VhostUserInflight::new(self.bytes, self.offset, self.queues, self.queue_size)
    }
}

/// The state that a front end has set. Its descriptors follow in the order of the fields.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    features: u64,
    protocol: u64,
    write_back: bool,
    /// The disk's identity, as told to the guest.
    disk: DiskIdentity,
    regions: Vec<Region>,
    inflight: Option<InflightPlace>,
    rings: Vec<Ring>,
    /// There is a channel for the back end's messages.
    channel: bool,
}

/// A ring that the front end has described, at least partly.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ring {
    index: u8,
    size: u16,
    /// Guest addresses of the descriptors, the available ring and the used ring.
    addresses: Option<[u64; 3]>,
    base: u16,
    enabled: bool,
    /// Whether it has each eventfd: kick, call, error.
    events: [bool; 3],
}

impl Device {
    /// The connection for the next daemon. Its queues are stopped.
    pub(super) fn leave(&self, socket: UnixStream) -> io::Result<LeftConnection> {
        let mut others = Vec::new();
        let mut regions = Vec::new();
        for (region, file) in self.slots.files() {
            regions.push(region);
            others.push(file.try_clone()?.into());
        }
        let inflight = self.inflight_file.as_ref();
        if let Some((_, file)) = inflight {
            others.push(file.try_clone()?.into());
        }
        let mut rings = Vec::new();
        for (index, vring) in (0..).zip(&self.vrings) {
            rings.extend(ring(index, vring, &mut others)?);
        }
        let channel = self.config_channel.take();
        let told = Told {
            features: self.features,
            protocol: self.protocol,
            write_back: self.write_back,
            disk: DiskIdentity::of(&self.volume),
            regions,
            inflight: inflight.map(|(told, _)| InflightPlace::of(told)),
            rings,
            channel: channel.is_some(),
        };
        others.extend(channel);
        Ok(LeftConnection {
            socket: socket.into(),
            others,
            state: ConnectionState {
                protocol: PROTOCOL.to_owned(),
                export: self.volume.name().to_owned(),
                agreed: serde_json::to_value(told)?,
                received: Vec::new(),
                unsent: Vec::new(),
            },
        })
    }

    /// Restores the last daemon's state. The features are already agreed on.
    fn restore(&mut self, told: Told, others: Vec<OwnedFd>) -> Result<(), Error> {
        let mut others = others.into_iter().map(File::from);
        let mut next = || {
            let missing = || io::Error::other("expected more descriptors of a front end");
            others
                .next()
                .ok_or_else(|| Error::ReqHandlerError(missing()))
        };
        let regions = told.regions.into_iter();
        let regions = regions.map(|region| Ok((region, next()?)));
        let regions = regions.collect::<Result<_, Error>>()?;
        self.replace_memory(regions)?;
        self.write_back = told.write_back;
        self.update_write_through();
        if let Some(place) = told.inflight {
            self.set_inflight_fd(&place.told(), next()?)?;
        }
        for ring in told.rings {
            let mut event = |n: usize| -> Result<Option<File>, Error> {
                let is_there = ring.events.get(n).is_some_and(|is_there| *is_there);
                is_there.then(&mut next).transpose()
            };
            let events = [event(0)?, event(1)?, event(2)?];
            self.restore_ring(&ring, events)?;
        }
        if told.channel {
            self.config_channel.set(next()?.into());
        }
        if told.disk.size != self.volume.size() {
            self.config_channel
                .notify()
                .map_err(Error::ReqHandlerError)?;
        }
        Ok(())
    }

    fn restore_ring(&mut self, ring: &Ring, events: [Option<File>; 3]) -> Result<(), Error> {
        let index = u32::from(ring.index);
        if ring.size != 0 {
            self.set_vring_num(index, ring.size.into())?;
        }
        let vring = self.idle_vring(index)?;
        vring.addresses = ring
            .addresses
            .map(|[descriptors, available, used]| RingAddresses {
                descriptors: GuestAddress(descriptors),
                available: GuestAddress(available),
                used: GuestAddress(used),
            });
        vring.base = ring.base;
        vring.enabled = ring.enabled;
        let [kick, call, error] = events;
        if call.is_some() {
            self.set_vring_call(ring.index, call)?;
        }
        if error.is_some() {
            self.set_vring_err(ring.index, error)?;
        }
        kick.map_or(Ok(()), |kick| self.set_vring_kick(ring.index, Some(kick)))
    }
}

/// Saves a ring, and appends its eventfds to `others`. `None` if the ring has no state.
fn ring(index: u8, vring: &Vring, others: &mut Vec<OwnedFd>) -> io::Result<Option<Ring>> {
    let [call, error] = vring.events.copies()?;
    let kick = vring.kick.as_ref().map(|kick| kick.try_clone());
    let events = [kick.transpose()?, call, error];
    let is_there = events.each_ref().map(Option::is_some);
    let is_new = vring.size == 0 && vring.addresses.is_none() && !vring.enabled;
    if is_new && is_there == [false; 3] {
        return Ok(None);
    }
    others.extend(events.into_iter().flatten().map(OwnedFd::from));
    Ok(Some(Ring {
        index,
        size: vring.size,
        addresses: vring.addresses.map(|of| {
            let RingAddresses {
                descriptors,
                available,
                used,
            } = of;
            [descriptors.0, available.0, used.0]
        }),
        base: vring.base,
        enabled: vring.enabled,
        events: is_there,
    }))
}

impl Left {
    /// Resumes a front end: restores the device, and answers messages from there on.
    ///
    /// # Errors
    /// When the device or its disk is not as the front end was told, or a resource is missing.
    pub(super) fn resume(
        self,
        socket: UnixStream,
        device: &Arc<Mutex<Device>>,
    ) -> io::Result<BackendReqHandler<Mutex<Device>>> {
        let told: Told = serde_json::from_value(self.state.agreed)?;
        {
            let device = device.lock().unwrap_or_else(PoisonError::into_inner);
            let same = self.state.export == device.volume.name();
            if !same || !told.disk.holds(&DiskIdentity::of(&device.volume)) {
                return Err(io::Error::other(
                    "expected the image, size and access that the front end was told of, found others: it must connect again",
                ));
            }
        }
        let messages = agree(socket, device, told.features, told.protocol)?;
        let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
        let restored = device.restore(told, self.others);
        restored.map_err(io::Error::other)?;
        Ok(messages)
    }
}

/// Messages of the front end (`VhostUserFrontendRequest` of QEMU's `docs/interop/vhost-user.rst`).
const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_PROTOCOL_FEATURES: u32 = 16;
/// The version of messages, which is their flags.
const VERSION: u32 = 1;

/// Makes the message handler of a front end that has agreed on these features. In crate `vhost` only messages set the features.
/// So the handler first gets these messages over a socket pair; then the front end's socket replaces its end.
fn agree(
    socket: UnixStream,
    device: &Arc<Mutex<Device>>,
    features: u64,
    protocol: u64,
) -> io::Result<BackendReqHandler<Mutex<Device>>> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut messages = BackendReqHandler::from_stream(theirs, Arc::clone(device));
    let mut said = vec![(GET_FEATURES, None)];
    if features & PROTOCOL_FEATURES != 0 || protocol != 0 {
        said.push((SET_PROTOCOL_FEATURES, Some(protocol)));
    }
    said.push((SET_FEATURES, Some(features)));
    for (request, value) in said {
        let size: u32 = if value.is_some() { 8 } else { 0 };
        let header = [request, VERSION, size];
        let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(value.iter().flat_map(|value| value.to_ne_bytes()));
        ours.write_all(&bytes)?;
        messages.handle_request().map_err(io::Error::other)?;
    }
    // SAFETY: `messages` owns the descriptor, which stays open; only its target changes.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(messages.as_raw_fd()) });
    dup3(&socket, &mut place, DupFlags::CLOEXEC)?;
    Ok(messages)
}
