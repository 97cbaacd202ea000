//! Requests that migrate blocks, replace the SSD store, and take disks and VMs out of the cache.

use super::test::configured;
use super::*;
use crate::nbd::test::client::Client;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

const BLOCK: u64 = 4096;
/// Bytes of the image.
const SIZE: u32 = 65_536;

/// A service with one VM of one disk, and another without.
struct Rig {
    dir: tempfile::TempDir,
    control: PathBuf,
    service: Service,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mut config, control) = configured(dir.path(), &[7; SIZE as usize]);
        config.vms.push(VmConfig {
            name: "other".into(),
            disks: Vec::new(),
            ..config.vms[0].clone()
        });
        let service = Service::start(&config).unwrap();
        Self {
            dir,
            control,
            service,
        }
    }

    fn request(&self, request: &ControlRequest) -> Result<(), String> {
        let response = send_request(&self.control, request);
        response.map(drop).map_err(|e| e.to_string())
    }

    fn assert_refused(&self, request: &ControlRequest, why: &str) {
        let error = self.request(request).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    /// A client, which finds the whole image as it is whenever it reads.
    fn reader(&self) -> impl FnMut() + use<> {
        let mut client = Client::new(&self.dir.path().join("nbd"), "vm", false);
        move || assert_eq!(client.read(0, SIZE).data, [7; SIZE as usize])
    }

    fn cache_stats(&self) -> serde_json::Value {
        send_request(&self.control, &ControlRequest::Stats).unwrap()["cache"].clone()
    }

    /// What the pools of the first VM hold in memory, bytes.
    fn held(&self) -> Vec<u64> {
        let stats = self.cache_stats();
        let pools = stats["vms"][0]["pools"].as_array().unwrap();
        let bytes = pools.iter().map(|p| p["memory_bytes"].as_u64().unwrap());
        bytes.collect()
    }

    fn shut_down(self) {
        self.service.shut_down(Duration::from_secs(5)).unwrap();
    }
}

/// A request that adds a VM holds the VMs while it takes the volumes.
#[test]
fn figures_hold_no_lock_while_they_wait_for_another() {
    let rig = Rig::new();
    let daemon = rig.service.daemon();
    std::thread::scope(|scope| {
        let vms = daemon.vms.lock();
        let (begun, started) = mpsc::channel();
        let asked = scope.spawn(move || {
            let _ = begun.send(());
            daemon.stats()
        });
        started.recv().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let volumes = daemon.volumes.try_lock_for(Duration::from_secs(1));
        assert_eq!(volumes.map(|volumes| volumes.len()), Some(1));
        drop(vms);
        assert_eq!(asked.join().unwrap().exports.len(), 1);
    });
}

#[test]
fn blocks_are_migrated_by_requests() {
    let rig = Rig::new();
    rig.request(&set_pool(true)).unwrap();
    rig.reader()();
    assert_eq!(rig.held(), [16 * BLOCK, 0]);
    let migrate =
        |disk: &str, pool: &str, offset, length: Option<u64>| ControlRequest::MigrateDisk {
            disk: disk.into(),
            pool: pool.into(),
            offset: Size(offset),
            length: length.map(Size),
        };
    // First those that lie inside a range as a whole, then all.
    let part = migrate("vm", "web", BLOCK - 1, Some(9 * BLOCK));
    let moved = |request| send_request(&rig.control, request).unwrap()["blocks"].clone();
    assert_eq!(moved(&part), 8);
    assert_eq!(rig.held(), [8 * BLOCK, 8 * BLOCK]);
    // What was there already was not moved.
    assert_eq!(moved(&migrate("vm", "web", 0, None)), 8);
    assert_eq!(rig.held(), [0, 16 * BLOCK]);
    for (offset, length) in [
        (u64::from(SIZE), None),
        (u64::from(SIZE), Some(BLOCK)),
        (BLOCK, Some(u64::from(SIZE))),
        (BLOCK, Some(u64::MAX)),
    ] {
        let outside = migrate("vm", "default", offset, length);
        rig.assert_refused(&outside, "expected a range in the 65536 bytes of disk");
    }
    rig.request(&migrate(
        "vm",
        "default",
        u64::from(SIZE) - BLOCK,
        Some(BLOCK),
    ))
    .unwrap();
    assert_eq!(rig.held(), [BLOCK, 15 * BLOCK]);
    rig.assert_refused(&migrate("x", "web", 0, None), "there are: vm");
    rig.assert_refused(&migrate("vm", "x", 0, None), "there are: default, web");
    rig.shut_down();
}

#[test]
fn what_memory_holds_of_a_disk_is_told_as_a_sample() {
    let rig = Rig::new();
    let sample = |disk: &str, shift| {
        let disk = disk.to_owned();
        let seed = 7;
        send_request(
            &rig.control,
            &ControlRequest::SampleDisk { disk, seed, shift },
        )
    };
    let blocks = |sample: &serde_json::Value| {
        let mut blocks: Vec<u64> = serde_json::from_value(sample["blocks"].clone()).unwrap();
        blocks.sort_unstable();
        blocks
    };
    assert_eq!(sample("vm", 0).unwrap()["bytes"], 0);
    rig.reader()();
    let all = sample("vm", 0).unwrap();
    assert_eq!((&all["bytes"], &all["shift"]), (&SIZE.into(), &0.into()));
    assert_eq!(
        blocks(&all),
        (0..u64::from(SIZE) / BLOCK).collect::<Vec<_>>()
    );
    let half = sample("vm", 1).unwrap();
    assert_eq!(half["bytes"], SIZE);
    let is_sampled = |block: &u64| justitia_guest_protocol::memory::is_sampled(*block, 7, 1);
    assert_eq!(
        blocks(&half),
        (0..16).filter(is_sampled).collect::<Vec<_>>()
    );
    // More bits than a hash has.
    assert!(blocks(&sample("vm", 200).unwrap()).len() < 2);
    assert!(sample("none", 0).unwrap_err().to_string().contains("none"));
    rig.shut_down();
}

#[test]
fn an_ssd_store_is_added_and_removed_by_requests() {
    let rig = Rig::new();
    let path = rig.dir.path().join("ssd");
    let size = Size(4 << 20);
    let replace = ControlRequest::ReplaceSsd {
        path: path.clone(),
        size,
        overwrite: false,
    };
    let stores = || rig.cache_stats()["stores"].clone();
    // Each finds the file unlocked, as the one before has given it up.
    for _ in 0..20 {
        rig.request(&replace).unwrap();
        assert_eq!(stores()[1]["capacity_bytes"], size.0);
        assert!(path.exists());
        rig.request(&ControlRequest::RemoveSsd).unwrap();
        assert_eq!(stores().as_array().unwrap().len(), 1);
        assert!(!path.exists());
    }
    rig.shut_down();
}

#[test]
fn disks_and_vms_are_served_uncached_after_requests() {
    let rig = Rig::new();
    let mut read = rig.reader();
    read();
    assert_eq!(rig.held(), [16 * BLOCK]);
    let uncache_disk = ControlRequest::UncacheDisk { disk: "vm".into() };
    let mode = || rig.service.list().unwrap()[0].mode;
    assert_eq!(mode(), "inclusive");
    rig.request(&uncache_disk).unwrap();
    assert_eq!(mode(), "uncached");
    read();
    assert_eq!(rig.held(), [0]);
    rig.assert_refused(&uncache_disk, "expected the name of a disk that is cached");
    let uncache_vm = ControlRequest::UncacheVm { vm: "vm".into() };
    rig.request(&uncache_vm).unwrap();
    read();
    let stats = rig.cache_stats();
    assert_eq!(stats["vms"].as_array().unwrap().len(), 1);
    rig.assert_refused(&uncache_vm, "restart the daemon to cache it again");
    rig.shut_down();
}

/// A request that must be answered while `meanwhile` is executed: it waits for no lock of it.
fn answered(
    control: &Path,
    request: &ControlRequest,
    meanwhile: &ControlRequest,
) -> Result<(), String> {
    let (answer, answers) = mpsc::channel();
    let (control, asked) = (control.to_owned(), request.clone());
    std::thread::spawn(move || answer.send(send_request(&control, &asked)));
    let answer = answers.recv_timeout(Duration::from_secs(20));
    let answer = answer.unwrap_or_else(|_| panic!("{request:?} waits for {meanwhile:?}"));
    answer.map(drop).map_err(|e| e.to_string())
}

fn set_pool(create: bool) -> ControlRequest {
    let request = json!({ "command": "set-pool", "vm": "vm", "pool": "web", "weight": 200, "create": create });
    serde_json::from_value(request).unwrap()
}

fn set_vm(vm: &str) -> ControlRequest {
    ControlRequest::SetVm {
        vm: vm.into(),
        weight: Some(200),
        policy: None,
    }
}

#[test]
fn others_change_the_cache_while_blocks_are_dropped() {
    let move_blocks = |length| ControlRequest::MigrateDisk {
        disk: "vm".into(),
        pool: "web".into(),
        offset: Size(0),
        length,
    };
    let (vm, pool, disk) = ("vm".to_owned(), "web".to_owned(), "vm".to_owned());
    let destroy = ControlRequest::DestroyPool {
        vm: vm.clone(),
        pool,
    };
    // What drops blocks; what is refused from then on, and why.
    for (drops, refused, why) in [
        (destroy, set_pool(false), "expected the name of a pool"),
        (
            ControlRequest::UncacheDisk { disk },
            move_blocks(Some(Size(0))),
            "expected the name of a disk that is cached",
        ),
        (
            ControlRequest::UncacheVm { vm },
            set_vm("vm"),
            "restart the daemon",
        ),
    ] {
        let rig = Rig::new();
        rig.request(&set_pool(true)).unwrap();
        rig.reader()();
        rig.request(&move_blocks(None)).unwrap();
        let (index, stores, _) = rig.service.cache().books();
        // The blocks cannot be dropped while this is locked.
        let key = index.keys(stores, |_| true)[0];
        let locked = index.lock(key);
        let (control, request) = (rig.control.clone(), drops.clone());
        let dropping = std::thread::spawn(move || send_request(&control, &request).is_ok());
        let error = loop {
            if let Err(error) = answered(&rig.control, &refused, &drops) {
                break error;
            }
        };
        assert!(error.contains(why), "{error}");
        answered(&rig.control, &set_vm("other"), &drops).unwrap();
        drop(locked);
        assert!(dropping.join().unwrap(), "{drops:?}");
        let held: u64 = rig.held().iter().sum();
        assert_eq!(held, 0, "{drops:?}");
        rig.shut_down();
    }
}
