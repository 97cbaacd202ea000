//! A real image through the socket, with rings and without.

use super::client::Client;
use crate::backing::{OpenOptions, RawDisk};
use crate::nbd::{Export, ExportStats, Limits, Served, Server};
use crate::{Cache, CacheConfig, CachedDisk, Mode, Policy, Weight};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Ends inside a sector.
const SIZE: usize = (1 << 20) + 700;

/// What clients do, checked against what the image must hold.
fn served(rings: bool, mode: Option<Mode>) -> ExportStats {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut truth: Vec<u8> = (0..SIZE)
        .map(|i| (i / 512 % 251).try_into().unwrap())
        .collect();
    std::fs::write(&path, &truth).unwrap();
    let raw = Arc::new(RawDisk::open(&path, OpenOptions::default()).unwrap());
    let cache = Cache::new(CacheConfig {
        memory_bytes: 64 << 10,
        ..CacheConfig::default()
    })
    .unwrap();
    let vm = cache
        .add_vm("vm", Weight::default(), Policy::default())
        .unwrap();
    let served = match mode {
        Some(mode) => {
            let id = cache.add_disk(vm, "disk").unwrap();
            Served::Cached(CachedDisk::new(raw, cache.clone(), id, mode).unwrap())
        }
        None => Served::Plain(raw),
    };
    let limits = Limits {
        rings,
        ..Limits::default()
    };
    let server = Server::new(limits, None).unwrap();
    server.add(Export::new("disk", served));
    let socket = dir.path().join("s");
    server.listen_unix(&socket).unwrap();
    let mut c = Client::new(&socket, "disk", true);
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
    // Many at once, which overtake each other.
    for n in 0..100u64 {
        c.send(0, 0, n, n * 4096, &[], 8192);
    }
    for _ in 0..100 {
        let found = c.reply(8192);
        let at = usize::try_from(found.cookie).unwrap() * 4096;
        assert!(found.data == truth[at..at + 8192]);
    }
    // A file that somebody cut off: what is gone reads as zeroes.
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    file.set_len(4096 * 40 + 100).unwrap();
    cache.remove_vm(vm).unwrap();
    let found = c.read(4096 * 39, 8192);
    let start = 4096 * 39;
    assert!(found.data[..4196] == truth[start..start + 4196]);
    assert!(found.data[4196..].iter().all(|b| *b == 0));
    file.set_len(u64::try_from(SIZE).unwrap()).unwrap();
    assert_eq!(c.write(1, 0, &[9; 4096]).error, 0);
    let mut on_disk = [0; 4096];
    file.read_exact_at(&mut on_disk, 0).unwrap();
    assert_eq!(on_disk, [9; 4096]);
    // A client that leaves in the middle does no harm.
    for n in 0..50u64 {
        c.send(0, 0, n, n * 4096, &[], 65536);
    }
    drop(c);
    let mut other = Client::new(&socket, "disk", false);
    assert_eq!(other.read(0, 4096).data, [9; 4096]);
    let stats = server.exports()[0].stats();
    server.shut_down(std::time::Duration::from_secs(5)).unwrap();
    stats
}

#[test]
fn an_image_is_served_alike_with_rings_and_without() {
    for mode in [None, Some(Mode::Inclusive), Some(Mode::Exclusive)] {
        let threads = served(false, mode);
        let rings = served(true, mode);
        if crate::ring::refusal().is_none() {
            assert!(
                rings.by_workers * 3 < threads.by_workers,
                "{rings:?} {threads:?}"
            );
        }
    }
}
