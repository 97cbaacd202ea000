//! Power loss: what was acknowledged as durable is there after a crash at any moment, whatever else is, and no sector is
//! torn or from elsewhere. What reaches the kernel is recorded, from io_uring and from threads; `lab` does the same with
//! the kernel's own recorder below a file system and a disk.

mod crash;
mod workload;

use crate::backing::{OpenOptions, RawImage};
use crate::block_dev::Recorder;
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy};
use crate::disk::CachedDisk;
use crate::frontend::{Backend, Executor, IoLimits, Volume};
use crate::nbd::test::client::Client;
use crate::nbd::{Export, Limits, Server};
use crate::testing::Random;
use crate::testing::front_end::{FrontEnd, FrontEndOptions};
use crate::vhost::VhostServer;
use crash::{Crashes, Replay};
use justitia_share::Weight;
use std::sync::Arc;
use workload::{SECTOR, SECTORS, Workload};

/// How an image is served.
#[derive(Clone, Copy, Debug)]
struct How {
    mode: Option<Mode>,
    io_uring: bool,
    /// The file system makes writes with `RWF_DSYNC` durable.
    dsync: bool,
    /// Past the page cache.
    direct: bool,
}

/// A workload over NBD and vhost-user, and all crashes of it.
fn crashes_of(how: How, seed: u64) -> Crashes {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(SECTORS * u64::try_from(SECTOR).unwrap())
        .unwrap();
    let recorder = Recorder::of(&file);
    let options = OpenOptions {
        direct: how.direct,
        ..OpenOptions::default()
    };
    let mut raw = RawImage::open(&image, options).unwrap();
    if !how.dsync {
        raw.forget_dsync();
    }
    let cache = Cache::new(CacheConfig::default()).unwrap();
    let weight = Weight::default();
    let vm = cache.add_vm("vm", weight, Policy::default()).unwrap();
    let backend = match how.mode {
        Some(mode) => {
            let id = cache.add_disk(vm, "disk").unwrap();
            Backend::Cached(CachedDisk::new(Arc::new(raw), cache, id, mode).unwrap())
        }
        None => Backend::Plain(Arc::new(raw)),
    };
    let volume = Arc::new(Volume::new("disk", backend));
    let io = IoLimits {
        io_uring: how.io_uring,
        ..IoLimits::default()
    };
    let limits = Limits {
        io,
        ..Limits::default()
    };
    let server = Server::new(limits, None).unwrap();
    server.add(Export::new(Arc::clone(&volume), ""));
    let (nbd, vhost) = (dir.path().join("nbd"), dir.path().join("vhost"));
    server.listen_unix(&nbd).unwrap();
    let executor = Executor::new(&io);
    let _vhost = VhostServer::listen(&vhost, volume, executor, io, Default::default()).unwrap();
    let clients = [(), ()].map(|()| Client::new(&nbd, "disk", false));
    let front_end = FrontEnd::connect(&vhost, FrontEndOptions::default()).unwrap();
    let mut workload = Workload::new(clients, front_end, Arc::clone(&recorder), seed);
    workload.run(300);
    let events = recorder.events();
    let replay = Replay::new(events.len(), &workload.history);
    replay.crashes(&events, &mut Random::new(seed))
}

#[test]
fn nothing_that_was_acknowledged_as_durable_is_lost_at_any_of_ten_thousand_crash_points() {
    let mut all = Crashes::default();
    for (n, (mode, io_uring, dsync, direct)) in (1..).zip([
        (Some(Mode::Inclusive), true, true, true),
        (Some(Mode::Exclusive), true, true, true),
        (None, true, true, false),
        (Some(Mode::Inclusive), false, true, true),
        (None, true, false, true),
        (Some(Mode::Inclusive), false, false, false),
    ]) {
        let how = How {
            mode,
            io_uring,
            dsync,
            direct,
        };
        let found = crashes_of(how, n);
        // Or the disk was never asked to hold anything back.
        assert!(found.uncertain * 4 > found.points, "{how:?}: {found:?}");
        all.points += found.points;
    }
    assert!(all.points >= 10_000, "{all:?}");
}
