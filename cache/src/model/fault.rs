//! Disks and devices that fail on demand.

use crate::block::{BLOCK_BYTES, BLOCK_SIZE};
use crate::block_dev::{BlockDevice, RamDisk, check_range};
use crate::store::{BlocksRead, Device, Overdue, Page};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The number of following operations that fail.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) reads: AtomicU32,
    pub(crate) writes: AtomicU32,
    /// Reads succeed with wrong bytes.
    pub(crate) lies: AtomicU32,
    /// Writes fail for want of space.
    pub(crate) full: AtomicU32,
}

fn due(count: &AtomicU32) -> bool {
    count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        .is_ok()
}

/// A moment of a transfer to or from a backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A read has its bytes and has not ended.
    Read,
    /// A write was submitted, and has changed nothing.
    Before,
    /// A write has changed what it changes, and has not ended.
    After,
}

/// The operation at that moment.
type Then = Box<dyn FnOnce() + Send>;

/// A backing store whose reads come short and whose writes tear, and whose transfers take their time.
pub(crate) struct FaultDisk {
    pub(crate) ram: RamDisk,
    pub(crate) faults: Faults,
    /// The operation at this moment of the next transfer that has one.
    pub(crate) during: Mutex<Option<(Moment, Then)>>,
}

impl FaultDisk {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            ram: RamDisk::new(size),
            faults: Faults::default(),
            during: Mutex::default(),
        }
    }

    fn reached(&self, moment: Moment) {
        let then = self.during.lock().take_if(|(at, _)| *at == moment);
        if let Some((_, then)) = then {
            then();
        }
    }
}

impl BlockDevice for FaultDisk {
    fn size(&self) -> u64 {
        self.ram.size()
    }
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        if due(&self.faults.reads) {
            // A part arrives, the rest is whatever was there.
            let part = buf.len() / 2;
            self.ram.read_at(&mut buf[..part], off)?;
            buf[part..].fill(0xEE);
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.ram.read_at(buf, off)?;
        self.reached(Moment::Read);
        Ok(())
    }
    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        self.reached(Moment::Before);
        let torn = due(&self.faults.writes);
        let count = if torn { buf.len() / 2 } else { buf.len() };
        self.ram.write_at(&buf[..count], off, fua)?;
        self.reached(Moment::After);
        if torn {
            return Err(io::Error::other("a write failed half way"));
        }
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        self.ram.flush()
    }
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        if due(&self.faults.writes) {
            self.ram.discard(off, len / 2)?;
            return Err(io::Error::other("a discard failed half way"));
        }
        self.ram.discard(off, len)
    }
    fn write_zeroes(&self, off: u64, len: u64, fua: bool, may_unmap: bool) -> io::Result<()> {
        self.ram.write_zeroes(off, len, fua, may_unmap)
    }
}

/// The operation during a read: it gets the read's offset.
pub(crate) type Meanwhile = Box<dyn FnOnce(u64) + Send>;

/// An SSD in memory. What it does survives the store that uses it, as on a real one.
#[derive(Clone)]
pub(crate) struct FaultSsd {
    bytes: Arc<Mutex<Vec<u8>>>,
    pub(crate) faults: Arc<Faults>,
    /// The next read is slow: between the moment at which it takes its bytes and its end, this happens.
    pub(crate) meanwhile: Arc<Mutex<Option<Meanwhile>>>,
    /// The operation during the next discard: it gets its offset.
    pub(crate) during_discard: Arc<Mutex<Option<Meanwhile>>>,
    pub(crate) discards: Arc<AtomicU64>,
    /// It answers no read.
    hangs: Arc<AtomicBool>,
    /// Writes wait while this is set.
    pub(crate) hangs_writes: Arc<AtomicBool>,
    /// One for each read that is not answered; those that are dropped have ended.
    unanswered: Arc<Mutex<Vec<Arc<()>>>>,
    pub(crate) reads: Arc<AtomicU64>,
}

impl FaultSsd {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Arc::default(),
            faults: Arc::default(),
            meanwhile: Arc::default(),
            during_discard: Arc::default(),
            discards: Arc::default(),
            hangs: Arc::default(),
            hangs_writes: Arc::default(),
            unanswered: Arc::default(),
            reads: Arc::default(),
        }
    }

    /// It answers no read from now on; or all, those that it has not answered, too.
    pub(crate) fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
        if !hangs {
            self.unanswered.lock().clear();
        }
    }

    fn place(&self, off: u64, len: usize) -> io::Result<std::ops::Range<usize>> {
        let size = u64::try_from(self.bytes.lock().len()).map_err(io::Error::other)?;
        check_range(size, off, u64::try_from(len).map_err(io::Error::other)?)?;
        let start = usize::try_from(off).map_err(io::Error::other)?;
        Ok(start..start + len)
    }
}

impl Device for FaultSsd {
    fn read(&self, offsets: &[u64], _patience: Duration) -> Result<BlocksRead, Overdue> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.hangs.load(Ordering::SeqCst) {
            let under_way = Arc::new(());
            let overdue = Overdue::new(&under_way);
            self.unanswered.lock().push(under_way);
            return Err(overdue);
        }
        let mut pages: Vec<_> = offsets.iter().map(|_| Page::new()).collect();
        let one = |(off, page): (&u64, &mut Page)| {
            assert_eq!(*off % BLOCK_BYTES, 0);
            let place = self.place(*off, BLOCK_SIZE)?;
            page.0.copy_from_slice(&self.bytes.lock()[place]);
            let meanwhile = self.meanwhile.lock().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile(*off);
            }
            if due(&self.faults.lies) {
                page.0[17] ^= 0x40;
            }
            if due(&self.faults.reads) {
                return Err(io::Error::other("a read of the SSD failed"));
            }
            Ok(())
        };
        let results = offsets.iter().zip(&mut pages).map(one).collect();
        Ok(BlocksRead { pages, results })
    }
    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        while self.hangs_writes.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let one = |(off, bytes): &(u64, &[u8])| {
            if due(&self.faults.full) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let torn = due(&self.faults.writes);
            let count = if torn { bytes.len() / 3 } else { bytes.len() };
            let place = self.place(*off, count)?;
            self.bytes.lock()[place].copy_from_slice(&bytes[..count]);
            if torn {
                return Err(io::Error::other("a write to the SSD failed half way"));
            }
            Ok(())
        };
        requests.iter().map(one).collect()
    }
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        self.discards.fetch_add(1, Ordering::SeqCst);
        let place = self.place(off, usize::try_from(len).map_err(io::Error::other)?)?;
        self.bytes.lock()[place].fill(0xDD);
        let then = self.during_discard.lock().take();
        if let Some(then) = then {
            then(off);
        }
        Ok(())
    }
    fn grow(&self, len: u64) -> io::Result<u64> {
        let end = usize::try_from(len).map_err(io::Error::other)?;
        let mut bytes = self.bytes.lock();
        if bytes.len() < end {
            bytes.resize(end, 0xCC);
        }
        Ok(len)
    }
}
