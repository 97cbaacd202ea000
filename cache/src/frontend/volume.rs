//! A disk that front ends serve.

use super::budget::LogLimit;
use super::vm::{ContainerTag, Vm};
use super::write_order::Gates;
use super::write_order::WriteOrder;
use crate::backing::RawImage;
use crate::block_dev::{BlockDevice, ImageFile};
use crate::cache::{Counter, PoolHandle, WriteGuard};
use crate::disk::{CachedDisk, MissFill, MissRemainder};
use crate::ids::PoolId;
use justitia_guest_protocol::puts::Serial;
use rustix::fs::{FileType, fstat};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// A disk under a name, with its VM and its counters.
pub struct Volume {
    name: String,
    serial: Option<Serial>,
    read_only: bool,
    backend: Backend,
    image: Option<Arc<RawImage>>,
    vm: Arc<Vm>,
    counters: Counters,
    /// The order of its writes on all connections.
    pub(super) write_order: Arc<WriteOrder>,
    pub(crate) gates: Gates,
    /// Limits log lines that its guest or clients can cause.
    pub(crate) log: LogLimit,
}

#[derive(Default)]
struct Counters {
    reads: Counter,
    read_bytes: Counter,
    inline_hits: Counter,
    offloaded_requests: Counter,
    writes: Counter,
    write_bytes: Counter,
    errors: Counter,
    unknown_tags: Counter,
}

/// Statistics of a volume since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VolumeStats {
    /// Its name.
    pub name: String,
    /// Reads answered.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Reads that the connection's own thread answered from the cache, without waiting.
    pub inline_hits: u64,
    /// Requests that a worker thread answered: requests of more than one transfer, and reads that the SSD answers completely.
    /// Without io_uring, all but hits in memory.
    pub offloaded_requests: u64,
    /// Writes, discards and write-zeroes answered.
    pub writes: u64,
    /// Bytes of these requests.
    pub write_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Reads with the tag of a container that no pool has: the VM's default pool took their blocks.
    pub unknown_tags: u64,
    /// Why a flush or a durable write has failed: earlier writes may be lost, and all later ones of these fail.
    pub sync_failed: Option<String>,
}

impl Volume {
    /// Serves `backend` as `name`, writable, as the disk of a VM of its own that clients with certificates do not see.
    #[must_use]
    pub fn new(name: &str, backend: Backend) -> Self {
        Self {
            name: name.to_owned(),
            serial: None,
            read_only: false,
            backend,
            image: None,
            vm: Arc::default(),
            counters: Counters::default(),
            write_order: Arc::default(),
            gates: Gates::default(),
            log: LogLimit::default(),
        }
    }

    /// Sets the serial that its guest sees, if the front end has serials. By default it is the first 20 bytes of the name.
    #[must_use]
    pub const fn serial(mut self, serial: Option<Serial>) -> Self {
        self.serial = serial;
        self
    }

    /// Refuses writes.
    #[must_use]
    pub const fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Sets the image that tells allocated extents.
    #[must_use]
    pub fn image(mut self, from: Arc<RawImage>) -> Self {
        self.image = Some(from);
        self
    }

    /// Makes it a disk of this VM.
    #[must_use]
    pub fn of_vm(mut self, vm: &Arc<Vm>) -> Self {
        self.vm = Arc::clone(vm);
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The serial that its guest sees, padded with zeroes.
    pub(crate) fn shown_serial(&self) -> [u8; Serial::MAX] {
        let of_name = || {
            let mut bytes = [0; Serial::MAX];
            bytes
                .iter_mut()
                .zip(self.name.bytes())
                .for_each(|(to, from)| *to = from);
            bytes
        };
        self.serial.map_or_else(of_name, |serial| serial.bytes())
    }

    /// The disk behind it.
    #[must_use]
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Bytes of the disk.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.backend.disk().size()
    }

    /// Whether writes are refused.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Is no write in flight, on any connection?
    pub(crate) fn is_idle(&self) -> bool {
        self.write_order.is_idle()
    }

    /// The VM that it belongs to.
    #[must_use]
    pub const fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// Its statistics.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        let counters = &self.counters;
        VolumeStats {
            name: self.name.clone(),
            reads: counters.reads.get(),
            read_bytes: counters.read_bytes.get(),
            inline_hits: counters.inline_hits.get(),
            offloaded_requests: counters.offloaded_requests.get(),
            writes: counters.writes.get(),
            write_bytes: counters.write_bytes.get(),
            errors: counters.errors.get(),
            unknown_tags: counters.unknown_tags.get(),
            sync_failed: self.backend.disk().sync_failure(),
        }
    }

    /// The extents of a range; without an image all of it is data.
    pub(super) fn extents(
        &self,
        off: u64,
        count: u64,
        limit: usize,
    ) -> io::Result<Vec<(u64, bool)>> {
        match &self.image {
            Some(image) => image.extents(off, count, limit),
            None => Ok(vec![(count, false)]),
        }
    }

    /// The pool of a container; `None` for the VM's default pool. A tag that no pool has is counted.
    pub(crate) fn pool_of(&self, tag: ContainerTag) -> Option<PoolHandle> {
        let found = self.vm.tags.get(tag).and_then(|id| self.backend.pool(id));
        if found.is_none() && matches!(self.backend, Backend::Cached(_)) {
            self.counters.unknown_tags.add(1);
        }
        found
    }

    /// Counts a read of `bytes` that was answered from the cache without waiting.
    pub(crate) fn count_inline_hit(&self, bytes: u64) {
        self.counters.inline_hits.add(1);
        self.count_read(bytes);
    }

    pub(super) fn count_read(&self, bytes: u64) {
        self.counters.reads.add(1);
        self.counters.read_bytes.add(bytes);
    }

    pub(super) fn count_write(&self, bytes: u64) {
        self.counters.writes.add(1);
        self.counters.write_bytes.add(bytes);
    }

    pub(super) fn count_offloaded(&self) {
        self.counters.offloaded_requests.add(1);
    }

    /// Counts a request that was answered with an error.
    pub(crate) fn count_error(&self) {
        self.counters.errors.add(1);
    }
}

// The disk behind a volume: cached or not.

/// The disk behind a volume.
pub enum Backend {
    /// Read through the cache.
    Cached(CachedDisk),
    /// Uncached.
    Plain(Arc<dyn BlockDevice>),
}

impl Backend {
    /// The disk, cached or not.
    #[must_use]
    pub fn disk(&self) -> &dyn BlockDevice {
        match self {
            Self::Cached(disk) => disk,
            Self::Plain(disk) => &**disk,
        }
    }

    /// The file for transfers by io_uring, if there is one.
    pub(crate) fn file(&self) -> Option<&ImageFile> {
        match self {
            Self::Cached(disk) => disk.backing().file(),
            Self::Plain(disk) => disk.file(),
        }
    }

    /// A pool of the disk's VM, if there is one of this number.
    pub(crate) fn pool(&self, id: PoolId) -> Option<PoolHandle> {
        match self {
            Self::Cached(disk) => disk.pool_of(id),
            Self::Plain(_) => None,
        }
    }

    /// Copies the blocks that are cached in memory, without waiting. `None` when nothing is missing. Missing blocks are for
    /// `pool`, or for the disk's default pool.
    pub(crate) fn look_up(
        &self,
        pool: Option<&PoolHandle>,
        buf: &mut [u8],
        off: u64,
    ) -> Option<MissRemainder> {
        match self {
            Self::Cached(disk) => {
                let mut remainder = disk.look_up(pool.unwrap_or(&disk.pool), buf, off)?;
                remainder.pool = pool.cloned();
                Some(remainder)
            }
            Self::Plain(_) => Some(MissRemainder::default()),
        }
    }

    /// Reads the blocks that a lookup did not find, and waits for them.
    pub(crate) fn finish(
        &self,
        remainder: MissRemainder,
        buf: &mut [u8],
        off: u64,
    ) -> io::Result<()> {
        match self {
            Self::Cached(disk) => {
                let pool = remainder.pool.clone();
                disk.finish(pool.as_ref().unwrap_or(&disk.pool), remainder, buf, off)
            }
            Self::Plain(disk) => disk.read_at(buf, off),
        }
    }

    /// Reads the blocks that a lookup found on the SSD store, and waits for them. Returns `true` when nothing is missing then.
    pub(crate) fn read_ssd(&self, remainder: &mut MissRemainder, buf: &mut [u8], off: u64) -> bool {
        match self {
            Self::Cached(disk) => {
                let pool = remainder.pool.clone();
                disk.read_pending(pool.as_ref().unwrap_or(&disk.pool), remainder, buf, off)
            }
            Self::Plain(_) => false,
        }
    }

    /// The range to read from the disk for the blocks that a lookup did not find.
    pub(crate) fn begin_fill(
        &self,
        remainder: &MissRemainder,
        off: u64,
        count: u64,
    ) -> Option<MissFill> {
        match self {
            Self::Cached(disk) => disk.begin_fill(remainder, off, count),
            Self::Plain(_) => Some(MissFill::only(off..off + count)),
        }
    }

    /// Puts the read blocks into the cache.
    pub(crate) fn end_fill(&self, fill: &MissFill, content: &[u8]) {
        if let Self::Cached(disk) = self {
            disk.end_fill(fill.pool.as_ref().unwrap_or(&disk.pool), fill, content);
        }
    }

    /// Begins a write of a byte range: the cache has no block of it until the guard is dropped.
    pub(crate) fn begin_write(&self, off: u64, len: u64) -> Option<WriteGuard> {
        match self {
            Self::Cached(disk) => Some(disk.begin_write(off, len)),
            Self::Plain(_) => None,
        }
    }
}

// A disk's identity for its clients, which must not change while they are connected.

/// The properties of a disk that a client was told, and the identity of its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskIdentity {
    /// Bytes.
    pub(crate) size: u64,
    read_only: bool,
    /// Device and inode of its file, or its device number. Ports have no image.
    image: Option<[u64; 2]>,
}

impl DiskIdentity {
    pub(crate) fn of(volume: &Volume) -> Self {
        let file = volume.backend().file();
        let found = file.and_then(|file| fstat(file.file()).ok());
        let image = found.map(|found| {
            if FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice {
                [0, found.st_rdev]
            } else {
                [found.st_dev, found.st_ino]
            }
        });
        Self {
            size: volume.size(),
            read_only: volume.is_read_only(),
            image,
        }
    }

    /// Is `now` the same disk? It may have grown.
    pub(crate) fn holds(&self, now: &Self) -> bool {
        let size = self.size.max(now.size);
        (Self { size, ..*self }) == *now
    }
}

// The flush of all disks when the daemon ends.

/// The failures of [`flush_each`] in one error.
///
/// # Errors
/// When there is a failure.
pub(crate) fn said(failed: &BTreeMap<String, String>) -> io::Result<()> {
    if failed.is_empty() {
        return Ok(());
    }
    let each = failed
        .iter()
        .map(|(name, why)| format!("disk {name:?}: {why}"));
    Err(io::Error::other(each.collect::<Vec<_>>().join("; ")))
}

/// Flushes the writable disks, each on its own thread, since one may hang. Disks that have not answered at `deadline` are left
/// behind. Returns the names of the disks that could not be flushed, and why.
pub(crate) fn flush_each(volumes: &[Arc<Volume>], deadline: Instant) -> BTreeMap<String, String> {
    let (answer, answers) = mpsc::channel();
    let mut waiting = BTreeMap::new();
    let mut failed = BTreeMap::new();
    for (at, volume) in volumes.iter().enumerate() {
        if volume.is_read_only() {
            continue;
        }
        let (flushed, answer) = (Arc::clone(volume), answer.clone());
        let started = std::thread::Builder::new()
            .name("justitia-flush".into())
            .spawn(move || {
                // The receiver is gone if the disk was left behind.
                let _ = answer.send((at, flushed.backend().disk().flush()));
            });
        match started {
            Ok(_) => _ = waiting.insert(at, volume.name()),
            Err(e) => _ = failed.insert(volume.name().to_owned(), e.to_string()),
        }
    }
    drop(answer);
    while !waiting.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((at, result)) = answers.recv_timeout(left) else {
            break;
        };
        if let (Some(name), Err(e)) = (waiting.remove(&at), result) {
            failed.insert(name.to_owned(), e.to_string());
        }
    }
    let hung = waiting.values();
    let why = "no answer, it was left behind";
    failed.extend(hung.map(|name| ((*name).to_owned(), why.to_owned())));
    failed
}
