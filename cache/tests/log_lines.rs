//! Guests and clients that do wrong without end cause few lines of the log.

use justitia_cache::lab::front_end::{BlkRequest, FrontEnd, FrontEndOptions, kind};
use justitia_cache::serve::{Config, Service};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata};

/// Lines of any kind so far.
static LINES: AtomicUsize = AtomicUsize::new(0);

/// Counts events.
struct Counting;

impl tracing::Subscriber for Counting {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        LINES.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Lines that `work` causes. What is still under way is waited for.
fn lines_of(work: impl FnOnce()) -> usize {
    let before = LINES.load(Ordering::SeqCst);
    work();
    std::thread::sleep(Duration::from_millis(300));
    LINES.load(Ordering::SeqCst) - before
}

#[test]
fn a_tenant_that_does_wrong_without_end_causes_few_lines() {
    tracing::subscriber::set_global_default(Counting).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let sealable = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let image = memfd_create("image", sealable).unwrap();
    ftruncate(&image, 1 << 20).unwrap();
    let text = format!(
        "[listen]\nunix = {:?}\n[memory]\nsize = \"2MiB\"\n[[vm]]\nname = \"vm\"\n[[vm.disk]]\nname = \"disk\"\nimage = {:?}\nvhost = {:?}\n",
        at("nbd"),
        Path::new(&format!("/proc/self/fd/{}", image.as_raw_fd())),
        at("vhost"),
    );
    let config = Config::parse(Path::new("cache.toml"), &text).unwrap();
    let service = Service::start(&config).unwrap();
    // From now on writes fail.
    fcntl_add_seals(&image, SealFlags::WRITE).unwrap();
    let failing = lines_of(|| {
        let mut front_end = FrontEnd::connect(&at("vhost"), FrontEndOptions::default()).unwrap();
        for sector in 0..2000 {
            let request = BlkRequest::new(kind::OUT, sector, 512);
            front_end.queues[0].execute(request, &[1; 512]).unwrap();
        }
    });
    assert!(service.stats().exports[0].errors > 1000, "they did fail");
    let rings = lines_of(|| {
        let mut front_end = FrontEnd::connect(&at("vhost"), FrontEndOptions::default()).unwrap();
        for _ in 0..200 {
            front_end.queues[0].set_available(5000).unwrap();
            front_end.queues[0].kick.write(1).unwrap();
            assert!(
                front_end.queues[0]
                    .is_broken(Duration::from_secs(20))
                    .unwrap()
            );
            front_end.stop_queue(0).unwrap();
            front_end.queues[0].reset().unwrap();
            front_end.start_queue(0, 0).unwrap();
        }
    });
    let nonsense = |socket: &Path| {
        for _ in 0..200 {
            let mut client = UnixStream::connect(socket).unwrap();
            // It may have been cut off already.
            let _ = client.write_all(&[0xff; 100]);
            let _ = std::io::Read::read(&mut client, &mut [0; 64]);
        }
    };
    let front_ends = lines_of(|| nonsense(&at("vhost")));
    let clients = lines_of(|| nonsense(&at("nbd")));
    let found = [failing, rings, front_ends, clients];
    // Ten at once, and one in ten seconds.
    assert!(found.iter().sum::<usize>() < 60, "{found:?}");
    assert!(failing > 0, "{found:?}");
}
