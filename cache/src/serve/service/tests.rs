//! The end of a service whose disks hang.

use super::*;
use crate::block_dev::{BlockDevice, RamDisk};
use crate::config::CacheConfig;
use crate::frontend::{Backend, Volume};
use crate::nbd::Export;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// A disk whose flushes wait while `shut` is locked.
struct Latched {
    ram: RamDisk,
    shut: Mutex<()>,
    flushes: AtomicU64,
}

impl Latched {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            ram: RamDisk::new(4096),
            shut: Mutex::default(),
            flushes: AtomicU64::new(0),
        })
    }
}

impl BlockDevice for Latched {
    fn size(&self) -> u64 {
        self.ram.size()
    }
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        self.ram.read_at(buf, off)
    }
    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        self.ram.write_at(buf, off, fua)
    }
    fn flush(&self) -> io::Result<()> {
        drop(self.shut.lock());
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        self.ram.discard(off, len)
    }
    fn write_zeroes(&self, off: u64, len: u64, fua: bool, may_unmap: bool) -> io::Result<()> {
        self.ram.write_zeroes(off, len, fua, may_unmap)
    }
}

/// A service of these disks; the last is read-only.
fn service(disks: &[(&str, &Arc<Latched>)]) -> Service {
    let server = Server::new(Limits::default(), None).unwrap();
    let daemon = Daemon::new(Cache::new(CacheConfig::default()).unwrap(), server);
    for (at, (name, disk)) in disks.iter().enumerate() {
        let backend = Backend::Plain(Arc::clone(disk) as Arc<dyn BlockDevice>);
        let volume = Volume::new(name, backend).read_only(at + 1 == disks.len());
        let volume = Arc::new(volume);
        daemon.volumes.lock().push(Arc::clone(&volume));
        daemon.all.add(Export::new(volume, ""));
    }
    Service {
        daemon: Arc::new(daemon),
        control: None,
        metrics: None,
        tcp: None,
    }
}

/// The end of a service; it must come whatever its disks do.
fn end_of(service: Service, timeout: Duration) -> io::Result<()> {
    let (done, end) = mpsc::channel();
    std::thread::spawn(move || done.send(service.shut_down(timeout)));
    end.recv_timeout(Duration::from_secs(60)).expect("it ends")
}

#[test]
fn a_disk_whose_flush_hangs_is_left_behind_and_named_and_the_others_are_flushed() {
    let (hung, good, read_only) = (Latched::new(), Latched::new(), Latched::new());
    let service = service(&[("hung", &hung), ("good", &good), ("read-only", &read_only)]);
    let shut = hung.shut.lock();
    let error = end_of(service, Duration::from_secs(2)).unwrap_err();
    let error = error.to_string();
    assert_eq!(error, "disk \"hung\": no answer, it was left behind");
    drop(shut);
    let flushes = |disk: &Latched| disk.flushes.load(Ordering::SeqCst);
    assert_eq!((flushes(&good), flushes(&read_only)), (1, 0));
}

#[test]
fn all_disks_that_answer_are_flushed() {
    let (one, other, read_only) = (Latched::new(), Latched::new(), Latched::new());
    let service = service(&[("one", &one), ("other", &other), ("read-only", &read_only)]);
    end_of(service, Duration::from_secs(60)).unwrap();
    let flushes = |disk: &Latched| disk.flushes.load(Ordering::SeqCst);
    assert_eq!([&one, &other, &read_only].map(|d| flushes(d)), [1, 1, 0]);
}
