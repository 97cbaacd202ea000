//! A disk that can be blocked, and records its requests.

use super::rig::Rig;
use crate::block_dev::{BlockDevice, RamDisk};
use crate::cache::Cache;
use crate::config::CacheConfig;
use crate::frontend::{Backend, IoLimits, Volume};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;

pub(super) struct Gate {
    disk: RamDisk,
    shut: Mutex<bool>,
    opened: Condvar,
    /// Whether each write had to be durable.
    pub(super) durable: Mutex<Vec<bool>>,
}

impl Gate {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            disk: RamDisk::new(1 << 20),
            shut: Mutex::new(false),
            opened: Condvar::new(),
            durable: Mutex::default(),
        })
    }

    /// Holds up reads and writes, or lets them go on.
    pub(super) fn hold_up(&self, yes: bool) {
        *self.shut.lock() = yes;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock();
        while *shut {
            self.opened.wait(&mut shut);
        }
    }

    /// A server of it.
    pub(super) fn rig(self: &Arc<Self>) -> Rig {
        let backend = Backend::Plain(Arc::clone(self) as Arc<dyn BlockDevice>);
        let cache = Cache::new(CacheConfig::default()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        Rig::of_volume(
            dir,
            cache,
            Volume::new("gate", backend),
            IoLimits::default(),
        )
    }
}

impl BlockDevice for Gate {
    fn size(&self) -> u64 {
        self.disk.size()
    }
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        self.pass();
        self.disk.read_at(buf, off)
    }
    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        self.pass();
        self.durable.lock().push(fua);
        self.disk.write_at(buf, off, fua)
    }
    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }
}
