//! The port as a disk: writes are messages, reads return answers.

use super::state::{PortState, PortStats};
use crate::block::Block;
use crate::block_dev::{BlockDevice, check_range};
use crate::cache::Cache;
use crate::disk::CachedDisk;
use crate::frontend::{Backend, Vm, Volume};
use crate::ids::{DiskId, PoolId};
use justitia_guest_protocol::puts::{
    Answer, Body, Command, DEFAULT_POOL, Decoded, Fault, PORT_SIZE, Put, Serial, Status, Tally,
    Verdict, decode,
};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A port.
pub struct Port {
    pub(super) cache: Arc<Cache>,
    pub(super) vm: Arc<Vm>,
    /// The disks that its guest may put to, by the serials that its guest sees. Disks may be added and removed while the port
    /// exists.
    disks: RwLock<BTreeMap<Serial, Weak<dyn PutTarget>>>,
    /// Its guest may choose the SSD store for its pools.
    pub(super) may_use_ssd: bool,
    state: Mutex<PortState>,
}

impl Port {
    /// The port of a VM. `start` is a number of this start of the daemon.
    pub fn new(cache: Arc<Cache>, vm: Arc<Vm>, may_use_ssd: bool, start: u64) -> Self {
        let state = PortState::new(&vm.name, start, &vm.pools.lock());
        Self {
            cache,
            vm,
            disks: RwLock::default(),
            may_use_ssd,
            state: Mutex::new(state),
        }
    }

    /// Its statistics.
    pub fn stats(&self) -> PortStats {
        self.state.lock().stats()
    }

    /// The name of its VM.
    pub(crate) fn vm_name(&self) -> &str {
        &self.vm.name
    }

    /// Assigns the serial to this disk. The port does not prevent the disk's removal.
    pub fn set_disk(&self, serial: Serial, disk: Weak<dyn PutTarget>) {
        self.disks.write().insert(serial, disk);
    }

    pub(super) fn target(&self, serial: Serial) -> Option<Arc<dyn PutTarget>> {
        self.disks.read().get(&serial)?.upgrade()
    }

    /// Handles one write, completely.
    fn handle(&self, bytes: &[u8]) {
        let decoded = decode(bytes);
        let Some(message) = self.begin(decoded.as_ref()) else {
            return;
        };
        let mut answer = Answer::new(message.sequence, message.kind, Status::Done);
        match &message.body {
            Ok(Body::Put(put)) => self.put(put, &mut answer),
            Ok(Body::Command(command)) => self.command(command, &mut answer),
            Err(Fault::Version) => answer.status = Status::Version,
            Err(Fault::TooLong) => answer.status = Status::TooLong,
            Err(_) => answer.status = Status::Malformed,
        }
        self.state.lock().answer(answer);
    }

    /// Counts a write; `None` when it must be ignored.
    fn begin<'a, 'b>(&self, decoded: Option<&'a Decoded<'b>>) -> Option<&'a Decoded<'b>> {
        let mut state = self.state.lock();
        let Some(message) = decoded else {
            state.stats.malformed += 1;
            return None;
        };
        if !state.window.take(message.sequence) {
            state.stats.replayed += 1;
            if let Ok(Body::Put(put)) = &message.body {
                let blocks = u64::try_from(put.len()).unwrap_or(0);
                state.header.verdicts.add(Verdict::Replayed, blocks);
            }
            return None;
        }
        state.stats.messages += 1;
        state.stats.malformed += u64::from(message.body.is_err());
        Some(message)
    }

    fn put(&self, put: &Put<'_>, answer: &mut Answer) {
        let blocks = u64::try_from(put.len()).unwrap_or(0);
        let (number, pool) = self.pool(put.pool);
        answer.pool = number;
        match (self.target(put.serial), pool) {
            (Some(disk), Some(pool)) => {
                for (at, (block, content)) in put.blocks().enumerate() {
                    answer.record(at, disk.offer(pool, block, content));
                }
            }
            (None, _) => answer.verdicts.add(Verdict::NoDisk, blocks),
            (_, None) => answer.verdicts.add(Verdict::NoRoom, blocks),
        }
        self.count(number, number != put.pool, &answer.verdicts);
    }

    /// The pool of this number; the VM's default pool when there is none.
    fn pool(&self, number: u32) -> (u32, Option<PoolId>) {
        let pools = self.vm.pools.lock();
        match pools.by_number(number) {
            Some(of) => (number, Some(of.pool.id)),
            None => (
                DEFAULT_POOL,
                pools.by_number(DEFAULT_POOL).map(|of| of.pool.id),
            ),
        }
    }

    fn count(&self, pool: u32, unknown: bool, verdicts: &Tally) {
        if let Some(pool) = self.vm.pools.lock().by_number_mut(pool) {
            pool.offered += verdicts.total();
            pool.accepted += verdicts.of(Verdict::Accepted);
        }
        let mut state = self.state.lock();
        state.header.verdicts.add_all(verdicts);
        if unknown {
            state.stats.unknown_pool += verdicts.total();
        }
    }

    fn command(&self, command: &Command, answer: &mut Answer) {
        answer.status = if self.state.lock().rate.take(Instant::now()) {
            self.execute(command, answer).err().unwrap_or(Status::Done)
        } else {
            Status::Busy
        };
        let done = answer.status == Status::Done;
        let asked = done && *command == Command::GetStats;
        let figures = asked.then(|| self.cache.stats_of(self.vm.id)).flatten();
        let pools = self.vm.pools.lock();
        let mut state = self.state.lock();
        state.stats.command(answer.status);
        if asked {
            state.header.stats_sequence = answer.sequence;
        }
        if done {
            state.list(&pools, figures.as_ref());
        }
    }
}

impl BlockDevice for Port {
    fn size(&self) -> u64 {
        u64::try_from(PORT_SIZE).unwrap_or(0)
    }

    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        check_range(self.size(), off, crate::block::len(buf))?;
        let start = usize::try_from(off).map_err(io::Error::other)?;
        let mut state = self.state.lock();
        let area = state.area().get(start..).unwrap_or_default();
        if let Some(part) = area.get(..buf.len()) {
            buf.copy_from_slice(part);
        }
        Ok(())
    }

    /// Never fails for the content: errors in a message are counted and answered.
    fn write_at(&self, buf: &[u8], off: u64, _fua: bool) -> io::Result<()> {
        check_range(self.size(), off, crate::block::len(buf))?;
        self.handle(if off == 0 { buf } else { &[] });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, off: u64, len: u64, _fua: bool, _may_unmap: bool) -> io::Result<()> {
        check_range(self.size(), off, len)
    }
}

// Disks that blocks can be put to.

/// A disk of the port's VM.
pub trait PutTarget: Send + Sync {
    /// Its id in the cache; `None` when it is not cached.
    fn id(&self) -> Option<DiskId>;

    /// Takes a block that the guest evicted, if its content is right.
    fn offer(&self, pool: PoolId, block: u64, content: &Block) -> Verdict;
}

impl PutTarget for CachedDisk {
    fn id(&self) -> Option<DiskId> {
        self.disk_id()
    }

    fn offer(&self, pool: PoolId, block: u64, content: &Block) -> Verdict {
        Self::offer(self, pool, block, content)
    }
}

impl PutTarget for Volume {
    fn id(&self) -> Option<DiskId> {
        match self.backend() {
            Backend::Cached(disk) => disk.disk_id(),
            Backend::Plain(_) => None,
        }
    }

    fn offer(&self, pool: PoolId, block: u64, content: &Block) -> Verdict {
        match self.backend() {
            Backend::Cached(disk) => disk.offer(pool, block, content),
            Backend::Plain(_) => Verdict::NoDisk,
        }
    }
}
