//! Requests that migrate blocks, replace the SSD store, and take disks and VMs out of the cache.

use super::*;
use crate::nbd::test::client::Client;
use std::path::Path;

/// What the pools of the first VM hold in memory, bytes.
fn held(control: &Path) -> Vec<u64> {
    let stats = send_request(control, &ControlRequest::Stats).unwrap();
    let pools = stats["cache"]["vms"][0]["pools"].as_array().unwrap();
    let bytes = pools.iter().map(|p| p["memory_bytes"].as_u64().unwrap());
    bytes.collect()
}

#[test]
fn blocks_disks_vms_and_the_ssd_store_are_changed_by_requests() {
    const BLOCK: u64 = 4096;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, [7; 65_536]).unwrap();
    let mut config = Config::of_image(&image, "vm", &dir.path().join("nbd"));
    let control = dir.path().join("control");
    config.control = Some(control.clone());
    let service = Service::start(&config).unwrap();
    let request = |request: &ControlRequest| {
        let response = send_request(&control, request);
        response.map(drop).map_err(|e| e.to_string())
    };
    let refused = |r: &ControlRequest, why: &str| {
        let error = request(r).unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    let mut client = Client::new(&dir.path().join("nbd"), "vm", false);
    let mut read = || assert_eq!(client.read(0, 65_536).data, [7; 65_536]);

    // Blocks are migrated: first those that lie inside a range as a whole, then all.
    let spec = ControlRequest::SetPool {
        vm: "vm".into(),
        pool: "web".into(),
        weight: None,
        store: None,
        create: true,
    };
    request(&spec).unwrap();
    read();
    assert_eq!(held(&control), [16 * BLOCK, 0]);
    let migrate =
        |disk: &str, pool: &str, offset, length: Option<u64>| ControlRequest::MigrateDisk {
            disk: disk.into(),
            pool: pool.into(),
            offset: Size(offset),
            length: length.map(Size),
        };
    request(&migrate("vm", "web", BLOCK - 1, Some(9 * BLOCK))).unwrap();
    assert_eq!(held(&control), [8 * BLOCK, 8 * BLOCK]);
    request(&migrate("vm", "web", 0, None)).unwrap();
    assert_eq!(held(&control), [0, 16 * BLOCK]);
    refused(&migrate("x", "web", 0, None), "there are: vm");
    refused(&migrate("vm", "x", 0, None), "there are: default, web");

    // There is an SSD store, and then there is none.
    let path = dir.path().join("ssd");
    let size = Size(4 << 20);
    request(&ControlRequest::ReplaceSsd {
        path: path.clone(),
        size,
    })
    .unwrap();
    let stores =
        || send_request(&control, &ControlRequest::Stats).unwrap()["cache"]["stores"].clone();
    assert_eq!(stores()[1]["capacity_bytes"], size.0);
    assert!(path.exists());
    request(&ControlRequest::RemoveSsd).unwrap();
    assert_eq!(stores().as_array().unwrap().len(), 1);
    assert!(!path.exists());

    // The disk, and then the VM, are served uncached.
    let uncache_disk = ControlRequest::UncacheDisk { disk: "vm".into() };
    request(&uncache_disk).unwrap();
    read();
    assert_eq!(held(&control), [0, 0]);
    refused(&uncache_disk, "expected the name of a disk that is cached");
    let uncache_vm = ControlRequest::UncacheVm { vm: "vm".into() };
    request(&uncache_vm).unwrap();
    read();
    let stats = send_request(&control, &ControlRequest::Stats).unwrap();
    assert_eq!(stats["cache"]["vms"].as_array().unwrap().len(), 0);
    refused(&uncache_vm, "expected the name of a VM that is served");
    service
        .shut_down(std::time::Duration::from_secs(5))
        .unwrap();
}
