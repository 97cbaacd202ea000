//! The device of one front end, whose state messages change.

use super::config::ConfigChannel;
use super::config::{has, is_write_through};
use super::hangup::Hangup;
use super::inflight::InflightRegion;
use super::limits::{MAX_MEMORY_SLOTS, MAX_QUEUES, invalid, no_ring};
use super::memory::MemoryError;
use super::memory::{GuestMemory, MemorySlots, Region};
use super::queue::{QueueSetup, RunningQueue};
use super::vring::{RING, Vring};
use crate::frontend::{Budget, Executor, IoLimits, Volume};
use arc_swap::ArcSwap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vhost::vhost_user::message::{
    VhostUserInflight, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Error, Result};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

/// The feature bit of protocol features.
pub(super) const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// The device.
pub(super) struct Device {
    pub(super) volume: Arc<Volume>,
    executor: Executor,
    limits: IoLimits,
    /// Features that the driver has accepted.
    pub(super) features: u64,
    /// Protocol features that the front end has accepted.
    pub(super) protocol: u64,
    pub(super) slots: MemorySlots,
    memory: Arc<ArcSwap<GuestMemory>>,
    pub(super) vrings: Vec<Vring>,
    pub(super) inflight: Option<InflightRegion>,
    /// Its description by the front end, and its file, for the next daemon.
    pub(super) inflight_file: Option<(VhostUserInflight, File)>,
    pub(super) write_back: bool,
    write_through: Arc<AtomicBool>,
    pub(super) config_channel: Arc<ConfigChannel>,
    pub(super) hangup: Arc<Hangup>,
    pub(super) budget: Arc<Budget>,
}

impl Device {
    pub(super) fn new(
        volume: Arc<Volume>,
        executor: Executor,
        limits: IoLimits,
        config_channel: Arc<ConfigChannel>,
        hangup: Arc<Hangup>,
        budget: Arc<Budget>,
    ) -> Self {
        Self {
            volume,
            executor,
            limits,
            features: 0,
            protocol: 0,
            slots: MemorySlots::new(Arc::clone(&budget)),
            memory: Arc::new(ArcSwap::from_pointee(GuestMemory::new())),
            vrings: (0..MAX_QUEUES).map(|_| Vring::default()).collect(),
            inflight: None,
            inflight_file: None,
            write_back: true,
            write_through: Arc::new(AtomicBool::new(true)),
            config_channel,
            hangup,
            budget,
        }
    }

    /// Has the front end accepted this?
    pub(super) const fn has_protocol(&self, feature: VhostUserProtocolFeatures) -> bool {
        self.protocol & feature.bits() != 0
    }

    pub(super) fn update_write_through(&self) {
        let yes = is_write_through(self.features, self.write_back);
        self.write_through.store(yes, Ordering::Relaxed);
    }

    /// Drops all state that the front end and the driver have set, once requests in flight are answered.
    pub(super) fn reset(&mut self) {
        self.stop();
        self.vrings = (0..MAX_QUEUES).map(|_| Vring::default()).collect();
        self.features = 0;
        self.inflight = None;
        self.inflight_file = None;
        self.write_back = true;
        self.update_write_through();
    }

    /// Stops all queues, once requests in flight are answered. Returns `false` when the guest has broken one.
    pub(super) fn stop(&mut self) -> bool {
        let stopped = self.vrings.iter_mut().map(Vring::stop);
        // Stop all of them, even if the first is broken.
        stopped.filter(|is_whole| !is_whole).count() == 0
    }

    pub(super) fn set_memory(
        &mut self,
        change: impl FnOnce(&mut MemorySlots) -> std::result::Result<Arc<GuestMemory>, MemoryError>,
    ) -> Result<()> {
        let memory = change(&mut self.slots).map_err(refused)?;
        // Queues use it from their next turn on; requests in flight keep their old version.
        self.memory.store(memory);
        Ok(())
    }

    pub(super) fn replace_memory(&mut self, regions: Vec<(Region, File)>) -> Result<()> {
        if regions.len() > MAX_MEMORY_SLOTS {
            return Err(invalid(format!(
                "expected at most {MAX_MEMORY_SLOTS} regions of memory, found {}",
                regions.len()
            )));
        }
        self.set_memory(|slots| slots.replace(regions))
    }

    pub(super) fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        usize::try_from(index)
            .ok()
            .and_then(|i| self.vrings.get_mut(i))
            .ok_or_else(|| no_ring(index))
    }

    /// A ring that gets an eventfd. From then on it counts against the front end's budget.
    pub(super) fn used_vring(&mut self, index: u32) -> Result<&mut Vring> {
        let budget = Arc::clone(&self.budget);
        let vring = self.vring(index)?;
        if vring.share.is_none() {
            let share = budget.take(RING).map_err(MemoryError::Budget);
            vring.share = Some(share.map_err(refused)?);
        }
        Ok(vring)
    }

    /// A ring that does not run, so its parts may change.
    pub(super) fn idle_vring(&mut self, index: u32) -> Result<&mut Vring> {
        let vring = self.vring(index)?;
        if vring.running.is_some() {
            return Err(Error::InvalidOperation("expected a ring that is stopped"));
        }
        Ok(vring)
    }

    /// Starts a ring, if it is complete and does not run.
    pub(super) fn start(&mut self, index: u32) -> Result<()> {
        let enabled = self.features & PROTOCOL_FEATURES == 0;
        let number = usize::try_from(index).map_err(|_| no_ring(index))?;
        let vring = self.vrings.get_mut(number);
        let vring = vring.ok_or_else(|| no_ring(index))?;
        let Some(kick) = vring.kick.clone() else {
            return Ok(());
        };
        if vring.running.is_some() || !(vring.enabled || enabled) {
            return Ok(());
        }
        let inflight = match &self.inflight {
            None => None,
            Some(region) => {
                let size = vring.size;
                let part = u16::try_from(index).ok();
                let part = part.and_then(|part| region.queue(part, size));
                let none = || {
                    format!(
                        "ring {index}: expected an in-flight region with room for it, found none for a ring of {size}"
                    )
                };
                Some(part.ok_or_else(|| invalid(none()))?)
            }
        };
        let event_index = has(self.features, VIRTIO_RING_F_EVENT_IDX);
        let ring = vring
            .ring(&self.memory.load(), event_index)
            .map_err(Error::ReqHandlerError)?;
        let running = RunningQueue::start(QueueSetup {
            index: number,
            ring,
            memory: Arc::clone(&self.memory),
            inflight,
            kick,
            events: Arc::clone(&vring.events),
            write_through: Arc::clone(&self.write_through),
            volume: Arc::clone(&self.volume),
            executor: self.executor.clone(),
            limits: self.limits,
            hangup: Arc::clone(&self.hangup),
        });
        vring.running = Some(running.map_err(Error::ReqHandlerError)?);
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(super) fn refused(e: MemoryError) -> Error {
    Error::ReqHandlerError(io::Error::other(e))
}
