//! Disks that grow, go and come while clients use them.

use super::fio_verify::verify;
use super::*;
use justitia_cache::serve::{ControlError, Size, send_request};
use std::io::Write;

impl Rig {
    fn change(&self, request: &ControlRequest) -> Result<(), ControlError> {
        send_request(&self.path("control"), request).map(drop)
    }

    fn grow(&self, size: u64) -> Result<(), ControlError> {
        let (disk, size) = ("disk".to_owned(), Size(size));
        self.change(&ControlRequest::GrowDisk { disk, size })
    }

    fn remove(&self) {
        let disk = "disk".to_owned();
        self.change(&ControlRequest::RemoveDisk { disk }).unwrap();
    }

    fn add(&self, image: &str) {
        let (name, image) = ("disk".into(), self.text(image).into());
        let disk = [("name".to_owned(), name), ("image".to_owned(), image)];
        let (vm, disk) = ("vm".to_owned(), disk.into_iter().collect());
        self.change(&ControlRequest::AddDisk { vm, disk }).unwrap();
    }
}

#[test]
fn a_client_that_connects_again_has_the_new_size() {
    let mut rig = Rig::new(8 * MIB, 4 * MIB, "");
    qemu_io(&rig.uri(), &["write -P 5 7M 1M", "flush"]);
    // One that stays connected meanwhile.
    let mut old = Command::new("qemu-io")
        .args(["-f", "raw", &rig.uri()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut commands = old.stdin.take().unwrap();
    let mut told = old.stdout.take().unwrap();
    commands.write_all(b"length\n").unwrap();
    let mut first = Vec::new();
    while !String::from_utf8_lossy(&first).contains("8 MiB") {
        let mut byte = [0];
        told.read_exact(&mut byte).unwrap();
        first.push(byte[0]);
    }
    assert!(rig.grow(4 * MIB).is_err());
    assert!(rig.grow(16 * MIB + 1).is_err());
    rig.grow(16 * MIB).unwrap();
    commands.write_all(b"length\nread -P 5 7M 1M\n").unwrap();
    drop(commands);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("8 MiB") && rest.contains("read 1048576/1048576"),
        "{rest}"
    );
    assert!(old.wait().unwrap().success());
    assert!(tool("nbdinfo", &["--size", &rig.uri()]).starts_with("16777216"));
    let read = "read -P 0 8M 8M";
    qemu_io(
        &rig.uri(),
        &[read, "read -P 5 7M 1M", "write -P 9 15M 1M", "flush"],
    );
    qemu_io(&rig.uri(), &["read -P 9 15M 1M", "read -P 0 8M 7M"]);
    rig.stop();
    let image = std::fs::read(rig.path("image")).unwrap();
    assert_eq!(image.len(), 16 << 20);
    assert!(image[15 << 20..].iter().all(|byte| *byte == 9));
}

#[test]
fn qemu_finds_the_disk_that_is_served_under_a_name_now() {
    let rig = Rig::new(8 * MIB, 4 * MIB, "");
    std::fs::write(rig.path("other"), vec![4; 2 << 20]).unwrap();
    qemu_io(&rig.uri(), &["write -P 5 0 2M", "read -P 5 0 2M"]);
    for _ in 0..3 {
        rig.remove();
        assert!(!output("nbdinfo", &["--size", &rig.uri()]).status.success());
        let list = format!("nbd+unix:///?socket={}", rig.text("nbd"));
        assert!(!tool("nbdinfo", &["--list", &list]).contains("export="));
        // The lock is QEMU's own: it may write the image now.
        qemu_io(&rig.text("image"), &["read -P 5 0 2M", "write -P 5 0 1M"]);
        rig.add("other");
        qemu_io(&rig.uri(), &["read -P 4 0 2M", "read -P 4 0 2M"]);
        rig.remove();
        rig.add("image");
        qemu_io(&rig.uri(), &["read -P 5 0 2M", "read -P 5 0 2M"]);
        let locked = output(
            "qemu-io",
            &["-f", "raw", "-c", "read 0 1M", &rig.text("image")],
        );
        assert!(!locked.status.success(), "it is locked again");
    }
}

/// A loop device over a file; nothing where this user can have none.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Option<Self> {
        Self::with_sectors("512", file)
    }

    fn with_sectors(bytes: &str, file: &Path) -> Option<Self> {
        let made = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", bytes])
            .arg(file)
            .output()
            .ok()?;
        let device = String::from_utf8(made.stdout).ok()?;
        (made.status.success()).then(|| Self(device.trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = output("losetup", &["-d", &self.0]);
    }
}

#[test]
fn a_block_device_that_was_made_larger_is_served_whole() {
    let rig = Rig::new(MIB, 4 * MIB, "");
    let behind = File::create_new(rig.path("behind")).unwrap();
    behind.set_len(8 * MIB).unwrap();
    let Some(device) = Loop::over(&rig.path("behind")) else {
        eprintln!("not tested: no loop device can be had here");
        return;
    };
    rig.remove();
    rig.add(&device.0);
    qemu_io(&rig.uri(), &["write -P 5 7M 1M", "read -P 5 7M 1M"]);
    let early = rig.grow(16 * MIB).unwrap_err().to_string();
    assert!(early.contains("make the device larger first"), "{early}");
    behind.set_len(16 * MIB).unwrap();
    tool("losetup", &["--set-capacity", &device.0]);
    rig.grow(16 * MIB).unwrap();
    assert!(tool("nbdinfo", &["--size", &rig.uri()]).starts_with("16777216"));
    let written = ["read -P 0 8M 8M", "read -P 5 7M 1M", "write -P 9 15M 1M"];
    qemu_io(&rig.uri(), &written);
    verify(&rig.uri(), 16);
    qemu_io(&rig.uri(), &["write -P 9 15M 1M", "flush"]);
    qemu_io(&rig.uri(), &["read -P 9 15M 1M"]);
    rig.remove();
    let image = std::fs::read(rig.path("behind")).unwrap();
    assert!(image[15 << 20..].iter().all(|byte| *byte == 9));
}

/// A file system that is mounted there.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = output("umount", &[&self.0]);
    }
}

/// Where a file has a hole, a direct read of any size succeeds: nothing of the disk's sectors shows in it.
#[test]
fn a_fresh_image_on_a_disk_of_4_kib_sectors_takes_small_writes() {
    let rig = Rig::new(MIB, 4 * MIB, "");
    let behind = File::create_new(rig.path("behind")).unwrap();
    behind.set_len(32 * MIB).unwrap();
    let Some(device) = Loop::with_sectors("4096", &rig.path("behind")) else {
        eprintln!("not tested: no loop device of such sectors can be had here");
        return;
    };
    tool("mkfs.ext4", &["-q", &device.0]);
    let place = rig.path("mounted");
    std::fs::create_dir(&place).unwrap();
    tool("mount", &[&device.0, &rig.text("mounted")]);
    let _mounted = Mounted(rig.text("mounted"));
    let fresh = File::create_new(place.join("fresh")).unwrap();
    fresh.set_len(8 * MIB).unwrap();
    rig.remove();
    rig.add("mounted/fresh");
    let written = ["write -P 5 1M 512", "write -P 6 1049088 512", "flush"];
    qemu_io(&rig.uri(), &written);
    rig.remove();
    let mut found = [0; 1024];
    fresh.read_exact_at(&mut found, MIB).unwrap();
    assert_eq!(found.to_vec(), [[5; 512], [6; 512]].concat());
}
