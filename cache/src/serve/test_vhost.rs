//! Disks over vhost-user, as the configuration and requests have them.

use super::*;
use crate::testing::front_end::{BlkRequest, FrontEnd, FrontEndOptions, kind};
use serde_json::json;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

fn configuration(directory: &Path) -> Config {
    let image = directory.join("image");
    std::fs::write(&image, vec![3; 1 << 20]).unwrap();
    let text = format!(
        "control = {:?}\n[[vm]]\nname = \"vm\"\n[[vm.pool]]\nname = \"web\"\ntag = 5\n[[vm.disk]]\nname = \"disk\"\nimage = {image:?}\nvhost = {:?}\n",
        directory.join("control"),
        directory.join("vhost"),
    );
    Config::parse(Path::new("cache.toml"), &text).unwrap()
}

fn read(front_end: &mut FrontEnd, sector: u64, tag: u32) -> u8 {
    let request = BlkRequest::new(kind::IN, sector, 4096).tagged(tag);
    front_end.queues[0].execute(request, &[]).unwrap().status
}

#[test]
fn a_disk_that_grows_is_told_to_its_guest() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&configuration(dir.path())).unwrap();
    let socket = dir.path().join("vhost");
    let mut front_end = FrontEnd::connect(&socket, FrontEndOptions::default()).unwrap();
    assert_eq!(service.stats().vhost_front_ends, 1);
    let control = dir.path().join("control");
    let rescan = |disk: &str| {
        let request = ControlRequest::RescanDisk { disk: disk.into() };
        send_request(&control, &request).map_err(|e| e.to_string())
    };
    assert!(rescan("x").unwrap_err().contains("there are: disk"));
    assert_eq!(read(&mut front_end, 2048, 0), 1, "beyond the end");
    let image = std::fs::File::options()
        .write(true)
        .open(dir.path().join("image"))
        .unwrap();
    image.set_len(2 << 20).unwrap();
    rescan("disk").unwrap();
    let mut message = [0; 12];
    let channel = front_end.channel.as_mut().unwrap();
    channel
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    channel.read_exact(&mut message).unwrap();
    // VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, version 1, without a body.
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(front_end.config(0, 8).unwrap(), 4096u64.to_le_bytes());
    assert_eq!(read(&mut front_end, 2048, 0), 0);
    // What was cached beyond a new end is gone, and comes back as the image has it then.
    image.set_len(1 << 20).unwrap();
    rescan("disk").unwrap();
    assert_eq!(read(&mut front_end, 2048, 0), 1);
    drop(front_end);
    service.shut_down(Duration::from_secs(5)).unwrap();
    assert!(!socket.exists());
}

#[test]
fn a_disk_that_is_made_larger_is_told_to_its_guest() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&configuration(dir.path())).unwrap();
    let socket = dir.path().join("vhost");
    let mut front_end = FrontEnd::connect(&socket, FrontEndOptions::default()).unwrap();
    let grow = |size| {
        let (disk, size) = ("disk".to_owned(), Size(size));
        send_request(
            &dir.path().join("control"),
            &ControlRequest::GrowDisk { disk, size },
        )
    };
    assert_eq!(read(&mut front_end, 2048, 0), 1, "beyond the end");
    assert!(grow(1 << 19).is_err());
    // A size that it has is no change.
    for size in [1 << 20, 2 << 20] {
        grow(size).unwrap();
    }
    let channel = front_end.channel.as_mut().unwrap();
    let timeout = Some(Duration::from_secs(20));
    channel.set_read_timeout(timeout).unwrap();
    let mut message = [0; 12];
    channel.read_exact(&mut message).unwrap();
    // VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, version 1, without a body.
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    channel.set_nonblocking(true).unwrap();
    assert!(channel.read(&mut message).is_err(), "it is told once");
    assert_eq!(front_end.config(0, 8).unwrap(), 4096u64.to_le_bytes());
    assert_eq!(read(&mut front_end, 2048, 0), 0);
    drop(front_end);
    service.shut_down(Duration::from_secs(5)).unwrap();
}

/// The port finds a disk by the serial that its guest sees.
#[test]
fn a_guest_sees_the_serial_of_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = configuration(dir.path());
    for (serial, seen) in [(Some("root"), "root"), (None, "disk")] {
        config.vms[0].disks[0].serial = serial.and_then(justitia_guest_protocol::puts::Serial::new);
        let service = Service::start(&config).unwrap();
        let socket = dir.path().join("vhost");
        let mut front_end = FrontEnd::connect(&socket, FrontEndOptions::default()).unwrap();
        let queue = &mut front_end.queues[0];
        let request = BlkRequest::new(kind::GET_ID, 0, 20);
        let answer = queue.execute(request, &[]).unwrap();
        let mut found = [0; 20];
        queue.read_data(answer.slot, &mut found).unwrap();
        assert_eq!(String::from_utf8_lossy(&found).trim_end_matches('\0'), seen);
        drop(front_end);
        service.shut_down(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn a_pool_has_the_tag_of_its_container() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&configuration(dir.path())).unwrap();
    let socket = dir.path().join("vhost");
    let mut front_end = FrontEnd::connect(&socket, FrontEndOptions::default()).unwrap();
    let control = dir.path().join("control");
    let set = |tag: u16| {
        let request = json!({ "command": "set-pool", "vm": "vm", "pool": "web", "tag": tag });
        let request = serde_json::from_value(request).unwrap();
        send_request(&control, &request).map_err(|e| e.to_string())
    };
    let held = || {
        let pools = &service.stats().cache.vms[0].pools;
        pools
            .iter()
            .map(|p| p.memory_bytes / 4096)
            .collect::<Vec<_>>()
    };
    assert_eq!(read(&mut front_end, 0, 5), 0);
    assert_eq!(held(), [0, 1]);
    set(6).unwrap();
    assert_eq!(read(&mut front_end, 8, 5), 0);
    assert_eq!(read(&mut front_end, 16, 6), 0);
    assert_eq!(held(), [1, 2]);
    assert_eq!(service.stats().exports[0].unknown_tags, 1);
    assert!(set(1024).unwrap_err().contains("from 1 to 1023"));
    let pool = "web".into();
    let vm = "vm".into();
    send_request(&control, &ControlRequest::DestroyPool { vm, pool }).unwrap();
    assert_eq!(read(&mut front_end, 24, 6), 0);
    assert_eq!(held(), [2]);
}

#[test]
fn tags_are_checked_and_a_disk_needs_a_way_to_it() {
    let errors = |text: &str| {
        let found = Config::parse(Path::new("c"), text).unwrap_err();
        found[0].to_string()
    };
    let pools = "[listen]\nunix = \"/run/x\"\n[[vm]]\nname = \"a\"\n[[vm.pool]]\nname = \"p\"\ntag = 1\n[[vm.pool]]\nname = \"q\"\ntag = ";
    assert_eq!(
        errors(&format!("{pools}1\n")),
        "c:10: vm.pool.tag: expected every tag of a VM once, found 1 again"
    );
    assert_eq!(
        errors(&format!("{pools}1024\n")),
        "c:10: vm.pool.tag: expected a tag from 1 to 1023, found 1024"
    );
    let unserved = "[[vm]]\nname = \"a\"\n[[vm.disk]]\nname = \"d\"\nimage = \"i\"\n";
    assert!(errors(unserved).contains("`vhost` for each of its disks"));
    let served = format!("{unserved}vhost = \"/run/v\"\n");
    assert!(Config::parse(Path::new("c"), &served).is_ok());
}
