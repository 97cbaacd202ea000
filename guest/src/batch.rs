//! Batches evicted pages into messages: up to 31 blocks of one disk, one file system and one pool.
//!
//! Memory is bounded by a number of buffers of 128 KiB. If none is free, the fullest message is sent as it is.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use justitia_guest_protocol::puts::{
    AlignedBuf, DEFAULT_POOL, MAX_BLOCKS, MAX_MESSAGE, PutWriter, Serial,
};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::{Device, Eviction};

/// Buffers: 2 MiB.
const BUFFERS: usize = 16;

/// Ready messages at which no more pages are taken: the rest of the ring waits in the kernel.
const MAX_READY: usize = 4;

/// The common origin of a message's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Origin {
    /// The disk.
    pub(crate) disk: Device,
    /// The file system.
    pub(crate) filesystem: Device,
    /// The number of the pool.
    pub(crate) pool: u32,
}

/// Blocks that are to be put.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) origin: Origin,
    buffer: AlignedBuf,
    count: usize,
    since: Instant,
}

impl Batch {
    /// The message.
    pub(crate) fn message(&mut self, sequence: u64) -> &[u8] {
        let mut writer = PutWriter::resume(&mut self.buffer, self.count);
        writer.address(sequence, self.origin.pool);
        writer.finish()
    }
}

/// The messages that are being filled, and those that are ready.
#[derive(Debug)]
pub(crate) struct Batches {
    open: BTreeMap<Origin, Batch>,
    ready: VecDeque<Batch>,
    free: Vec<AlignedBuf>,
    /// Blocks that one message may have.
    limit: usize,
    /// The serials of the disks that are offered.
    pub(crate) disks: BTreeMap<Device, Serial>,
    /// The pools of cgroups; pages of other cgroups go to the default pool.
    pub(crate) pools: BTreeMap<CgroupId, u32>,
    /// Cgroups without a pool, and the pages that came of each since they were last read: a bounded number.
    pub(crate) strangers: BTreeMap<CgroupId, u64>,
}

/// The most cgroups without a pool that are remembered.
const MAX_STRANGERS: usize = 1024;

impl Batches {
    pub(crate) fn new() -> Self {
        Self {
            open: BTreeMap::new(),
            ready: VecDeque::new(),
            free: (0..BUFFERS).map(|_| AlignedBuf::new(MAX_MESSAGE)).collect(),
            limit: MAX_BLOCKS,
            disks: BTreeMap::new(),
            pools: BTreeMap::new(),
            strangers: BTreeMap::new(),
        }
    }

    /// Sets the largest number of blocks in a message that the port takes, 1 to 31.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(1, MAX_BLOCKS);
    }

    /// Drops all messages, disks and pools.
    pub(crate) fn clear(&mut self) {
        let open = std::mem::take(&mut self.open).into_values();
        self.free.extend(open.map(|batch| batch.buffer));
        self.free.extend(self.ready.drain(..).map(|b| b.buffer));
        self.disks.clear();
        self.pools.clear();
        self.strangers.clear();
    }

    /// Adds a page. Returns whether more may come before messages are sent.
    pub(crate) fn add(&mut self, page: &Eviction<'_>, now: Instant) -> bool {
        let Some(serial) = self.disks.get(&page.disk).copied() else {
            return true;
        };
        let origin = Origin {
            disk: page.disk,
            filesystem: page.filesystem,
            pool: self.pool_of(page.cgroup),
        };
        let limit = self.limit;
        if let Some(batch) = self.batch(origin, serial, now) {
            let mut writer = PutWriter::resume(&mut batch.buffer, batch.count);
            if writer.push(page.block, page.content) {
                batch.count += 1;
            }
            if batch.count >= limit {
                self.close(origin);
            }
        }
        self.ready.len() < MAX_READY
    }

    fn pool_of(&mut self, cgroup: CgroupId) -> u32 {
        if let Some(pool) = self.pools.get(&cgroup) {
            return *pool;
        }
        if self.strangers.len() < MAX_STRANGERS || self.strangers.contains_key(&cgroup) {
            *self.strangers.entry(cgroup).or_default() += 1;
        }
        DEFAULT_POOL
    }

    /// The message to which blocks of this origin are added.
    fn batch(&mut self, origin: Origin, serial: Serial, now: Instant) -> Option<&mut Batch> {
        if !self.open.contains_key(&origin) {
            if self.free.is_empty() {
                let fullest = self.open.values().max_by_key(|batch| batch.count)?.origin;
                self.close(fullest);
                // Its buffer is in use until it has been sent.
                return None;
            }
            let mut buffer = self.free.pop()?;
            PutWriter::new(&mut buffer, 0, origin.pool, serial)?;
            let (count, since) = (0, now);
            let batch = Batch {
                origin,
                buffer,
                count,
                since,
            };
            self.open.insert(origin, batch);
        }
        self.open.get_mut(&origin)
    }

    fn close(&mut self, origin: Origin) {
        if let Some(batch) = self.open.remove(&origin) {
            self.ready.push_back(batch);
        }
    }

    /// Makes messages ready that have waited for `age`.
    pub(crate) fn close_older(&mut self, age: Duration, now: Instant) {
        let old = |batch: &&Batch| now.saturating_duration_since(batch.since) >= age;
        let old: Vec<Origin> = self.open.values().filter(old).map(|b| b.origin).collect();
        old.into_iter().for_each(|origin| self.close(origin));
    }

    /// The next message that is ready.
    pub(crate) fn next_ready(&mut self) -> Option<Batch> {
        self.ready.pop_front()
    }

    /// Takes back a message that was sent.
    pub(crate) fn recycle(&mut self, batch: Batch) {
        self.free.push(batch.buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_guest_protocol::puts::{Body, PAGE, decode};

    fn page(block: u64, disk: u32, cgroup: u64, content: &[u8; PAGE]) -> Eviction<'_> {
        Eviction {
            block,
            disk: Device(disk),
            filesystem: Device(disk + 1),
            cgroup: CgroupId(cgroup),
            content,
        }
    }

    fn batches() -> Batches {
        let mut batches = Batches::new();
        batches.disks = [1, 2]
            .map(|d| (Device(d), Serial::new(&format!("disk{d}")).unwrap()))
            .into();
        batches.pools = [(CgroupId(7), 3)].into();
        batches
    }

    #[test]
    fn blocks_go_out_by_disk_and_pool() {
        let mut batches = batches();
        let now = Instant::now();
        for block in 0..31 {
            let content = [u8::try_from(block).unwrap(); PAGE];
            assert!(batches.add(&page(block, 1, 7, &content), now));
            batches.add(&page(block, 2, 9, &content), now);
            batches.add(&page(block, 3, 7, &content), now);
        }
        batches.add(&page(99, 1, 9, &[1; PAGE]), now);
        let mut found = Vec::new();
        let more = Duration::from_secs(1);
        batches.close_older(more, now);
        assert_eq!(batches.ready.len(), 2, "the third is young");
        batches.close_older(more, now + more);
        while let Some(mut batch) = batches.next_ready() {
            let sequence = 5 + u64::try_from(found.len()).unwrap();
            let decoded = decode(batch.message(sequence)).unwrap();
            assert_eq!(decoded.sequence, sequence);
            let Ok(Body::Put(put)) = decoded.body else {
                panic!("no put: {decoded:?}");
            };
            assert!(
                put.blocks()
                    .all(|(n, content)| n == 99 || u64::from(content[PAGE - 1]) == n)
            );
            found.push((put.serial, put.pool, put.len()));
            batches.recycle(batch);
        }
        let serial = |n| Serial::new(&format!("disk{n}")).unwrap();
        assert_eq!(
            found,
            [(serial(1), 3, 31), (serial(2), 0, 31), (serial(1), 0, 1)]
        );
        assert_eq!(batches.strangers, [(CgroupId(9), 32)].into());
        assert_eq!(batches.free.len(), BUFFERS);
    }

    /// Memory is bounded for any number of origins: messages must be sent before more pages are taken.
    #[test]
    fn memory_is_bounded() {
        let mut batches = batches();
        let now = Instant::now();
        let mut refused = 0;
        for n in 0..10_000_u64 {
            let origin = u32::try_from(n % 40).unwrap();
            let mut page = page(n, 1, n, &[0; PAGE]);
            page.filesystem = Device(origin);
            refused += u32::from(!batches.add(&page, now));
        }
        assert!(refused > 0);
        let held = batches.free.len() + batches.open.len() + batches.ready.len();
        assert_eq!((held, batches.strangers.len()), (BUFFERS, MAX_STRANGERS));
        batches.clear();
        assert_eq!(batches.free.len(), BUFFERS);
    }
}
