//! Changes by requests: over an exec, and after a reload.

use super::test_clients::execute;
use super::test_warm::{BLOCKS, Rig, TIMEOUT, memory_survives};
use super::*;
use crate::block::BLOCK_BYTES;
use crate::block_dev::BlockDevice;
use crate::config::{Policy, PoolSpec, StoreKind};
use crate::frontend::Backend;
use justitia_share::Weight;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn send(service: &Service, request: Value) {
    let request = serde_json::from_value(request).unwrap();
    service.daemon().answer(&request).unwrap();
}

/// The running configuration.
fn running(service: &Service) -> Config {
    let daemon = service.daemon();
    daemon.running(&daemon.served.lock()).config
}

fn weight(of: u64) -> Weight {
    Weight::try_from(of).unwrap()
}

/// Reads all blocks of a disk; how many of them the cache had.
fn hits(service: &Service, disk: &str) -> u64 {
    let volumes = service.volumes();
    let volume = volumes.iter().find(|volume| volume.name() == disk).unwrap();
    let Backend::Cached(disk) = volume.backend() else {
        return 0;
    };
    let hit = |block| {
        let held = disk.holds(block);
        disk.read_at(&mut [0; 4096], block * BLOCK_BYTES).unwrap();
        u64::from(held)
    };
    (0..disk.size() / BLOCK_BYTES).map(hit).sum()
}

#[test]
fn what_requests_have_set_is_so_after_an_exec() {
    let rig = Rig::new(256, None);
    let mut service = rig.start(Vec::new());
    let path = |name: &str| rig.dir.path().join(name);
    for name in ["second", "third"] {
        std::fs::write(path(name), vec![7; 1 << 20]).unwrap();
    }
    let disk = |name: &str| json!({ "name": name, "image": path(name) });
    for request in [
        json!({ "command": "set-store", "store": "memory", "size": 2 * BLOCKS * BLOCK_BYTES }),
        json!({ "command": "replace-ssd", "path": path("ssd"), "size": 32 * MIB }),
        json!({ "command": "set-store", "store": "ssd", "size": 64 * MIB }),
        json!({ "command": "set-vm", "vm": "vm", "weight": 7, "policy": "sieve" }),
        json!({ "command": "set-pool", "vm": "vm", "pool": "default", "memory_weight": 3, "ssd_weight": 4 }),
        json!({ "command": "set-pool", "vm": "vm", "pool": "db", "weight": 5, "store": "ssd", "tag": 9, "create": true }),
        json!({ "command": "add-disk", "vm": "vm", "disk": disk("second") }),
        json!({ "command": "add-vm", "vm": { "name": "other", "weight": 8, "socket": path("s") } }),
        json!({ "command": "add-disk", "vm": "other", "disk": disk("third") }),
        json!({ "command": "uncache-disk", "disk": "second" }),
    ] {
        send(&service, request);
    }
    for name in ["vm", "third"] {
        assert_eq!(hits(&service, name), 0);
    }
    let to_ssd =
        json!({ "command": "migrate-disk", "disk": "vm", "pool": "db", "length": 4 * MIB });
    send(&service, to_ssd);
    let expected = running(&service);
    let of_vm = &expected.vms[0];
    assert_eq!((of_vm.weight, of_vm.policy), (weight(7), Policy::Sieve));
    assert_eq!(of_vm.pools.len(), 2);
    assert_eq!(of_vm.pools[1].spec, PoolSpec::of(StoreKind::Ssd, weight(5)));
    assert_eq!(of_vm.pools[1].tag.unwrap().get(), 9);
    assert_eq!(of_vm.disks[1].mode, None);
    assert_eq!(expected.vms[1].disks[0].name, "third");
    for _ in 0..2 {
        service = execute(service, &rig.config);
        assert_eq!(running(&service), expected);
        assert_eq!(hits(&service, "second"), 0);
        assert_eq!(service.stats().cache.stores[1].failed, None);
        let of_disk = if memory_survives() { BLOCKS } else { 1024 };
        let found = hits(&service, "vm");
        assert!((of_disk - 64..=of_disk).contains(&found), "{found}");
        if memory_survives() {
            assert_eq!(hits(&service, "third"), 256);
        }
        service.cache().audit();
    }
    // Values that the file has changed since then apply; all others stay.
    let mut file = rig.config.clone();
    file.vms[0].weight = weight(50);
    file.cache.memory_bytes = 128 * MIB;
    service = execute(service, &file);
    let mut next = expected;
    next.vms[0].weight = weight(50);
    next.cache.memory_bytes = 128 * MIB;
    assert_eq!(running(&service), next);
    // Nor does a restart keep it.
    let (left, _) = service.hand_over(TIMEOUT);
    let service = Service::start_from(&file, left).unwrap();
    assert_eq!(running(&service), file);
}

#[test]
fn an_ssd_store_of_no_size_is_refused_and_the_one_that_there_is_stays() {
    let rig = Rig::new(256, Some(4096));
    let service = rig.start(Vec::new());
    let before = running(&service);
    for request in [
        json!({ "command": "set-store", "store": "ssd", "size": 0 }),
        json!({ "command": "replace-ssd", "path": rig.dir.path().join("other"), "size": 0 }),
    ] {
        let request = serde_json::from_value(request).unwrap();
        let why = service.daemon().answer(&request).unwrap_err().to_string();
        assert!(why.contains("expected a size above 0"), "{why}");
        assert_eq!(running(&service), before);
        let stores = service.stats().cache.stores;
        assert_eq!(stores[1].capacity_bytes, 4096 * BLOCK_BYTES);
    }
    // Memory may have none: then nothing is held there.
    send(
        &service,
        json!({ "command": "set-store", "store": "memory", "size": 0 }),
    );
    let text = "[ssd]\npath = \"/s\"\nsize = 0\n";
    let found = Config::parse(std::path::Path::new("c"), text).unwrap_err();
    assert!(
        found[0]
            .to_string()
            .starts_with("c:3: ssd.size: expected a size above 0")
    );
    service.shut_down(TIMEOUT).unwrap();
}

#[test]
fn what_does_not_fit_the_configuration_any_more_is_lost_alone() {
    let rig = Rig::new(256, None);
    let service = rig.start(Vec::new());
    let image = rig.dir.path().join("second");
    std::fs::write(&image, vec![7; 1 << 20]).unwrap();
    let disk = json!({ "name": "second", "image": image });
    send(
        &service,
        json!({ "command": "add-disk", "vm": "vm", "disk": disk }),
    );
    // The file has the image by another name.
    let mut file = rig.config.clone();
    let renamed = DiskConfig {
        name: "renamed".into(),
        image,
        ..file.vms[0].disks[0].clone()
    };
    file.vms[0].disks.push(renamed);
    let service = execute(service, &file);
    assert_eq!(running(&service), file);
}

#[test]
fn a_reload_with_a_size_that_cannot_be_had_changes_nothing() {
    let rig = Rig::new(256, Some(4096));
    let service = rig.start(Vec::new());
    let before = running(&service);
    let mut file = rig.config.clone();
    file.vms[0].weight = weight(40);
    file.vms[0].disks.clear();
    file.cache.memory_bytes = 2 * MIB;
    file.cache.ssd.as_mut().unwrap().bytes = 1 << 40;
    assert!(service.reload(&file).is_err());
    assert_eq!(running(&service), before);
    assert_eq!(service.stats().cache.stores[0].capacity_bytes, MIB);
    file.cache.ssd = before.cache.ssd;
    assert_eq!(service.reload(&file).unwrap().removed, ["vm"]);
    service.shut_down(TIMEOUT).unwrap();
}

#[test]
fn a_reload_changes_weights_and_sizes_and_keeps_what_requests_have_set() {
    let rig = Rig::new(256, Some(4096));
    let mut file = rig.config.clone();
    file.cache.memory_limit = Some(64 * MIB);
    let pool = |name: &str| PoolConfig {
        name: name.into(),
        ..PoolConfig::default()
    };
    file.vms[0].pools.extend(["a", "b"].map(pool));
    let service = Service::start(&file).unwrap();
    send(
        &service,
        json!({ "command": "set-vm", "vm": "vm", "policy": "fifo" }),
    );
    send(
        &service,
        json!({ "command": "set-pool", "vm": "vm", "pool": "a", "weight": 30 }),
    );
    send(
        &service,
        json!({ "command": "destroy-pool", "vm": "vm", "pool": "b" }),
    );
    file.vms[0].weight = weight(40);
    file.vms[0].pools[0] = pool("new");
    file.cache.memory_bytes = 3 * MIB;
    file.cache.ssd.as_mut().unwrap().bytes = 32 * MIB;
    file.vms[0].socket = Some(rig.dir.path().join("later"));
    let changed = service.reload(&file).unwrap().changed;
    let expected = [
        "memory: 3.0 MiB",
        "SSD: 32.0 MiB",
        "VM \"vm\": weight 40",
        "VM \"vm\": pool \"default\"",
        "VM \"vm\": pool \"new\"",
    ];
    assert_eq!(changed, expected);
    let now = running(&service);
    // The socket needs a restart.
    assert_eq!(
        (&now.vms[0].socket, now.vms[0].policy),
        (&None, Policy::Fifo)
    );
    let mut pools: Vec<_> = now.vms[0]
        .pools
        .iter()
        .map(|pool| pool.name.as_str())
        .collect();
    pools.sort_unstable();
    assert_eq!(pools, ["a", "new"]);
    let stores = service.stats().cache.stores;
    assert_eq!(stores[0].capacity_bytes, 3 * MIB);
    assert_eq!(stores[1].capacity_bytes, 32 * MIB);
    // Once more: nothing is new, and what a restart would change is no change now.
    assert_eq!(service.reload(&file).unwrap(), Reloaded::default());
    // An exec is one.
    let service = execute(service, &file);
    let now = &running(&service).vms[0];
    assert_eq!(
        (&now.socket, now.policy),
        (&file.vms[0].socket, Policy::Fifo)
    );
    service.shut_down(TIMEOUT).unwrap();
}
