//! Selects the disks to watch: those that the host serves to this VM with a cache. The port is asked by serial.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use justitia_guest_protocol::puts::{Command, DEFAULT_POOL, Serial, Status};
use justitia_kernel::probes::{Device, EvictionProbe};

use crate::batch::Batches;
use crate::disks::{Disk, disks};
use crate::port::{Ended, Session};

/// The interval between questions about a disk that the host does not serve.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// The most disks that the host is asked about at a time.
const MAX_QUESTIONS: usize = 16;

#[derive(Debug)]
struct Known {
    name: String,
    serial: Serial,
    served: bool,
    ask_at: Instant,
}

/// The machine's disks with a serial.
#[derive(Debug, Default)]
pub(crate) struct Disks(BTreeMap<Device, Known>);

impl Disks {
    /// Updates the list of disks. Asks the host about new ones, and now and then about those that it does not serve.
    pub(crate) fn refresh(
        &mut self,
        session: &mut Session,
        probe: &EvictionProbe,
        batches: &mut Batches,
        now: Instant,
    ) -> Result<(), Ended> {
        let present = disks(Path::new("/sys/block"));
        self.forget(&present, probe, batches);
        for disk in present.iter().filter(|disk| !disk.may_be_port()) {
            if let Some(serial) = disk.serial {
                self.0.entry(disk.device).or_insert_with(|| Known {
                    name: disk.name.clone(),
                    serial,
                    served: false,
                    ask_at: now,
                });
            }
        }
        let known = self.0.iter_mut().map(|(device, known)| (*device, known));
        for (device, known) in known
            .filter(|(_, known)| !known.served && now >= known.ask_at)
            .take(MAX_QUESTIONS)
        {
            known.ask_at = now + ASK_AGAIN;
            if is_served(session, known.serial)? && watch(probe, device, true) {
                tracing::info!(
                    disk = known.name,
                    "evicted pages of this disk are offered to the host"
                );
                known.served = true;
                batches.disks.insert(device, known.serial);
            }
        }
        Ok(())
    }

    /// Forgets disks that are gone or were replaced.
    fn forget(&mut self, present: &[Disk], probe: &EvictionProbe, batches: &mut Batches) {
        let same = |device: &Device, known: &Known| {
            present
                .iter()
                .any(|disk| disk.device == *device && disk.serial == Some(known.serial))
        };
        let gone = self.0.iter().filter(|(device, known)| !same(device, known));
        let gone: Vec<Device> = gone.map(|(device, _)| *device).collect();
        for device in gone {
            self.0.remove(&device);
            batches.disks.remove(&device);
            watch(probe, device, false);
        }
    }

    /// The host does not serve a disk any more.
    pub(crate) fn unserved(
        &mut self,
        device: Device,
        probe: &EvictionProbe,
        batches: &mut Batches,
        now: Instant,
    ) {
        let Some(known) = self.0.get_mut(&device).filter(|known| known.served) else {
            return;
        };
        tracing::info!(
            disk = known.name,
            "the host does not cache this disk any more: it is not offered"
        );
        known.served = false;
        known.ask_at = now + ASK_AGAIN;
        batches.disks.remove(&device);
        watch(probe, device, false);
    }

    /// Watches no disk.
    pub(crate) fn unwatch(&self, probe: &EvictionProbe) {
        for device in self.0.keys() {
            watch(probe, *device, false);
        }
    }

    /// The names of the offered disks.
    pub(crate) fn served(&self) -> Vec<String> {
        let served = self.0.values().filter(|known| known.served);
        served.map(|known| known.name.clone()).collect()
    }
}

/// Returns whether it was done.
fn watch(probe: &EvictionProbe, device: Device, on: bool) -> bool {
    let done = probe.watch(device, on);
    if let Err(error) = &done {
        tracing::warn!(%error, "a disk is not offered");
    }
    done.is_ok()
}

/// Asks by a migration of no blocks, which changes nothing.
fn is_served(session: &mut Session, serial: Serial) -> Result<bool, Ended> {
    let question = Command::Migrate {
        pool: DEFAULT_POOL,
        serial,
        first: 0,
        blocks: 0,
    };
    let answer = session.command(&question)?;
    Ok(answer.is_some_and(|answer| answer.status == Status::Done))
}
