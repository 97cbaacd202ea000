//! Warm restarts: blocks that survive them, and blocks that do not.

use super::handover::Descriptors;
use super::test::configured;
use super::{Config, Service};
use crate::block::BLOCK_BYTES;
use crate::config::{PoolSpec, SsdConfig, StoreKind};
use crate::frontend::Backend;
use crate::serve::PoolConfig;
use justitia_share::Weight;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Blocks of the image.
pub(super) const BLOCKS: u64 = 6000;

pub(super) struct Rig {
    pub(super) dir: TempDir,
    pub(super) config: Config,
}

pub(super) fn content(block: u64, version: u8) -> Vec<u8> {
    let mut content = vec![version; 4096];
    content[..8].copy_from_slice(&block.to_le_bytes());
    content
}

impl Rig {
    pub(super) fn new(memory_blocks: u64, ssd_blocks: Option<u64>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let whole: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 1)).collect();
        let (mut config, _) = configured(dir.path(), &whole);
        config.cache.memory_bytes = memory_blocks * BLOCK_BYTES;
        config.cache.ssd =
            ssd_blocks.map(|blocks| SsdConfig::new(dir.path().join("ssd"), blocks * BLOCK_BYTES));
        let both = PoolSpec::new(Weight::try_from(100).ok(), Weight::try_from(100).ok());
        if ssd_blocks.is_some() {
            config.vms[0].pools.push(PoolConfig {
                name: "default".into(),
                spec: if memory_blocks == 0 {
                    PoolSpec::of(StoreKind::Ssd, Weight::default())
                } else {
                    both.unwrap()
                },
                tag: None,
            });
        }
        Self { dir, config }
    }

    pub(super) fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub(super) fn start(&self, given: Descriptors) -> Service {
        Service::start_from(&self.config, given).unwrap()
    }
}

/// Reads a block, which must have this version; was it in the cache?
pub(super) fn read(service: &Service, block: u64, version: u8) -> bool {
    let volumes = service.volumes();
    let Backend::Cached(disk) = volumes[0].backend() else {
        panic!("expected a cached disk");
    };
    let was = disk.holds(block);
    let mut found = vec![0; 4096];
    use crate::block_dev::BlockDevice;
    disk.read_at(&mut found, block * BLOCK_BYTES).unwrap();
    assert!(
        found == content(block, version),
        "block {block}: version {}",
        found[9]
    );
    was
}

/// How many of these blocks are in the cache; each must have this version.
pub(super) fn hits(service: &Service, blocks: impl IntoIterator<Item = u64>, version: u8) -> u64 {
    let found = blocks
        .into_iter()
        .map(|block| u64::from(read(service, block, version)));
    found.sum()
}

/// How many blocks of the image are in the cache.
pub(super) fn held(service: &Service) -> u64 {
    let volumes = service.volumes();
    let Backend::Cached(disk) = volumes[0].backend() else {
        panic!("expected a cached disk");
    };
    (0..BLOCKS).map(|block| u64::from(disk.holds(block))).sum()
}

pub(super) fn hand_over(service: Service) -> Descriptors {
    let (left, flushed) = service.hand_over(TIMEOUT);
    flushed.unwrap();
    left
}

/// As systemd does when a unit is stopped.
pub(super) fn without_descriptors(left: Descriptors) -> Descriptors {
    drop(left);
    Descriptors::new()
}

/// What is left of a service that has read the whole image a few times: with its descriptors or without.
fn read_and_ended(rig: &Rig, with_descriptors: bool) -> Descriptors {
    let service = rig.start(Descriptors::new());
    for _ in 0..3 {
        hits(&service, 0..BLOCKS, 1);
    }
    let left = hand_over(service);
    match with_descriptors {
        true => left,
        false => without_descriptors(left),
    }
}

/// As when the kernel has no huge pages for memfds: the memory is not handed over.
pub(super) fn memory_survives() -> bool {
    crate::store::has_huge_memfds()
}

#[test]
fn what_was_in_memory_is_there_after_a_restart_in_the_same_order() {
    let rig = Rig::new(4096, None);
    let service = rig.start(Descriptors::new());
    assert_eq!(hits(&service, 0..4000, 1), 0);
    assert_eq!(hits(&service, 0..4000, 1), 4000);
    let mut left = hand_over(service);
    for _ in 0..3 {
        let service = rig.start(left);
        service.cache().audit();
        let expected = if memory_survives() { 4000 } else { 0 };
        assert_eq!(hits(&service, 0..4000, 1), expected);
        // It goes on working: what comes evicts.
        hits(&service, 4000..BLOCKS, 1);
        hits(&service, 0..4000, 1);
        hits(&service, 0..4000, 1);
        service.cache().audit();
        left = hand_over(service);
    }
}

#[test]
fn without_the_descriptors_memory_is_empty_and_nothing_is_left() {
    let rig = Rig::new(4096, None);
    let service = rig.start(Descriptors::new());
    hits(&service, 0..1000, 1);
    let service = rig.start(without_descriptors(hand_over(service)));
    assert_eq!(hits(&service, 0..1000, 1), 0);
    service.shut_down(TIMEOUT).unwrap();
}

/// Fills the SSD store; how many blocks that makes. On a busy machine its queue is full now and then, and puts are dropped.
fn fill(service: &Service) -> u64 {
    for _ in 0..100 {
        hits(service, 0..BLOCKS, 1);
        let held = held(service);
        if held > BLOCKS * 9 / 10 {
            return held;
        }
    }
    panic!("{} of {BLOCKS}", held(service));
}

#[test]
fn what_was_on_the_ssd_is_there_after_a_restart_with_or_without_descriptors() {
    let rig = Rig::new(0, Some(8192));
    let service = rig.start(Descriptors::new());
    let mut before = fill(&service);
    let mut left = hand_over(service);
    let (mut round, mut lost) = (0, 0);
    while round < 4 {
        if round % 2 == 1 {
            left = without_descriptors(left);
        }
        let service = rig.start(left);
        service.cache().audit();
        let after = held(&service);
        if after >= before * 95 / 100 {
            round += 1;
            // One that is read may leave: the image is as fast.
            hits(&service, 0..100, 1);
        } else {
            // A child that another test has just started has the image open until it executes its program: then it may
            // have changed, and nothing is kept.
            lost += 1;
            assert!(lost < 5, "{after} of {before}, round {round}");
            before = fill(&service);
        }
        left = hand_over(service);
    }
    let service = rig.start(left);
    assert!(hits(&service, 0..BLOCKS, 1) >= before * 90 / 100);
    left = hand_over(service);
    drop(left);
    // SIGINT: nothing is left.
    rig.start(Descriptors::new()).shut_down(TIMEOUT).unwrap();
    assert!(!rig.dir.path().join("ssd").exists());
}

#[test]
fn a_hybrid_pool_has_both_parts_again() {
    let rig = Rig::new(2048, Some(8192));
    let service = rig.start(Descriptors::new());
    for _ in 0..4 {
        hits(&service, 0..BLOCKS, 1);
    }
    let before = held(&service);
    let left = hand_over(service);
    let service = rig.start(left);
    service.cache().audit();
    let after = held(&service);
    assert!(
        after * 100 >= before * if memory_survives() { 95 } else { 50 },
        "{after} of {before}"
    );
    hits(&service, 0..BLOCKS, 1);
    service.shut_down(TIMEOUT).unwrap();
}

#[test]
fn an_image_that_has_changed_meanwhile_drops_its_blocks() {
    for held in [true, false] {
        let rig = Rig::new(2048, Some(8192));
        let left = read_and_ended(&rig, held);
        let file = File::options().write(true).open(rig.image()).unwrap();
        file.write_all_at(&content(77, 2), 77 * BLOCK_BYTES)
            .unwrap();
        let service = rig.start(left);
        read(&service, 77, 2);
        assert_eq!(hits(&service, 100..BLOCKS, 1), 0);
        service.shut_down(TIMEOUT).unwrap();
    }
}

#[test]
fn an_image_that_another_has_open_is_believed_only_if_its_lock_was_held() {
    for held in [true, false] {
        let rig = Rig::new(0, Some(8192));
        let service = rig.start(Descriptors::new());
        hits(&service, 0..BLOCKS, 1);
        let _other = File::options().write(true).open(rig.image()).unwrap();
        let mut left = hand_over(service);
        if !held {
            left = without_descriptors(left);
        }
        let service = rig.start(left);
        let found = hits(&service, 0..BLOCKS, 1);
        assert_eq!(found > 0, held, "{found}");
        service.shut_down(TIMEOUT).unwrap();
    }
}

#[test]
fn another_image_at_the_same_path_has_none_of_the_blocks() {
    for held in [true, false] {
        let rig = Rig::new(2048, Some(8192));
        let left = read_and_ended(&rig, held);
        let whole: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 3)).collect();
        std::fs::write(rig.dir.path().join("new"), whole).unwrap();
        std::fs::rename(rig.dir.path().join("new"), rig.image()).unwrap();
        let service = rig.start(left);
        assert_eq!(hits(&service, 0..BLOCKS, 3), 0);
        service.shut_down(TIMEOUT).unwrap();
    }
}

#[test]
fn the_lock_of_an_image_is_held_while_it_is_handed_over() {
    let rig = Rig::new(2048, None);
    let service = rig.start(Descriptors::new());
    let left = hand_over(service);
    let other = crate::backing::RawImage::open(&rig.image(), Default::default());
    assert!(other.is_err());
    let service = rig.start(left);
    let other = crate::backing::RawImage::open(&rig.image(), Default::default());
    assert!(other.is_err());
    service.shut_down(TIMEOUT).unwrap();
    crate::backing::RawImage::open(&rig.image(), Default::default()).unwrap();
}

/// A copy of what was handed over, as somebody has it whose daemon was killed after it had taken it.
fn copy(left: &Descriptors) -> Descriptors {
    let copies = left.iter();
    copies
        .map(|(name, fd)| (name.clone(), fd.try_clone().unwrap()))
        .collect()
}

fn has_preamble(path: &Path, at: u64) -> bool {
    let mut found = [0; 64];
    let file = File::open(path).unwrap();
    file.read_exact_at(&mut found, at).unwrap();
    crate::warm::Preamble::decode(&found).is_some()
}

#[test]
fn what_was_taken_once_is_void_after_a_kill() {
    let rig = Rig::new(2048, Some(8192));
    let left = read_and_ended(&rig, true);
    let again = copy(&left);
    let ssd = rig.dir.path().join("ssd");
    assert!(has_preamble(&ssd, (1 << 20) - 4096 + 512));
    let service = rig.start(left);
    // What a power loss leaves of the SSD store now: nothing that says which blocks it has.
    std::fs::copy(&ssd, rig.dir.path().join("copy")).unwrap();
    assert!(!has_preamble(
        &rig.dir.path().join("copy"),
        (1 << 20) - 4096 + 512
    ));
    let index = again.iter().find(|(name, _)| name.ends_with("index"));
    let index = format!("/proc/self/fd/{}", index.unwrap().1.as_raw_fd());
    assert!(!has_preamble(Path::new(&index), 0));
    let file = File::options().write(true).open(rig.image()).unwrap();
    service.shut_down(TIMEOUT).unwrap();
    for block in 0..BLOCKS {
        file.write_all_at(&content(block, 2), block * BLOCK_BYTES)
            .unwrap();
    }
    std::fs::rename(rig.dir.path().join("copy"), &ssd).unwrap();
    std::fs::set_permissions(&ssd, PermissionsExt::from_mode(0o600)).unwrap();
    let service = rig.start(again);
    assert_eq!(hits(&service, 0..BLOCKS, 2), 0);
    service.shut_down(TIMEOUT).unwrap();
}

#[test]
fn sockets_are_handed_over_and_those_of_others_stay() {
    let rig = Rig::new(64, None);
    let service = rig.start(Descriptors::new());
    let left = hand_over(service);
    let socket = rig.dir.path().join("nbd");
    // A client that comes now waits.
    let waiting = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let service = rig.start(left);
    let mut greeting = [0; 8];
    std::io::Read::read_exact(&mut &waiting, &mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
    service.shut_down(TIMEOUT).unwrap();
    assert!(!socket.exists());
    // Of systemd.
    let theirs = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let given = vec![("nbd.socket".to_owned(), theirs.try_clone().unwrap().into())];
    let service = rig.start(given);
    let client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    std::io::Read::read_exact(&mut &client, &mut greeting).unwrap();
    drop(client);
    service.shut_down(TIMEOUT).unwrap();
    assert!(socket.exists());
    std::os::unix::net::UnixStream::connect(&socket).unwrap();
}
