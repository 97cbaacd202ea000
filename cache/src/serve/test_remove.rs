//! Disks and VMs that are removed while clients use them, and added again.

use super::remove::Gone;
use super::*;
use crate::backing::{OpenOptions, RawImage};
use crate::block_dev::BlockDevice;
use crate::config::Mode;
use crate::disk::CachedDisk;
use crate::frontend::{Backend, Volume};
use crate::nbd::Export;
use crate::nbd::test::client::Client;
use crate::nbd::test::live::Puppet;
use crate::testing::front_end::{BlkRequest, FrontEnd, FrontEndOptions, kind};
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 16;
/// [`BLOCK`], as requests have it.
const LENGTH: u32 = 4096;
/// All blocks.
const ALL: u32 = 65_536;

/// Two VMs with a disk each, `a` and `b`, on sockets of their own and one for both.
fn start(dir: &Path) -> Service {
    let at = dir.display();
    let mut text = format!("control = \"{at}/ctl\"\n[listen]\nunix = \"{at}/s\"\n");
    for name in ["a", "b"] {
        std::fs::write(dir.join(name), [0; BLOCK * BLOCKS]).unwrap();
        text += &format!(
            "[[vm]]\nname = \"vm-{name}\"\nsocket = \"{at}/{name}.s\"\n[[vm.disk]]\nname = \"{name}\"\nimage = \"{at}/{name}\"\nvhost = \"{at}/{name}.v\"\n"
        );
    }
    Service::start(&Config::parse(Path::new("cache.toml"), &text).unwrap()).unwrap()
}

fn request(dir: &Path, request: &ControlRequest) -> Result<(), String> {
    let answer = send_request(&dir.join("ctl"), request);
    answer.map(drop).map_err(|e| e.to_string())
}

fn remove(dir: &Path, disk: &str) -> Result<(), String> {
    request(dir, &ControlRequest::RemoveDisk { disk: disk.into() })
}

fn add(dir: &Path, disk: &str, image: &str) -> Result<(), String> {
    let table = json!({
        "name": disk,
        "image": dir.join(image),
        "vhost": dir.join(disk.to_owned() + ".v"),
    });
    let add = ControlRequest::AddDisk {
        vm: format!("vm-{disk}"),
        disk: table.as_object().unwrap().clone(),
    };
    request(dir, &add)
}

/// Writes blocks one after the other until it is disconnected; for each block the last byte that was acknowledged, and one
/// that was sent and not answered.
fn write_until_disconnected(mut client: Client, first: u8, image: &[u8]) -> Vec<[u8; 2]> {
    let mut written: Vec<_> = image.chunks(BLOCK).map(|block| [block[0]; 2]).collect();
    let mut byte = first;
    for block in (0..BLOCKS).cycle() {
        byte = byte.wrapping_add(1).max(1);
        let (offset, length) = (u64::try_from(block * BLOCK).unwrap(), LENGTH);
        written[block][1] = byte;
        let sent = client.try_send(1, 0, 1, offset, &[byte; BLOCK], length);
        let mut reply = [0; 16];
        if sent.is_err() || client.stream.read_exact(&mut reply).is_err() {
            break;
        }
        assert_eq!(reply[4..8], [0; 4], "no error");
        written[block][0] = byte;
    }
    written
}

#[test]
fn clients_of_a_removed_disk_have_what_was_acknowledged_and_are_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = start(dir);
    let mut other = Client::new(&dir.join("b.s"), "b", false);
    for round in 0..20u8 {
        let client = Client::new(&dir.join(["s", "a.s"][usize::from(round % 2)]), "a", false);
        let mut idle = Client::new(&dir.join("s"), "a", false);
        let before = std::fs::read(dir.join("a")).unwrap();
        let writer =
            std::thread::spawn(move || write_until_disconnected(client, round * 10, &before));
        while service
            .stats()
            .exports
            .iter()
            .all(|e| e.name != "a" || e.writes < 3)
        {
            std::thread::yield_now();
        }
        remove(dir, "a").unwrap();
        assert!(idle.closed());
        let written = writer.join().unwrap();
        let image = std::fs::read(dir.join("a")).unwrap();
        for (found, expected) in image.chunks(BLOCK).zip(written) {
            assert!(expected.contains(&found[0]), "{} {expected:?}", found[0]);
            assert!(found.iter().all(|byte| *byte == found[0]));
        }
        // No client finds it, and none of its blocks is left; other processes may use the image.
        assert!(!dir.join("a.v").exists());
        let mut late = Client::silent(&dir.join("s"));
        late.take(18);
        late.stream.write_all(&[0, 0, 0, 3]).unwrap();
        late.option(1, b"a");
        assert!(late.closed());
        drop(RawImage::open(&dir.join("a"), OpenOptions::default()).unwrap());
        let stats = service.stats();
        assert!(stats.exports.iter().all(|e| e.name != "a"));
        assert_eq!(stats.cache.vms[0].disks.len(), 0);
        assert!(remove(dir, "a").unwrap_err().contains("there are: b"));
        // The same again, and what it holds.
        add(dir, "a", "a").unwrap();
        let mut again = Client::new(&dir.join("a.s"), "a", false);
        for _ in 0..2 {
            assert_eq!(again.read(0, ALL).data, image);
        }
        assert_eq!(other.write(0, 0, &[round; BLOCK]).error, 0);
    }
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_removed_vm_is_gone_with_all_that_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = start(dir);
    let mut client = Client::new(&dir.join("a.s"), "a", false);
    assert_eq!(client.write(0, 0, &[3; BLOCK]).error, 0);
    let vm = || "vm-a".to_owned();
    request(dir, &ControlRequest::RemoveVm { vm: vm() }).unwrap();
    assert!(client.closed());
    assert!(!dir.join("a.s").exists() && !dir.join("a.v").exists());
    assert_eq!(service.stats().cache.vms.len(), 1);
    let again = request(dir, &ControlRequest::RemoveVm { vm: vm() });
    assert!(again.unwrap_err().contains("there are: vm-b"));
    let image = dir.join("a");
    let table = json!({ "name": "vm-a", "weight": 7, "disk": [{ "name": "a", "image": image }] });
    let add = ControlRequest::AddVm {
        vm: table.as_object().unwrap().clone(),
    };
    request(dir, &add).unwrap();
    let stats = service.stats().cache;
    let added = stats.vms.iter().find(|vm| vm.name == "vm-a").unwrap();
    assert_eq!(added.weight, 7);
    let mut client = Client::new(&dir.join("s"), "a", false);
    assert_eq!(client.read(0, LENGTH).data, [3; BLOCK]);
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_front_end_of_a_removed_disk_is_stopped_and_finds_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = start(dir);
    std::fs::write(dir.join("c"), [5; BLOCK * BLOCKS]).unwrap();
    let read = |front_end: &mut FrontEnd| {
        let request = BlkRequest::new(kind::IN, 0, LENGTH);
        let queue = &mut front_end.queues[0];
        let answer = queue.execute(request, &[]).unwrap();
        assert_eq!(answer.status, 0);
        let mut found = [0; 1];
        queue.read_data(answer.slot, &mut found).unwrap();
        found[0]
    };
    let connect = || FrontEnd::connect(&dir.join("a.v"), FrontEndOptions::default()).unwrap();
    let mut front_end = connect();
    assert_eq!(read(&mut front_end), 0);
    remove(dir, "a").unwrap();
    assert_eq!(service.stats().vhost_front_ends, 0);
    assert!(front_end.config(0, 8).is_err(), "it is disconnected");
    // Another image under the same name.
    add(dir, "a", "c").unwrap();
    assert_eq!(read(&mut connect()), 5);
    service.shut_down(Duration::from_secs(5)).unwrap();
}

/// A disk of VM `vm-a` in the service, as clients see it, whose reads can hang.
fn puppet(service: &Service, name: &str, byte: u8) -> (Arc<Puppet>, Arc<Volume>) {
    let daemon = service.daemon();
    let puppet = Puppet::new(BLOCK * BLOCKS);
    puppet
        .ram
        .write_at(&[byte; BLOCK * BLOCKS], 0, false)
        .unwrap();
    let vms = daemon.vms.lock();
    let vm = vms.vm("vm-a").unwrap();
    let id = daemon.cache.add_disk(vm.id, name).unwrap();
    let cache = Arc::clone(&daemon.cache);
    let cached = CachedDisk::new(puppet.clone(), cache, id, Mode::Inclusive).unwrap();
    let volume = Volume::new(name, Backend::Cached(cached)).of_vm(vm);
    let volume = Arc::new(volume);
    daemon.volumes.lock().push(Arc::clone(&volume));
    daemon.all.add(Export::new(Arc::clone(&volume), ""));
    (puppet, volume)
}

#[test]
fn a_disk_that_hangs_is_removed_and_whoever_still_has_it_reads_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = start(dir);
    let daemon = service.daemon();
    let (hung, volume) = puppet(&service, "hung", 1);
    let mut client = Client::new(&dir.join("s"), "hung", false);
    assert_eq!(client.read(0, LENGTH).data, [1; BLOCK]);
    hung.stuck.store(true, Ordering::SeqCst);
    client.send(0, 0, 1, 2 * u64::from(LENGTH), &[], LENGTH);
    while daemon.cache.stats().vms[0].pools[0].counts.gets < 2 {
        std::thread::yield_now();
    }
    let gone = || Gone::of_disks("vm-a", ["hung"].into_iter());
    let problems = daemon.remove_within(&gone(), Duration::from_secs(2));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("still in flight"));
    assert!(service.stats().exports.iter().all(|e| e.name != "hung"));
    // It takes free numbers: not that of the disk that is still referenced.
    let others: Vec<_> = (0..4u8)
        .map(|n| {
            let name = format!("next{n}");
            let (_, next) = puppet(&service, &name, 100 + n);
            let mut reader = Client::new(&dir.join("s"), &name, false);
            for _ in 0..2 {
                assert_eq!(reader.read(0, LENGTH).data, [100 + n; BLOCK]);
            }
            next
        })
        .collect();
    hung.stuck.store(false, Ordering::SeqCst);
    let read = |volume: &Volume| {
        let mut found = [0; BLOCK];
        volume.backend().disk().read_at(&mut found, 0).unwrap();
        found[0]
    };
    for _ in 0..3 {
        assert_eq!(read(&volume), 1);
        let found: Vec<_> = others.iter().map(|next| read(next)).collect();
        assert_eq!(found, [100, 101, 102, 103]);
    }
    // The reply to the read that had hung was the last: the client is cut off.
    assert!(client.closed());
    drop(volume);
    assert!(daemon.remove(&gone()).is_empty());
    drop(others);
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn what_is_in_flight_is_answered_and_nothing_is_taken_after_that() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = start(dir);
    let daemon = service.daemon();
    let (slow, volume) = puppet(&service, "slow", 1);
    drop(volume);
    let mut client = Client::new(&dir.join("s"), "slow", false);
    slow.stuck.store(true, Ordering::SeqCst);
    client.send(0, 0, 5, 0, &[], LENGTH);
    while daemon.cache.stats().vms[0].pools[0].counts.gets < 1 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let gone = Gone::of_disks("vm-a", ["slow"].into_iter());
        let long = Duration::from_secs(120);
        let removed = scope.spawn(move || daemon.remove_within(&gone, long));
        // Until the connection has been told: it does not read any more.
        let mut refused = false;
        while !refused {
            refused = client
                .try_send(1, 0, 6, 8 * u64::from(LENGTH), &[9; BLOCK], LENGTH)
                .is_err();
            std::thread::yield_now();
        }
        slow.stuck.store(false, Ordering::SeqCst);
        // Writes that were taken before may be answered first.
        while client.reply(0).cookie != 5 {}
        assert_eq!(client.take(BLOCK), [1; BLOCK]);
        // Long before clients are cut off that do not go.
        let end = loop {
            let mut head = [0; 16];
            if let Err(e) = client.stream.read_exact(&mut head) {
                break e.kind();
            }
        };
        let ends = [
            std::io::ErrorKind::UnexpectedEof,
            std::io::ErrorKind::ConnectionReset,
        ];
        assert!(ends.contains(&end), "{end}");
        assert_eq!(removed.join().unwrap(), Vec::<String>::new());
    });
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_flush_that_fails_is_told_and_the_disk_is_removed_nevertheless() {
    let dir = tempfile::tempdir().unwrap();
    let service = start(dir.path());
    let (disk, volume) = puppet(&service, "bad", 1);
    drop(volume);
    *disk.error.lock() = Some(std::io::ErrorKind::StorageFull);
    let gone = Gone::of_disks("vm-a", ["bad"].into_iter());
    let problems = service.daemon().remove(&gone);
    assert!(
        problems.len() == 1 && problems[0].contains("disk \"bad\""),
        "{problems:?}"
    );
    assert!(service.stats().exports.iter().all(|e| e.name != "bad"));
    // Writable disks are flushed.
    let (good, volume) = puppet(&service, "good", 1);
    drop(volume);
    let gone = Gone::of_disks("vm-a", ["good"].into_iter());
    assert!(service.daemon().remove(&gone).is_empty());
    assert_eq!(good.flushes.load(Ordering::SeqCst), 1);
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_file_grows_and_what_is_new_of_it_reads_as_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let service = start(dir);
    // An end within a block.
    let end = u64::from(LENGTH) + 512;
    let image = dir.join("odd");
    std::fs::write(&image, vec![6; BLOCK + 512]).unwrap();
    remove(dir, "a").unwrap();
    add(dir, "a", "odd").unwrap();
    let grow = |size| {
        let (disk, size) = ("a".to_owned(), Size(size));
        request(dir, &ControlRequest::GrowDisk { disk, size })
    };
    let mut before = Client::new(&dir.join("s"), "a", false);
    for _ in 0..2 {
        assert_eq!(before.read(0, LENGTH + 512).data, vec![6; BLOCK + 512]);
    }
    for size in [end - 512, 0, end + 100, u64::MAX] {
        let why = grow(size).unwrap_err();
        assert!(
            why.contains("in whole sectors") || why.contains("larger"),
            "{why}"
        );
    }
    grow(end).unwrap();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), end);
    grow(4 * u64::from(LENGTH)).unwrap();
    assert_eq!(
        std::fs::metadata(&image).unwrap().len(),
        4 * u64::from(LENGTH)
    );
    let mut expected = vec![0; 4 * BLOCK];
    expected[..BLOCK + 512].fill(6);
    let mut after = Client::new(&dir.join("s"), "a", false);
    for _ in 0..2 {
        assert_eq!(after.read(0, 4 * LENGTH).data, expected);
    }
    assert_eq!(after.write(0, 3 * u64::from(LENGTH), &[8; BLOCK]).error, 0);
    expected[3 * BLOCK..].fill(8);
    assert_eq!(after.read(0, 4 * LENGTH).data, expected);
    let mut found = vec![0; BLOCK];
    let file = std::fs::File::open(&image).unwrap();
    file.read_exact_at(&mut found, 3 * u64::from(LENGTH))
        .unwrap();
    assert_eq!(found, [8; BLOCK]);
    service.shut_down(Duration::from_secs(5)).unwrap();
}
