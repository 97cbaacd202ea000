//! A start and a reload serve all VMs and disks that can be served.

use super::test::port;
use super::test_clients::execute;
use super::*;
use crate::backing::{OpenOptions, RawImage};
use crate::config::{Mode, Policy};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The VMs of these names, each with a disk `disk-NAME` of the image `NAME`, and a socket of its own.
fn config(dir: &Path, listen: &str, vms: &[&str]) -> Config {
    let at = dir.display();
    let mut text = format!("control = \"{at}/ctl\"\n[listen]\nunix = \"{at}/s\"\n{listen}\n");
    for vm in vms {
        text += &format!(
            "[[vm]]\nname = \"{vm}\"\nsocket = \"{at}/{vm}.s\"\n[[vm.disk]]\nname = \"disk-{vm}\"\nimage = \"{at}/{vm}\"\n"
        );
    }
    Config::parse(Path::new("cache.toml"), &text).unwrap()
}

fn image(dir: &Path, name: &str) {
    std::fs::write(dir.join(name), [0; 8192]).unwrap();
}

/// The names of the disks that are served, and of those that are not.
fn disks(service: &Service) -> (Vec<String>, Vec<String>) {
    let stats = service.stats();
    let served = stats.exports.into_iter().map(|e| e.name).collect();
    (served, stats.unserved.into_iter().map(|u| u.name).collect())
}

#[test]
fn a_missing_image_costs_its_own_disk_and_comes_with_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (abc, none) = (config(dir, "", &["a", "b", "c"]), Vec::<String>::new());
    // Without any, nothing is served.
    let why = Service::start(&abc).err().map(|e| e.to_string());
    assert!(why.unwrap().contains("cannot open image"));
    image(dir, "a");
    image(dir, "c");
    let found = preflight(&abc);
    assert!(
        found.len() == 1 && found[0].starts_with("disk \"disk-b\": cannot open"),
        "{found:?}"
    );
    let service = Service::start(&abc).unwrap();
    let names = |of: &[&str]| of.iter().map(|n| format!("disk-{n}")).collect::<Vec<_>>();
    assert_eq!(disks(&service), (names(&["a", "c"]), names(&["b"])));
    assert_eq!(service.reload(&abc).unwrap(), Reloaded::default());
    image(dir, "b");
    assert_eq!(service.reload(&abc).unwrap(), changed(&["b"], &[]));
    assert_eq!(disks(&service), (names(&["a", "c", "b"]), none));
    assert!(preflight(&abc).is_empty());
    service.shut_down(Duration::from_secs(5)).unwrap();
}

/// A reload that has added and removed the disks of these VMs.
fn changed(added: &[&str], removed: &[&str]) -> Reloaded {
    let names = |of: &[&str]| of.iter().map(|vm| format!("disk-{vm}")).collect();
    Reloaded {
        added: names(added),
        removed: names(removed),
        changed: Vec::new(),
    }
}

fn assert_refused(service: &Service, config: &Config, why: &str) {
    let refused = service.reload(config).unwrap_err().to_string();
    assert!(refused.contains(why), "{refused}");
}

#[test]
fn a_reload_adds_vms_with_their_sockets_and_removes_what_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    image(dir, "a");
    image(dir, "b");
    let service = Service::start(&config(dir, "", &["a"])).unwrap();
    let mut both = config(dir, "", &["a", "b"]);
    // Two disks of one image are refused, and nothing is added.
    both.vms[1].disks[0].image = dir.join("a");
    assert_refused(&service, &both, "expected every file and device once");
    both.vms[1].disks[0].image = dir.join("b");
    assert_eq!(service.reload(&both).unwrap(), changed(&["b"], &[]));
    assert_eq!(service.reload(&both).unwrap(), Reloaded::default());
    for socket in ["a.s", "b.s", "s"] {
        UnixStream::connect(dir.join(socket)).unwrap();
    }
    // Gone from the configuration: served no more.
    let b = config(dir, "", &["b"]);
    assert_eq!(service.reload(&b).unwrap(), changed(&[], &["a"]));
    assert_eq!(disks(&service).0, ["disk-b"]);
    assert!(!dir.join("a.s").exists());
    let lone = RawImage::open(&dir.join("a"), OpenOptions::default());
    drop(lone.expect("the image is unlocked"));
    // A file that was emptied by mistake ends nothing.
    let empty = config(dir, "", &[]);
    assert_refused(&service, &empty, "expected at least one [[vm]]");
    // A disk with another name, of the same image.
    let mut renamed = config(dir, "", &["a"]);
    renamed.vms[0].disks[0].image = dir.join("b");
    assert_eq!(service.reload(&renamed).unwrap(), changed(&["a"], &["b"]));
    service.shut_down(Duration::from_secs(5)).unwrap();
    assert!(!dir.join("a.s").exists());
}

#[test]
fn a_reload_leaves_what_is_configured_otherwise_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for name in ["a", "b", "c"] {
        image(dir, name);
    }
    let service = Service::start(&config(dir, "", &["a", "b"])).unwrap();
    let mut other = config(dir, "", &["a", "b"]);
    other.vms[0].disks[0].image = dir.join("c");
    other.vms[0].socket = Some(dir.join("other.s"));
    assert_eq!(service.reload(&other).unwrap(), Reloaded::default());
    UnixStream::connect(dir.join("a.s")).unwrap();
    assert!(!dir.join("other.s").exists());
    // The running configuration is compared with the new one, not with the file.
    let mut third = config(dir, "", &["a", "b", "c"]);
    third.vms[0].disks[0].image = dir.join("somewhere else");
    third.vms[2].disks[0].image = dir.join("a");
    assert_refused(&service, &third, "expected every file and device once");
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_policy_that_follows_from_a_mode_waits_for_the_restart_as_the_mode_does() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    image(dir, "a");
    let service = Service::start(&config(dir, "", &["a"])).unwrap();
    let policy = |service: &Service| service.stats().cache.vms[0].policy;
    let mut other = config(dir, "", &["a"]);
    let vm = &mut other.vms[0];
    vm.disks[0].mode = Some(Mode::Exclusive);
    vm.policy = super::config::default_policy(&vm.disks);
    for _ in 0..2 {
        assert_eq!(service.reload(&other).unwrap(), Reloaded::default());
        assert_eq!(policy(&service), Policy::S3Fifo);
    }
    // One that the file names does not wait.
    let mut named = other.clone();
    named.vms[0].policy = Policy::Fifo;
    let changed = service.reload(&named).unwrap().changed;
    assert_eq!(changed, ["VM \"a\": policy fifo"]);
    let service = execute(service, &other);
    assert_eq!(policy(&service), Policy::Ghost);
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn what_cannot_be_added_changes_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for name in ["a", "b", "c", "d"] {
        image(dir, name);
    }
    let service = Service::start(&config(dir, "", &["a"])).unwrap();
    // The socket of VM b cannot be had, and the vhost socket of a second disk of c.
    std::fs::write(dir.join("b.s"), "something else").unwrap();
    std::fs::write(dir.join("v"), "something else").unwrap();
    let mut next = config(dir, "", &["a", "b", "c"]);
    let second = DiskConfig {
        name: "second".into(),
        image: dir.join("d"),
        vhost: Some(dir.join("v")),
        ..next.vms[2].disks[0].clone()
    };
    next.vms[2].disks.insert(0, second);
    assert_eq!(service.reload(&next).unwrap(), changed(&["c"], &[]));
    let (served, unserved) = disks(&service);
    assert_eq!(served, ["disk-a", "disk-c"]);
    assert_eq!(unserved, ["disk-b", "second"]);
    for image in ["b", "d"] {
        let lone = RawImage::open(&dir.join(image), OpenOptions::default());
        drop(lone.expect("the image is unlocked"));
    }
    let vms = service.stats().cache.vms;
    assert_eq!(vms.len(), 2, "nothing is left of it in the cache");
    // Once they can be had, the next reload has them.
    std::fs::remove_file(dir.join("b.s")).unwrap();
    std::fs::remove_file(dir.join("v")).unwrap();
    let mut added = service.reload(&next).unwrap().added;
    added.sort();
    assert_eq!(added, ["disk-b", "second"]);
    assert!(disks(&service).1.is_empty());
    service.shut_down(Duration::from_secs(5)).unwrap();
    let mut left: Vec<_> = dir
        .read_dir()
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["a", "b", "c", "d"], "the images alone");
}

#[test]
fn a_start_leaves_out_what_has_no_place_for_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for name in ["a", "b", "c", "d"] {
        image(dir, name);
    }
    let mut whole = config(dir, "", &["a", "b", "c"]);
    // The VM b has no place for its socket, and c none for that of a second disk.
    let later = dir.join("later");
    whole.vms[1].socket = Some(later.join("b.s"));
    whole.vms[1].port = Some(port("b/port"));
    let second = DiskConfig {
        name: "second".into(),
        image: dir.join("d"),
        vhost: Some(later.join("v")),
        ..whole.vms[2].disks[0].clone()
    };
    whole.vms[2].disks.push(second);
    let service = Service::start(&whole).unwrap();
    let (served, unserved) = disks(&service);
    assert_eq!(served, ["disk-a", "disk-c"]);
    assert_eq!(unserved, ["disk-b", "second"]);
    for image in ["b", "d"] {
        let lone = RawImage::open(&dir.join(image), OpenOptions::default());
        drop(lone.expect("the image is unlocked"));
    }
    // The port of b is listed with what its disk is.
    let why_not = |of: &str| {
        let mut listed = service.list().unwrap().into_iter();
        listed.find(|disk| disk.name == of).unwrap().unserved
    };
    assert!(why_not("disk-b").is_some_and(|why| why.contains("b.s")));
    assert_eq!(why_not("b/port"), why_not("disk-b"));
    std::fs::create_dir(&later).unwrap();
    let mut added = service.reload(&whole).unwrap().added;
    added.sort();
    assert_eq!(added, ["b/port", "disk-b", "second"]);
    assert_eq!(why_not("b/port"), None);
    service.shut_down(Duration::from_secs(5)).unwrap();
    // Where nothing is left, or the socket of all disks cannot be had, there is no daemon.
    std::fs::remove_dir(&later).unwrap();
    let mut none = config(dir, "", &["b"]);
    none.vms[0].socket = Some(later.join("b.s"));
    assert!(Service::start(&none).is_err());
    whole.listen.unix = Some(later.join("s"));
    assert!(Service::start(&whole).is_err());
}

#[test]
fn the_check_finds_places_where_no_socket_can_be_had() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    image(dir, "a");
    let (open, file) = (dir.join("open"), dir.join("file"));
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(&file, "something else").unwrap();
    let foreign = "expected a directory that only this user or root may write";
    let mut config = config(dir, "", &["a"]);
    let own = config.vms[0].socket.clone();
    for (place, why) in [
        (open.join("a.s"), foreign),
        (open, "expected a socket or nothing"),
        (file, "expected a socket or nothing"),
        (dir.join("s".repeat(200)), "cannot listen on"),
    ] {
        config.vms[0].socket = Some(place.clone());
        let found = preflight(&config);
        assert!(found.len() == 1 && found[0].contains(why), "{found:?}");
        // As at the start.
        let refused = Service::start(&config).err().map(|e| e.to_string());
        assert!(refused.is_some_and(|e| e.contains(why)));
        config.vms[0].socket.clone_from(&own);
        let control = config.control.replace(place);
        assert_eq!(preflight(&config), found);
        config.control = control;
    }
    // The unit may make the directory.
    config.vms[0].socket = Some(dir.join("later/a.s"));
    assert_eq!(preflight(&config), Vec::<String>::new());
}

#[test]
fn sockets_of_disks_have_the_owner_and_mode_that_are_configured() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    image(dir, "a");
    let group = rustix::process::getegid().as_raw();
    let own = rustix::process::geteuid().as_raw();
    let listen =
        format!("socket_mode = \"0660\"\nsocket_group = \"{group}\"\nsocket_owner = \"{own}\"\n");
    let mut config = config(dir, &listen, &["a"]);
    config.vms[0].disks[0].vhost = Some(dir.join("v"));
    let service = Service::start(&config).unwrap();
    for (socket, mode) in [("s", 0o660), ("a.s", 0o660), ("v", 0o660), ("ctl", 0o600)] {
        let found = std::fs::metadata(dir.join(socket)).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, mode, "{socket}");
        assert_eq!((found.uid(), found.gid()), (own, group));
    }
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_reload_and_an_exec_give_open_sockets_the_mode_that_is_configured_now() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    image(dir, "a");
    let mut config = config(dir, "", &["a"]);
    config.vms[0].disks[0].vhost = Some(dir.join("v"));
    let mode = |socket: &str| {
        let found = std::fs::metadata(dir.join(socket)).unwrap();
        found.permissions().mode() & 0o777
    };
    let modes = || ["s", "a.s", "v", "ctl"].map(mode);
    let service = Service::start(&config).unwrap();
    assert_eq!(modes(), [0o600; 4]);
    config.listen.access.mode = 0o660;
    let changed = service.reload(&config).unwrap().changed;
    assert_eq!(changed, ["mode and owner of sockets"]);
    assert_eq!(modes(), [0o660, 0o660, 0o660, 0o600]);
    assert_eq!(service.reload(&config).unwrap(), Reloaded::default());
    // The next daemon has the same sockets.
    config.listen.access.mode = 0o600;
    let service = execute(service, &config);
    assert_eq!(modes(), [0o600; 4]);
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_mode_for_everybody_and_names_of_nobody_are_refused() {
    for (line, expected) in [
        ("socket_mode = \"0666\"", "expected an octal mode"),
        ("socket_mode = \"0060\"", "expected an octal mode"),
        ("socket_mode = \"rw\"", "expected an octal mode"),
        ("socket_group = \"no such group\"", "number of a group"),
        ("socket_owner = \"no such user\"", "number of a user"),
    ] {
        let text = format!("[listen]\nunix = \"/run/s\"\n{line}\n");
        let found = Config::parse(Path::new("cache.toml"), &text).unwrap_err();
        let found = found[0].to_string();
        assert!(
            found.starts_with("cache.toml:3: ") && found.contains(expected),
            "{found}"
        );
    }
}

#[test]
fn an_image_of_another_format_is_served_only_if_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut content = vec![0; 8192];
    content[..4].copy_from_slice(b"QFI\xfb");
    std::fs::write(dir.join("a"), content).unwrap();
    let mut config = config(dir, "", &["a"]);
    let why = Service::start(&config).err().map(|e| e.to_string());
    assert!(why.unwrap().contains("looks like qcow2"));
    assert!(preflight(&config)[0].contains("looks like qcow2"));
    config.vms[0].disks[0].any_format = true;
    let service = Service::start(&config).unwrap();
    service.shut_down(Duration::from_secs(5)).unwrap();
}

#[test]
fn an_ssd_store_that_cannot_be_had_costs_no_disk() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    image(dir, "a");
    let path = dir.join("foreign");
    std::fs::write(&path, "somebody's").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let mut config = config(dir, "", &["a"]);
    config.cache.ssd = Some(crate::config::SsdConfig::new(&path, 4 << 20));
    assert!(preflight(&config)[0].contains("SSD store"));
    let service = Service::start(&config).unwrap();
    let failed = || service.stats().cache.stores[1].failed.clone();
    assert!(failed().unwrap().contains("something else"));
    // Once it is gone, a size makes the store.
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
    std::fs::remove_file(&path).unwrap();
    let size = ControlRequest::SetStore {
        store: crate::config::StoreKind::Ssd,
        size: Size(4 << 20),
    };
    send_request(&dir.join("ctl"), &size).unwrap();
    assert_eq!(failed(), None);
    service.shut_down(Duration::from_secs(5)).unwrap();
    assert!(!path.exists());
}
