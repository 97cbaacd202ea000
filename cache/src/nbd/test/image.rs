//! A real image through the socket, with rings and without.

use super::client::Client;
use crate::backing::{OpenOptions, RawImage};
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy};
use crate::disk::CachedDisk;
use crate::frontend::{Backend, IoLimits, Volume, VolumeStats};
use crate::ids::VmId;
use crate::nbd::{Export, Limits, Server};
use justitia_share::Weight;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ends inside a sector.
const SIZE: usize = (1 << 20) + 700;

/// A server of an image of this many bytes.
struct Rig {
    dir: tempfile::TempDir,
    cache: Arc<Cache>,
    vm: VmId,
    server: Server,
}

impl Rig {
    fn new(content: &[u8], rings: bool, mode: Option<Mode>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, content).unwrap();
        let raw = Arc::new(RawImage::open(&path, OpenOptions::default()).unwrap());
        let cache = Cache::new(CacheConfig::of_memory(64 << 10)).unwrap();
        let vm = cache
            .add_vm("vm", Weight::default(), Policy::default())
            .unwrap();
        let backend = match mode {
            Some(mode) => {
                let id = cache.add_disk(vm, "disk").unwrap();
                Backend::Cached(CachedDisk::new(raw, cache.clone(), id, mode).unwrap())
            }
            None => Backend::Plain(raw),
        };
        let limits = Limits {
            io: IoLimits {
                io_uring: rings,
                ..IoLimits::default()
            },
            ..Limits::default()
        };
        let server = Server::new(limits, None).unwrap();
        server.add(Export::new(Volume::new("disk", backend), ""));
        server.listen_unix(&dir.path().join("s")).unwrap();
        Self {
            dir,
            cache,
            vm,
            server,
        }
    }

    fn client(&self, extended: bool) -> Client {
        Client::new(&self.dir.path().join("s"), "disk", extended)
    }
}

/// Reads and writes at odd places, three times over.
fn check_places(c: &mut Client, truth: &mut [u8]) {
    let places = [
        (0, 4096),
        (8192, 65536),
        (512, 512),
        (5, 9000),
        (SIZE - 4796, 4796),
        (SIZE - 1, 1),
        (100_000, 800_000),
    ];
    for round in 0..3u8 {
        for (n, (off, len)) in places.into_iter().enumerate() {
            let (at, count) = (u64::try_from(off).unwrap(), u32::try_from(len).unwrap());
            // Twice: the second time it may be in the cache.
            for _ in 0..2 {
                let found = c.read(at, count);
                assert_eq!(found.error, 0);
                assert!(found.data == truth[off..off + len], "{len} bytes at {off}");
            }
            let byte = round * 16 + u8::try_from(n).unwrap();
            truth[off..off + len].fill(byte);
            let fua = u16::from(n % 2 == 0);
            assert_eq!(c.write(fua, at, &vec![byte; len]).error, 0);
        }
        c.send(3, 0, 1, 0, &[], 0);
        assert_eq!(c.reply(0).error, 0);
    }
}

/// Many reads at once, which overtake each other.
fn check_overtaking(c: &mut Client, truth: &[u8]) {
    for n in 0..100u64 {
        c.send(0, 0, n, n * 4096, &[], 8192);
    }
    for _ in 0..100 {
        let found = c.reply(8192);
        let at = usize::try_from(found.cookie).unwrap() * 4096;
        assert!(found.data == truth[at..at + 8192]);
    }
}

/// A file that somebody cut off: what is gone reads as zeroes. Ends with 9 in its first block.
fn check_cut_file(rig: &Rig, c: &mut Client, truth: &[u8]) {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(rig.dir.path().join("image"))
        .unwrap();
    file.set_len(4096 * 40 + 100).unwrap();
    rig.cache.remove_vm(rig.vm).unwrap();
    let found = c.read(4096 * 39, 8192);
    let start = 4096 * 39;
    assert!(found.data[..4196] == truth[start..start + 4196]);
    assert!(found.data[4196..].iter().all(|b| *b == 0));
    file.set_len(u64::try_from(SIZE).unwrap()).unwrap();
    assert_eq!(c.write(1, 0, &[9; 4096]).error, 0);
    let mut on_disk = [0; 4096];
    file.read_exact_at(&mut on_disk, 0).unwrap();
    assert_eq!(on_disk, [9; 4096]);
}

/// Clients' operations, checked against the expected content of the image.
fn served(rings: bool, mode: Option<Mode>) -> VolumeStats {
    let mut truth: Vec<u8> = (0..SIZE)
        .map(|i| (i / 512 % 251).try_into().unwrap())
        .collect();
    let rig = Rig::new(&truth, rings, mode);
    let mut c = rig.client(true);
    check_places(&mut c, &mut truth);
    check_overtaking(&mut c, &truth);
    check_cut_file(&rig, &mut c, &truth);
    // A client that leaves in the middle does no harm.
    for n in 0..50u64 {
        c.send(0, 0, n, n * 4096, &[], 65536);
    }
    drop(c);
    let mut other = rig.client(false);
    assert_eq!(other.read(0, 4096).data, [9; 4096]);
    let stats = rig.server.volumes()[0].stats();
    rig.server.shut_down(Duration::from_secs(5));
    stats
}

#[test]
fn an_image_is_served_alike_with_rings_and_without() {
    for mode in [None, Some(Mode::Inclusive), Some(Mode::Exclusive)] {
        let threads = served(false, mode);
        let rings = served(true, mode);
        if crate::ring::unsupported_reason().is_none() {
            assert!(
                rings.offloaded_requests * 3 < threads.offloaded_requests,
                "{rings:?} {threads:?}"
            );
        }
    }
}

/// Writes and, right behind each, reads of the same block, in flight together: what a read that overtook its
/// write found must not be in the cache afterwards, and what is read once the write is done must be.
#[test]
fn a_read_that_overtakes_a_write_leaves_nothing_behind() {
    const BLOCKS: u64 = 16;
    let rig = Rig::new(&[0; SIZE], true, Some(Mode::Inclusive));
    let mut c = rig.client(true);
    let deadline = Instant::now() + Duration::from_secs(2);
    for round in 1.. {
        if Instant::now() > deadline {
            break;
        }
        let byte = u8::try_from(round % 251).unwrap();
        for block in 0..BLOCKS {
            c.send(1, 0, block, block * 4096, &[byte; 4096], 4096);
            c.send(0, 0, BLOCKS + block, block * 4096, &[], 4096);
        }
        for _ in 0..2 * BLOCKS {
            // A read's reply may come first, with what was there before.
            assert_eq!(c.reply(0).error, 0);
        }
        for block in 0..BLOCKS {
            let found = c.read(block * 4096, 4096);
            assert!(found.data == [byte; 4096], "block {block} is old");
        }
    }
    // And writes that have ended keep nothing out.
    let hits = || rig.server.volumes()[0].stats().inline_hits;
    let before = hits();
    for _ in 0..2 {
        assert_eq!(c.read(0, 4096).error, 0);
    }
    assert!(hits() > before);
}

#[test]
fn after_a_failed_sync_every_flush_and_fua_write_of_all_connections_fails() {
    use crate::block_dev::Sync;
    const EIO: u32 = 5;
    const FUA: u16 = 1;
    for (rings, mode) in [
        (true, Some(Mode::Inclusive)),
        (false, Some(Mode::Inclusive)),
        (true, None),
        (false, None),
    ] {
        let rig = Rig::new(&[1; 1 << 20], rings, mode);
        let volume = rig.server.volumes().remove(0);
        let connect = || Client::new(&rig.dir.path().join("s"), "disk", false);
        let mut clients = [connect(), connect()];
        let mut sync = |client: usize| {
            let client = &mut clients[client];
            let mut errors = vec![client.write(FUA, 8192, &[2; 4096]).error];
            errors.push(client.write(FUA, 3, &[2; 5]).error);
            // FLUSH, TRIM, WRITE_ZEROES.
            for (kind, flags, length) in [(3, 0, 0), (4, FUA, 4096), (6, FUA, 4096)] {
                client.send(kind, flags, 7, 0, &[], length);
                errors.push(client.reply(0).error);
            }
            errors
        };
        assert_eq!(sync(0), [0; 5]);
        // As the kernel says it once, to a third one.
        let errors = volume.backend().file().unwrap().sync_errors();
        let eio = std::io::Error::from_raw_os_error(5);
        errors.settle(Sync::Flush, Err(eio)).unwrap_err();
        for client in [0, 1, 0] {
            assert_eq!(sync(client), [EIO; 5], "rings: {rings}");
        }
        // What needs no sync goes on.
        assert_eq!(clients[0].write(0, 0, &[3; 4096]).error, 0);
        assert_eq!(clients[1].read(0, 4096).data, [3; 4096]);
        let why = volume.stats().sync_failed.unwrap();
        assert!(why.contains("os error 5"), "{why}");
    }
}

/// Where `RWF_DSYNC` does not make a write durable, as on FUSE, a ring does not try it: a thread syncs.
#[test]
fn a_durable_write_is_synced_where_the_file_system_does_not_do_it() {
    use crate::block_dev::{ImageFile, SyncErrors};
    let file = Arc::new(tempfile::tempfile().unwrap());
    for dsync in [true, false] {
        let errors = SyncErrors::new("image".into(), None);
        let file = ImageFile::new(Arc::clone(&file), 1, dsync, errors);
        assert_eq!(file.write(&[0; 512], 0, true).is_some(), dsync);
        assert!(file.write(&[0; 512], 0, false).is_some());
    }
}
