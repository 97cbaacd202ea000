//! NBD clients over an exec: some are resumed, others are disconnected.

use super::test::configured;
use super::test_warm::{BLOCKS, TIMEOUT, content, hits, memory_survives};
use super::*;
use crate::block_dev::Sync;
use crate::frontend::Backend;
use crate::nbd::test::client::Client;
use crate::testing::front_end::{FrontEnd, FrontEndOptions, Guest, Workload};
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Bytes of a block, as requests have it, and of four.
const BLOCK: u32 = 4096;
const FOUR: usize = 16_384;

/// Two disks of one VM, `vm` and `other`; the control socket is left out.
fn config(dir: &Path) -> Config {
    let blocks = 0..BLOCKS;
    let whole: Vec<u8> = blocks.flat_map(|block| content(block, 1)).collect();
    let (mut config, _) = configured(dir, &whole);
    config.control = None;
    let mut other = config.vms[0].disks[0].clone();
    "other".clone_into(&mut other.name);
    other.serial = None;
    other.image = dir.join("other");
    std::fs::write(&other.image, vec![7; 1 << 20]).unwrap();
    config.vms[0].disks.push(other);
    config
}

/// As an exec does.
pub(super) fn execute(service: Service, next: &Config) -> Service {
    let (left, flushed) = service.hand_over_with_clients(TIMEOUT);
    flushed.unwrap();
    Service::start_from(next, left).unwrap()
}

/// The bytes of a write at 0, as a client sends them.
fn encoded(c: &mut Client, data: &[u8]) -> Vec<u8> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let stream = std::mem::replace(&mut c.stream, ours);
    c.send(1, 0, 5, 0, data, u32::try_from(data.len()).unwrap());
    drop(std::mem::replace(&mut c.stream, stream));
    let mut bytes = Vec::new();
    theirs.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_was_agreed_on_and_what_is_under_way_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let socket = dir.path().join("nbd");
    let mut service = Service::start(&config).unwrap();
    let mut clients = [false, true].map(|extended| Client::new(&socket, "other", extended));
    for (n, c) in (1..).zip(&mut clients) {
        let bytes = encoded(c, &[n; FOUR]);
        let mut sent = 0;
        // Less than a header, a part of the payload, most of it, all.
        for end in [3, 60, 9000, bytes.len()] {
            c.stream.write_all(&bytes[sent..end]).unwrap();
            sent = end;
            service = execute(service, &config);
        }
        assert_eq!(
            (c.reply(0).error, c.read(0, 4 * BLOCK).data),
            (0, vec![n; FOUR])
        );
    }
    // Replies that are not taken yet.
    for c in &mut clients {
        for cookie in 0..256 {
            c.send(0, 0, cookie, 65_536, &[], 4 * BLOCK);
        }
        service = execute(service, &config);
        let mut cookies: Vec<_> = (0..256)
            .map(|_| {
                let reply = c.reply(FOUR);
                assert!(reply.data == [7; FOUR]);
                reply.cookie
            })
            .collect();
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..256), "each request once");
    }
}

#[test]
fn clients_of_what_is_not_what_they_were_told_are_disconnected() {
    type Change = fn(&mut Config, &Path);
    let changes: [(&str, Change, bool); 5] = [
        ("nothing", |_, _| (), true),
        ("gone", |config, _| drop(config.vms[0].disks.pop()), false),
        (
            "read-only",
            |config, _| config.vms[0].disks[1].read_only = true,
            false,
        ),
        (
            "another image",
            |config, dir| {
                config.vms[0].disks[1].image = dir.join("third");
                std::fs::write(dir.join("third"), vec![7; 1 << 20]).unwrap();
            },
            false,
        ),
        (
            "larger",
            |_, dir| {
                let image = File::options().write(true).open(dir.join("other")).unwrap();
                image.set_len(2 << 20).unwrap();
            },
            true,
        ),
    ];
    for (change, apply, stays) in changes {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        let socket = dir.path().join("nbd");
        let service = Service::start(&config).unwrap();
        let mut undisturbed = Client::new(&socket, "vm", false);
        let mut client = Client::new(&socket, "other", false);
        assert_eq!(client.read(0, BLOCK).error, 0);
        apply(&mut config, dir.path());
        let service = execute(service, &config);
        assert_eq!(undisturbed.read(0, BLOCK).error, 0, "{change}");
        if stays {
            assert_eq!(client.read(0, BLOCK).data, [7; 4096], "{change}");
        } else {
            assert!(client.closed(), "{change}");
        }
        drop(service);
    }
}

#[test]
fn who_negotiates_or_whose_disk_has_lost_something_is_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let socket = dir.path().join("nbd");
    let service = Service::start(&config).unwrap();
    let mut negotiating = Client::silent(&socket);
    negotiating.take(18);
    let mut undisturbed = Client::new(&socket, "vm", false);
    let mut client = Client::new(&socket, "other", false);
    let volumes = service.volumes();
    let other = volumes.iter().find(|volume| volume.name() == "other");
    let Backend::Cached(disk) = other.unwrap().backend() else {
        panic!("expected a cached disk")
    };
    let errors = disk.backing().file().unwrap().sync_errors();
    let _ = errors.settle(Sync::Flush, Err(std::io::Error::other("on purpose")));
    drop(volumes);
    let (left, flushed) = service.hand_over_with_clients(TIMEOUT);
    assert!(flushed.is_err());
    let _service = Service::start_from(&config, left).unwrap();
    assert!(negotiating.closed());
    assert!(client.closed());
    assert_eq!(undisturbed.read(0, BLOCK).error, 0);
}

#[test]
fn a_description_of_another_version_costs_the_connections_alone() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let socket = dir.path().join("nbd");
    let service = Service::start(&config).unwrap();
    hits(&service, 0..1000, 1);
    let mut client = Client::new(&socket, "vm", false);
    let (mut left, flushed) = service.hand_over_with_clients(TIMEOUT);
    flushed.unwrap();
    let head = left
        .iter_mut()
        .find(|(name, _)| name == "justitia-cache-connections");
    let head = &mut head.unwrap().1;
    let mut bytes = [0; 40];
    let file = File::from(head.try_clone().unwrap());
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes[8] += 1;
    let other = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&other, &bytes).unwrap();
    *head = other;
    let service = Service::start_from(&config, left).unwrap();
    assert!(client.closed());
    let expected = if memory_survives() { 1000 } else { 0 };
    assert_eq!(hits(&service, 0..1000, 1), expected);
    assert_eq!(Client::new(&socket, "vm", false).read(0, BLOCK).error, 0);
}

#[test]
fn an_end_that_is_no_exec_disconnects_all() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let service = Service::start(&config).unwrap();
    let mut client = Client::new(&dir.path().join("nbd"), "vm", false);
    let (left, _) = service.hand_over(TIMEOUT);
    let _service = Service::start_from(&config, left).unwrap();
    assert!(client.closed());
}

/// One disk of so many bytes, all zero, over vhost-user alone.
fn vhost_config(dir: &Path, bytes: u64) -> Config {
    let image = dir.join("image");
    File::create(&image).unwrap().set_len(bytes).unwrap();
    let text = format!(
        "[[vm]]\nname = \"vm\"\n[[vm.disk]]\nname = \"disk\"\nimage = {image:?}\nvhost = {:?}\n",
        dir.join("vhost"),
    );
    Config::parse(Path::new("cache.toml"), &text).unwrap()
}

#[test]
fn a_front_end_has_all_that_it_had() {
    const SIZE: u64 = 8 << 20;
    for options in [
        FrontEndOptions::default(),
        FrontEndOptions {
            queues: 4,
            queue_size: 16,
            tracking: false,
            can_shrink: true,
            ..FrontEndOptions::default()
        },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let config = vhost_config(dir.path(), SIZE);
        let mut service = Service::start(&config).unwrap();
        let mut front_end = FrontEnd::connect(&dir.path().join("vhost"), options).unwrap();
        let mut workload = Workload::new(SIZE, 7);
        // Offset 32 is the write cache: write-through.
        front_end.set_config(32, &[0]).unwrap();
        let more = Guest::new(1 << 40, 1 << 21).unwrap();
        front_end.add_memory(&more).unwrap();
        for n in 0..20 {
            workload.advance(&mut front_end, 100 + n).unwrap();
            service = execute(service, &config);
        }
        workload.finish(&mut front_end).unwrap();
        assert_eq!(front_end.config(32, 1).unwrap(), [0]);
        front_end.remove_memory(&more).unwrap();
        // A queue that is stopped stays so.
        let base = front_end.stop_queue(0).unwrap();
        service = execute(service, &config);
        front_end.start_queue(0, base.try_into().unwrap()).unwrap();
        workload.advance(&mut front_end, 100).unwrap();
        workload.finish(&mut front_end).unwrap();
        // It is told over the channel that it has made.
        let (left, _) = service.hand_over_with_clients(TIMEOUT);
        let image = File::options().write(true).open(dir.path().join("image"));
        image.unwrap().set_len(2 * SIZE).unwrap();
        service = Service::start_from(&config, left).unwrap();
        let mut message = [0; 12];
        let channel = front_end.channel.as_mut().unwrap();
        channel.set_read_timeout(Some(TIMEOUT)).unwrap();
        channel.read_exact(&mut message).unwrap();
        assert_eq!(message[0], 2, "VHOST_USER_BACKEND_CONFIG_CHANGE_MSG");
        assert_eq!(service.stats().vhost_front_ends, 1);
    }
}

#[test]
fn a_front_end_of_another_image_must_connect_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = vhost_config(dir.path(), 1 << 20);
    let service = Service::start(&config).unwrap();
    let socket = dir.path().join("vhost");
    let mut front_end = FrontEnd::connect(&socket, FrontEndOptions::default()).unwrap();
    assert!(front_end.config(0, 8).is_ok());
    config.vms[0].disks[0].image = dir.path().join("other");
    std::fs::write(dir.path().join("other"), vec![0; 1 << 20]).unwrap();
    let service = execute(service, &config);
    assert!(front_end.config(0, 8).is_err());
    front_end.reconnect().unwrap();
    assert!(front_end.config(0, 8).is_ok());
    drop(service);
}

/// Is there a server of NBD that answers there?
fn greets(socket: &Path) -> bool {
    let client = UnixStream::connect(socket).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut greeting = [0; 8];
    (&client).read_exact(&mut greeting).is_ok() && &greeting == b"NBDMAGIC"
}

/// systemd passes a socket at a start alone, and listens there for as long as its unit is up.
#[test]
fn a_socket_of_systemd_serves_a_vm_that_is_added_later_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let before = config(dir.path());
    let mut after = before.clone();
    let mut vm = before.vms[0].clone();
    "later".clone_into(&mut vm.name);
    let socket = dir.path().join("later.sock");
    vm.socket = Some(socket.clone());
    vm.disks.truncate(1);
    "later".clone_into(&mut vm.disks[0].name);
    vm.disks[0].image = dir.path().join("later");
    std::fs::write(&vm.disks[0].image, vec![7; 1 << 20]).unwrap();
    after.vms.push(vm);
    let theirs = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let given = vec![(
        "later.socket".to_owned(),
        theirs.try_clone().unwrap().into(),
    )];
    let mut service = Service::start_from(&before, given).unwrap();
    for _ in 0..2 {
        service.reload(&after).unwrap();
        assert!(greets(&socket));
        service.reload(&before).unwrap();
        service = execute(service, &before);
    }
    service.shut_down(TIMEOUT).unwrap();
    assert!(socket.exists());
}

#[test]
fn clients_of_disks_that_requests_have_added_go_on_too() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let mut service = Service::start(&config).unwrap();
    std::fs::write(dir.path().join("third"), vec![9; 1 << 20]).unwrap();
    let table = |value: serde_json::Value| value.as_object().unwrap().clone();
    let disk = json!({ "name": "third", "image": dir.path().join("third") });
    let remove = |disk: &str| ControlRequest::RemoveDisk { disk: disk.into() };
    let add = ControlRequest::AddDisk {
        vm: "vm".into(),
        disk: table(disk.clone()),
    };
    service.daemon().answer(&add).unwrap();
    service.daemon().answer(&remove("other")).unwrap();
    let socket = dir.path().join("nbd");
    let mut client = Client::new(&socket, "third", false);
    for _ in 0..3 {
        service = execute(service, &config);
        assert_eq!(client.read(0, BLOCK).data, [9; 4096]);
        let names: Vec<_> = service
            .volumes()
            .iter()
            .map(|of| of.name().to_owned())
            .collect();
        assert_eq!(names, ["vm", "third"]);
    }
    // An end that is no exec forgets them.
    let (left, _) = service.hand_over(TIMEOUT);
    let service = Service::start_from(&config, left).unwrap();
    assert_eq!(service.volumes().len(), 2);
    assert!(client.closed());
}
