//! The server through its socket, with disks that obey.

use super::client::{Client, Reply};
use crate::block_dev::{BlockDevice, RamDisk};
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy};
use crate::disk::CachedDisk;
use crate::frontend::{Backend, Volume};
use crate::nbd::{Export, Limits, Server};
use justitia_share::Weight;
use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A disk that does what the test says.
pub(crate) struct Puppet {
    pub ram: RamDisk,
    /// The next operations fail with this error.
    pub error: Mutex<Option<io::ErrorKind>>,
    /// Reads wait while this is set.
    pub stuck: AtomicBool,
    /// Reads that have begun to wait.
    pub waited: AtomicU64,
    /// Flushes wait while this is locked.
    pub shut: Mutex<()>,
    pub flushes: AtomicU64,
    pub panics: AtomicBool,
}

impl Puppet {
    pub(crate) fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            ram: RamDisk::new(size),
            error: Mutex::default(),
            stuck: AtomicBool::new(false),
            waited: AtomicU64::new(0),
            shut: Mutex::default(),
            flushes: AtomicU64::new(0),
            panics: AtomicBool::new(false),
        })
    }

    fn mood(&self) -> io::Result<()> {
        assert!(!self.panics.load(Ordering::SeqCst), "on purpose");
        match *self.error.lock() {
            Some(kind) => Err(kind.into()),
            None => Ok(()),
        }
    }
}

impl BlockDevice for Puppet {
    fn size(&self) -> u64 {
        self.ram.size()
    }
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        let stuck = u64::from(self.stuck.load(Ordering::SeqCst));
        self.waited.fetch_add(stuck, Ordering::SeqCst);
        while self.stuck.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.mood()?;
        self.ram.read_at(buf, off)
    }
    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        self.mood()?;
        if fua {
            self.flush()?;
        }
        self.ram.write_at(buf, off, fua)
    }
    fn flush(&self) -> io::Result<()> {
        self.mood()?;
        drop(self.shut.lock());
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        self.mood()?;
        self.ram.discard(off, len)
    }
    fn write_zeroes(&self, off: u64, len: u64, fua: bool, unmap: bool) -> io::Result<()> {
        self.mood()?;
        self.ram.write_zeroes(off, len, fua, unmap)
    }
}

pub(super) struct Rig {
    pub disk: Arc<Puppet>,
    pub server: Server,
    pub socket: PathBuf,
    _dir: tempfile::TempDir,
}

/// A server of one disk of 1 MiB (in the cache) under the names `disk` and, read-only, `safe`.
pub(super) fn rig(limits: Limits) -> Rig {
    rig_of(limits, 1 << 20)
}

fn rig_of(limits: Limits, size: usize) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let disk = Puppet::new(size);
    let cache = Cache::new(CacheConfig::of_memory(8 << 20)).unwrap();
    let vm = cache
        .add_vm("vm", Weight::default(), Policy::default())
        .unwrap();
    let server = Server::new(limits, None).unwrap();
    for (name, read_only) in [("disk", false), ("safe", true)] {
        let id = cache.add_disk(vm, name).unwrap();
        let cached = CachedDisk::new(disk.clone(), cache.clone(), id, Mode::Inclusive).unwrap();
        let volume = Volume::new(name, Backend::Cached(cached)).read_only(read_only);
        server.add(Export::new(volume, ""));
    }
    server.listen_unix(&socket).unwrap();
    Rig {
        disk,
        server,
        socket,
        _dir: dir,
    }
}

fn ok(cookie: u64, data: &[u8]) -> Reply {
    Reply {
        cookie,
        error: 0,
        data: data.to_vec(),
    }
}

#[test]
fn what_is_written_is_read() {
    let rig = rig(Limits::default());
    for extended in [false, true] {
        let mut c = Client::new(&rig.socket, "disk", extended);
        for (offset, size) in [(0, 4096), (4096, 100_000), (123, 1), (511, 8193)] {
            let byte = u8::try_from(size % 251).unwrap();
            let data = vec![byte; size];
            let length = u32::try_from(size).unwrap();
            assert_eq!(c.write(0, offset, &data), ok(8, &[]));
            assert_eq!(c.read(offset, length), ok(7, &data));
            // From the cache.
            assert_eq!(c.read(offset, length), ok(7, &data));
        }
        c.send(6, 0, 9, 4096, &[], 4096);
        assert_eq!(c.reply(0), ok(9, &[]));
        assert_eq!(c.read(4096, 4096), ok(7, &[0; 4096]));
        c.send(3, 0, 10, 0, &[], 0);
        assert_eq!(c.reply(0), ok(10, &[]));
        c.send(2, 0, 0, 0, &[], 0);
        assert!(c.closed());
    }
    assert!(rig.disk.flushes.load(Ordering::SeqCst) >= 2);
    let stats = &rig.server.volumes()[0].stats();
    assert!(stats.inline_hits >= 8 && stats.errors == 0, "{stats:?}");
}

#[test]
fn fua_reaches_the_disk() {
    let rig = rig(Limits::default());
    let mut c = Client::new(&rig.socket, "disk", false);
    assert_eq!(c.write(0, 0, &[1; 512]), ok(8, &[]));
    assert_eq!(rig.disk.flushes.load(Ordering::SeqCst), 0);
    assert_eq!(c.write(1, 0, &[1; 512]), ok(8, &[]));
    assert_eq!(rig.disk.flushes.load(Ordering::SeqCst), 1);
}

#[test]
fn errors_of_the_disk_reach_the_client_and_end_with_it() {
    let rig = rig(Limits::default());
    for extended in [false, true] {
        let mut c = Client::new(&rig.socket, "disk", extended);
        for (kind, number) in [
            (io::ErrorKind::Other, 5),
            (io::ErrorKind::StorageFull, 28),
            (io::ErrorKind::PermissionDenied, 1),
            (io::ErrorKind::TimedOut, 5),
        ] {
            *rig.disk.error.lock() = Some(kind);
            // Not cached: the write before invalidated it.
            assert_eq!(c.write(0, 65_536, &[1; 512]).error, number);
            assert_eq!(c.read(65_536, 512).error, number);
            c.send(3, 0, 9, 0, &[], 0);
            assert_eq!(c.reply(0).error, number);
            c.send(4, 0, 9, 0, &[], 512);
            assert_eq!(c.reply(0).error, number);
        }
        *rig.disk.error.lock() = None;
        assert_eq!(c.write(0, 65_536, &[9; 512]), ok(8, &[]));
        assert_eq!(c.read(65_536, 512), ok(7, &[9; 512]));
    }
    assert!(rig.server.volumes()[0].stats().errors >= 32);
}

#[test]
fn a_disk_that_panics_costs_the_request_only() {
    let rig = rig(Limits::default());
    let mut c = Client::new(&rig.socket, "disk", false);
    rig.disk.panics.store(true, Ordering::SeqCst);
    assert_eq!(c.read(0, 512).error, 5);
    rig.disk.panics.store(false, Ordering::SeqCst);
    assert_eq!(c.read(0, 512), ok(7, &[0; 512]));
}

#[test]
fn out_of_range_and_read_only_are_refused() {
    let rig = rig(Limits::default());
    let mut c = Client::new(&rig.socket, "disk", false);
    assert_eq!(c.read(1 << 20, 1).error, 22);
    assert_eq!(c.read((1 << 20) - 1, 2).error, 22);
    assert_eq!(c.write(0, (1 << 20) - 1, &[1; 2]).error, 28);
    let mut c = Client::new(&rig.socket, "safe", false);
    assert_eq!(c.write(0, 0, &[1; 512]).error, 1);
    assert_eq!(c.read(0, 512), ok(7, &[0; 512]));
}

#[test]
fn hits_overtake_misses() {
    let rig = rig(Limits::default());
    let mut c = Client::new(&rig.socket, "disk", false);
    assert_eq!(c.read(0, 4096), ok(7, &[0; 4096]));
    rig.disk.stuck.store(true, Ordering::SeqCst);
    c.send(0, 0, 100, 8192, &[], 4096);
    c.send(0, 0, 101, 0, &[], 4096);
    assert_eq!(c.reply(4096).cookie, 101);
    // Nor do they hold up another client.
    let mut other = Client::new(&rig.socket, "disk", false);
    assert_eq!(other.read(0, 4096), ok(7, &[0; 4096]));
    rig.disk.stuck.store(false, Ordering::SeqCst);
    assert_eq!(c.reply(4096).cookie, 100);
}

#[test]
fn a_flush_covers_the_writes_of_other_connections() {
    let rig = rig(Limits::default());
    let mut a = Client::new(&rig.socket, "disk", false);
    let mut b = Client::new(&rig.socket, "disk", false);
    assert_eq!(b.read(0, 4096), ok(7, &[0; 4096]));
    assert_eq!(a.write(0, 0, &[5; 4096]), ok(8, &[]));
    // Coherent at once, and one flush for all.
    assert_eq!(b.read(0, 4096), ok(7, &[5; 4096]));
    b.send(3, 0, 1, 0, &[], 0);
    assert_eq!(b.reply(0), ok(1, &[]));
    assert_eq!(rig.disk.flushes.load(Ordering::SeqCst), 1);
}

#[test]
fn shutting_down_finishes_what_is_in_flight() {
    let rig = rig(Limits::default());
    let mut c = Client::new(&rig.socket, "disk", false);
    rig.disk.stuck.store(true, Ordering::SeqCst);
    c.send(0, 0, 1, 0, &[], 4096);
    let disk = rig.disk.clone();
    // The request is at the disk when the end begins.
    std::thread::sleep(Duration::from_millis(100));
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        disk.stuck.store(false, Ordering::SeqCst);
    });
    rig.server.shut_down(Duration::from_secs(5));
    assert_eq!(c.reply(4096), ok(1, &[0; 4096]));
    assert!(c.closed());
    assert!(!rig.socket.exists());
    release.join().unwrap();
}

#[test]
fn the_largest_requests_are_served() {
    let rig = rig_of(Limits::default(), 40 << 20);
    for extended in [false, true] {
        let mut c = Client::new(&rig.socket, "disk", extended);
        let data = vec![3; 32 << 20];
        assert_eq!(c.write(0, 4096, &data), ok(8, &[]));
        for _ in 0..2 {
            assert_eq!(c.read(4096, 32 << 20), ok(7, &data));
        }
        c.send(0, 0, 1, 0, &[], (32 << 20) + 1);
        assert_eq!(c.reply(0).error, 75);
        c.send(4, 0, 1, 0, &[], 40 << 20);
        assert_eq!(c.reply(0), ok(1, &[]));
    }
}

/// Negotiates structured replies and `disk`.
fn structured(socket: &std::path::Path) -> Client {
    use std::io::Write;
    let mut client = Client::silent(socket);
    client.take(18);
    client.stream.write_all(&[0, 0, 0, 3]).unwrap();
    client.option(8, &[]);
    client.take(20);
    client.option(1, b"disk");
    client.take(10);
    client
}

#[test]
fn a_refused_read_is_answered_in_chunks_where_they_were_negotiated() {
    let rig = rig(Limits::default());
    let size = 1 << 20;
    // READ: beyond the end, of nothing, with a flag that it has not, too long. BLOCK_STATUS: not negotiated.
    for (kind, flags, offset, length) in [
        (0, 0, size, 512),
        (0, 0, 0, 0),
        (0, 0x80, 0, 512),
        (0, 0x20, 0, 512),
        (0, 0, 0, 64 << 20),
        (7, 0, 0, 512),
    ] {
        let mut client = structured(&rig.socket);
        client.send(kind, flags, 9, offset, &[], length);
        let head = client.take(20);
        assert_eq!(
            head[..4],
            0x668e_33ef_u32.to_be_bytes(),
            "{kind} {flags} {length}"
        );
        assert_eq!(head[4..8], [0, 1, 0x80, 1], "the last chunk, an error");
        let left = u32::from_be_bytes(head[16..].try_into().unwrap());
        client.take(usize::try_from(left).unwrap());
        // Requests that structured replies do not answer get simple ones.
        client.send(1, 0, 8, size, &[1], 1);
        assert_eq!(client.take(16)[..4], 0x6744_6698_u32.to_be_bytes());
    }
}
