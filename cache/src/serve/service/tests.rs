//! The end of a service whose disks hang.

use super::*;
use crate::block_dev::BlockDevice;
use crate::config::CacheConfig;
use crate::frontend::{Backend, Volume};
use crate::nbd::Export;
use crate::nbd::test::live::Puppet;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

/// A service of these disks; the last is read-only.
fn service(disks: &[(&str, &Arc<Puppet>)]) -> Service {
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
    let (hung, good, read_only) = (Puppet::new(4096), Puppet::new(4096), Puppet::new(4096));
    let service = service(&[("hung", &hung), ("good", &good), ("read-only", &read_only)]);
    let shut = hung.shut.lock();
    let error = end_of(service, Duration::from_secs(2)).unwrap_err();
    let error = error.to_string();
    assert_eq!(error, "disk \"hung\": no answer, it was left behind");
    drop(shut);
    let flushes = |disk: &Puppet| disk.flushes.load(Ordering::SeqCst);
    assert_eq!((flushes(&good), flushes(&read_only)), (1, 0));
}

#[test]
fn all_disks_that_answer_are_flushed() {
    let (one, other, read_only) = (Puppet::new(4096), Puppet::new(4096), Puppet::new(4096));
    let service = service(&[("one", &one), ("other", &other), ("read-only", &read_only)]);
    end_of(service, Duration::from_secs(60)).unwrap();
    let flushes = |disk: &Puppet| disk.flushes.load(Ordering::SeqCst);
    assert_eq!([&one, &other, &read_only].map(|d| flushes(d)), [1, 1, 0]);
}
