//! VMs and disks that are added by requests: with the same checks as at the start, all of it or nothing.

use super::test::{configured, port};
use super::*;
use crate::config::{Mode, SsdConfig};
use crate::nbd::test::client::Client;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A service with the VM `vm` of the disk `vm`, on the socket `nbd`.
struct Rig {
    dir: tempfile::TempDir,
    control: PathBuf,
    config: Config,
    service: Service,
}

impl Rig {
    fn new(change: impl Fn(&Path, &mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mut config, control) = configured(dir.path(), &[7; 8192]);
        std::fs::write(dir.path().join("more"), [8; 8192]).unwrap();
        change(dir.path(), &mut config);
        let service = Service::start(&config).unwrap();
        Self {
            dir,
            control,
            config,
            service,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn send(&self, request: &ControlRequest) -> Result<(), String> {
        let answer = send_request(&self.control, request);
        answer.map(drop).map_err(|e| e.to_string())
    }

    fn add_disk(&self, vm: &str, disk: &Value) -> Result<(), String> {
        self.send(&ControlRequest::AddDisk {
            vm: vm.into(),
            disk: disk.as_object().unwrap().clone(),
        })
    }

    fn add_vm(&self, vm: &Value) -> Result<(), String> {
        self.send(&ControlRequest::AddVm {
            vm: vm.as_object().unwrap().clone(),
        })
    }

    /// The names of the VMs in the cache, and of the disks that are served.
    fn names(&self) -> (Vec<String>, Vec<String>) {
        let stats = self.service.stats();
        let vms = stats.cache.vms.into_iter().map(|vm| vm.name).collect();
        (vms, stats.exports.into_iter().map(|e| e.name).collect())
    }

    fn shut_down(self) {
        self.service.shut_down(Duration::from_secs(5)).unwrap();
    }
}

/// Disks that the configuration would not take as ones of the VM `vm`, and why.
fn wrong_disks(rig: &Rig) -> Vec<(Value, &'static str)> {
    let more = rig.path("more");
    let long = "x".repeat(256);
    let named = |name: &str| json!({ "name": name, "image": more });
    let image = |name: &str| json!({ "name": "new", "image": rig.path(name) });
    vec![
        (named("vm"), "which exists"),
        (named(""), "expected a disk name of"),
        (named("a/b"), "expected a disk name of"),
        (named("../../etc"), "expected a disk name of"),
        (named("a\n\u{1b}[2J"), "expected a disk name of"),
        (named("a\0b"), "expected a disk name of"),
        (named(&long), "expected a disk name of"),
        (image("image"), "which are the same"),
        (image("link"), "which are the same"),
        (image("ssd"), "the SSD store"),
        (image("nbd"), "which are the same"),
        (image("control"), "which are the same"),
        (image("qcow2"), "looks like qcow2"),
        (image("missing"), "cannot open image"),
        (image("."), "expected a regular file or a block device"),
        (json!({ "name": "new" }), "expected the key `image`"),
        (
            json!({ "name": "new", "image": 3 }),
            "expected a path, found 3",
        ),
        (
            json!({ "name": "new", "image": more, "x": 1 }),
            "found the unknown key `x`",
        ),
        (json!({ "name": "new", "image": null }), ""),
        (
            json!({ "name": "new", "image": more, "serial": "\u{7}" }),
            "expected a serial of",
        ),
        (
            json!({ "name": "new", "image": more, "vhost": rig.path("nbd") }),
            "which are the same",
        ),
        (
            json!({ "name": "new", "image": more, "vhost": rig.path("qcow2") }),
            "expected a socket or nothing",
        ),
        (
            json!({ "name": "new", "image": more, "vhost": rig.path("missing/x") }),
            "cannot listen on",
        ),
    ]
}

/// VMs that it would not take.
fn wrong_vms(rig: &Rig) -> Vec<(Value, &'static str)> {
    let named = |name: &str| json!({ "name": name, "image": rig.path("more") });
    let missing = json!({ "name": "new", "image": rig.path("missing") });
    vec![
        (json!({ "name": "vm" }), "which exists"),
        (json!({ "name": "vm", "weight": 0 }), "which exists"),
        (json!({ "name": "a/b" }), "expected a VM name of"),
        (json!({ "name": "x", "weight": 0 }), "expected a weight"),
        (json!({ "name": "x", "policy": "lru" }), "found `lru`"),
        (
            json!({ "name": "x", "disk": [named("vm")] }),
            "which exists",
        ),
        (
            json!({ "name": "x", "disk": [named("y"), named("z")] }),
            "which are the same",
        ),
        (
            json!({ "name": "x", "disk": [named("y"), missing] }),
            "cannot open image",
        ),
        (
            json!({ "name": "x", "socket": rig.path("qcow2"), "disk": [named("y")] }),
            "expected a socket",
        ),
    ]
}

#[test]
fn a_request_that_the_configuration_would_not_take_changes_nothing() {
    let rig = Rig::new(|dir, config| {
        config.cache.ssd = Some(SsdConfig::new(dir.join("ssd"), 4 << 20));
    });
    std::fs::write(rig.path("qcow2"), b"QFI\xfb and more").unwrap();
    std::os::unix::fs::symlink(rig.path("image"), rig.path("link")).unwrap();
    let before = rig.names();
    let named = |name: &str| json!({ "name": name, "image": rig.path("more") });
    for (disk, why) in wrong_disks(&rig) {
        let error = rig.add_disk("vm", &disk).expect_err(why);
        assert!(error.contains(why), "{disk}: {error}");
        assert_eq!(rig.names(), before, "{disk}");
    }
    let error = rig.add_disk("x", &named("new")).unwrap_err();
    assert!(error.contains("there are: vm"), "{error}");
    for (vm, why) in wrong_vms(&rig) {
        let error = rig.add_vm(&vm).expect_err(why);
        assert!(error.contains(why), "{vm}: {error}");
        assert_eq!(rig.names(), before, "{vm}");
    }
    // After all of that, a valid put is accepted.
    rig.add_disk("vm", &named("new")).unwrap();
    let mut client = Client::new(&rig.path("nbd"), "new", false);
    assert_eq!(client.read(0, 8192).data, [8; 8192]);
    rig.shut_down();
}

#[test]
fn a_reload_keeps_what_requests_have_added_and_takes_it_for_its_own() {
    let rig = Rig::new(|_, _| {});
    let mut file = rig.config.clone();
    let more = rig.path("more");
    rig.add_disk("vm", &json!({ "name": "more", "image": more }))
        .unwrap();
    rig.add_vm(&json!({ "name": "other" })).unwrap();
    assert_eq!(rig.service.reload(&file).unwrap(), Reloaded::default());
    let both = (
        vec!["vm".to_owned(), "other".to_owned()],
        vec!["vm".to_owned(), "more".to_owned()],
    );
    assert_eq!(rig.names(), both);
    // The file names the disk now, and then no more.
    let of_file = DiskConfig {
        name: "more".into(),
        image: more,
        serial: justitia_guest_protocol::puts::Serial::new("more"),
        ..file.vms[0].disks[0].clone()
    };
    file.vms[0].disks.push(of_file);
    assert_eq!(rig.service.reload(&file).unwrap(), Reloaded::default());
    file.vms[0].disks.pop();
    let reloaded = rig.service.reload(&file).unwrap();
    assert_eq!(reloaded.removed, ["more"]);
    // What a request has removed, and the file names, is served again.
    let disk = "vm".to_owned();
    rig.send(&ControlRequest::RemoveDisk { disk }).unwrap();
    assert!(rig.names().1.is_empty());
    assert_eq!(rig.service.reload(&file).unwrap().added, ["vm"]);
    // A VM that is gone takes what was added to it along.
    let image = rig.path("more");
    rig.add_disk("other", &json!({ "name": "more", "image": image }))
        .unwrap();
    let vm = "other".to_owned();
    rig.send(&ControlRequest::RemoveVm { vm }).unwrap();
    assert_eq!(rig.names(), (vec!["vm".to_owned()], vec!["vm".to_owned()]));
    assert_eq!(rig.service.reload(&file).unwrap(), Reloaded::default());
    rig.shut_down();
}

#[test]
fn an_ssd_store_takes_no_image_that_was_added_and_the_place_of_one_that_was_removed() {
    let rig = Rig::new(|_, _| {});
    let more = rig.path("more");
    rig.add_disk("vm", &json!({ "name": "more", "image": more }))
        .unwrap();
    let ssd = |path: &str| {
        rig.send(&ControlRequest::ReplaceSsd {
            path: rig.path(path),
            size: Size(4 << 20),
            overwrite: true,
        })
    };
    assert!(ssd("more").unwrap_err().contains("which are the same"));
    let disk = "more".to_owned();
    rig.send(&ControlRequest::RemoveDisk { disk }).unwrap();
    ssd("ssd").unwrap();
    let of_ssd = json!({ "name": "more", "image": rig.path("ssd") });
    assert!(
        rig.add_disk("vm", &of_ssd)
            .unwrap_err()
            .contains("the SSD store")
    );
    rig.send(&ControlRequest::RemoveSsd).unwrap();
    std::fs::write(rig.path("ssd"), [1; 4096]).unwrap();
    rig.add_disk("vm", &of_ssd).unwrap();
    rig.shut_down();
}

/// A VM with a port: the guest puts pages of a disk that was removed and added again, and of one that is new.
#[test]
fn a_disk_that_comes_back_is_known_to_the_port() {
    use justitia_guest_protocol::puts::{Area, PAGE, PORT_SIZE, PutWriter, Serial};
    let rig = Rig::new(|_, config| {
        let vm = &mut config.vms[0];
        vm.disks[0].mode = Some(Mode::Exclusive);
        vm.port = Some(port("vm/port"));
    });
    let socket = rig.path("nbd");
    let mut port = Client::new(&socket, "vm/port", false);
    let mut put_to = |disk, sequence| {
        let serial = Serial::new(disk).unwrap();
        let mut buffer = vec![0; PORT_SIZE];
        let mut writer = PutWriter::new(&mut buffer, sequence, 0, serial).unwrap();
        assert!(writer.push(0, &[7; PAGE]));
        assert_eq!(port.write(0, 0, writer.finish()).error, 0);
        let read = port.read(0, u32::try_from(PAGE).unwrap());
        Area::new(&read.data)
            .unwrap()
            .answer(sequence)
            .unwrap()
            .accepted
    };
    let mut put = |sequence| put_to("vm", sequence);
    assert_eq!(
        Client::new(&socket, "vm", false).read(0, 4096).data,
        [7; 4096]
    );
    assert_eq!(put(1), 1);
    let disk = "vm".to_owned();
    rig.send(&ControlRequest::RemoveDisk { disk }).unwrap();
    assert_eq!(put(2), 0);
    let image = rig.path("image");
    let exclusive = json!({ "name": "vm", "image": image, "mode": "exclusive" });
    rig.add_disk("vm", &exclusive).unwrap();
    // A hash of the earlier disk does not validate a put to the later one.
    assert_eq!(put(3), 0);
    assert_eq!(
        Client::new(&socket, "vm", false).read(0, 4096).data,
        [7; 4096]
    );
    assert_eq!(put(4), 1);
    // The serial is taken.
    let same = json!({ "name": "x", "image": rig.path("more"), "serial": "vm" });
    let error = rig.add_disk("vm", &same).unwrap_err();
    assert!(
        error.contains("expected a serial that no other disk"),
        "{error}"
    );
    // A disk that the VM did not have when its port was made.
    std::fs::write(rig.path("more"), [7; 8192]).unwrap();
    let new = json!({ "name": "x", "image": rig.path("more"), "mode": "exclusive" });
    rig.add_disk("vm", &new).unwrap();
    assert_eq!(put_to("x", 5), 0);
    assert_eq!(
        Client::new(&socket, "x", false).read(0, 4096).data,
        [7; 4096]
    );
    assert_eq!(put_to("x", 6), 1);
    rig.shut_down();
}
