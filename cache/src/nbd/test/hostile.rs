//! Clients that mean no good.

use super::client::Client;
use super::live::rig;
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy};
use crate::disk::CachedDisk;
use crate::frontend::{Backend, IoLimits, Volume};
use crate::nbd::{Export, Limits, Server};
use crate::testing::NullDisk;
use justitia_share::Weight;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let rig = rig(Limits::default());
    for garbage in [
        &[0u8; 64][..],
        &[0xff; 64],
        b"GET / HTTP/1.1\r\n\r\n GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut c = Client::silent(&rig.socket);
        c.take(18);
        c.stream.write_all(garbage).unwrap();
        assert!(c.closed());
        let mut c = Client::new(&rig.socket, "disk", false);
        c.stream.write_all(garbage).unwrap();
        assert!(c.closed());
    }
    assert_eq!(Client::new(&rig.socket, "disk", false).read(0, 1).error, 0);
}

#[test]
fn a_client_that_says_nothing_is_sent_away() {
    let rig = rig(Limits {
        negotiation: Duration::from_millis(200),
        ..Limits::default()
    });
    let since = Instant::now();
    let mut c = Client::silent(&rig.socket);
    c.take(18);
    // A byte now and then does not help: the time is for all of it.
    while c.stream.write_all(&[0]).is_ok() {
        assert!(since.elapsed() < Duration::from_secs(60), "never sent away");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_client_that_takes_no_replies_holds_up_nobody_and_little_memory() {
    let rig = rig(Limits::default());
    let mut greedy = Client::new(&rig.socket, "disk", false);
    greedy
        .stream
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    assert_eq!(greedy.read(0, 1 << 20).error, 0);
    let mut sent: u64 = 0;
    // Hits of 1 MiB without end: the server must stop reading, so that writing times out.
    while sent < 100_000 && greedy.try_send(0, 0, sent, 0, &[], 1 << 20).is_ok() {
        sent += 1;
    }
    assert!(sent < 100_000, "the server took on requests without end");
    let mut other = Client::new(&rig.socket, "disk", false);
    for _ in 0..100 {
        assert_eq!(other.read(0, 4096).error, 0);
    }
    // And it can end all the same.
    rig.server.shut_down(Duration::from_millis(200));
    assert_eq!(rig.server.clients(), 0);
}

#[test]
fn a_write_that_never_comes_ends_with_its_connection() {
    let rig = rig(Limits::default());
    let mut c = Client::new(&rig.socket, "disk", false);
    c.send(1, 0, 1, 0, &[7; 1000], 1 << 20);
    drop(c);
    let mut c = Client::new(&rig.socket, "disk", false);
    // Half a write is none.
    assert_eq!(c.read(0, 1).data, [0]);
    let gone = Instant::now() + Duration::from_secs(5);
    while rig.server.clients() > 1 && Instant::now() < gone {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(rig.server.clients(), 1);
}

#[test]
fn there_are_only_so_many_connections() {
    let rig = rig(Limits {
        connections: 2,
        ..Limits::default()
    });
    let mut first = Client::new(&rig.socket, "disk", false);
    let second = Client::new(&rig.socket, "disk", false);
    assert!(Client::silent(&rig.socket).closed());
    assert_eq!(first.read(0, 1).error, 0);
    drop(second);
    let until = Instant::now() + Duration::from_secs(5);
    while rig.server.clients() > 1 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(Client::new(&rig.socket, "disk", false).read(0, 1).error, 0);
}

/// One that starts has its socket bound before it answers: it is not taken for one that nobody serves.
#[test]
fn of_servers_that_start_at_once_one_gets_the_socket() {
    use std::os::unix::net::{UnixListener, UnixStream};
    let dir = tempfile::tempdir().unwrap();
    for round in 0..300 {
        let path = dir.path().join(format!("socket-{round}"));
        drop(UnixListener::bind(&path).unwrap());
        let start = std::sync::Barrier::new(4);
        let started = std::thread::scope(|scope| {
            let one = || {
                start.wait();
                crate::frontend::unix_listener(&path, Default::default())
            };
            let servers: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            let joined = servers.into_iter().map(|server| server.join().unwrap());
            joined.collect::<Vec<_>>()
        });
        for refused in started.iter().filter_map(|one| one.as_ref().err()) {
            let refused = refused.to_string();
            assert!(
                refused.contains("another server answers there"),
                "{refused}"
            );
        }
        let listening: Vec<_> = started.into_iter().flatten().collect();
        assert_eq!(listening.len(), 1, "round {round}");
        UnixStream::connect(&path).unwrap();
    }
}

#[test]
fn sockets_are_taken_over_only_when_nobody_serves_them() {
    let rig = rig(Limits::default());
    let other = Server::new(Limits::default(), None).unwrap();
    let refused = |path, why| {
        let refused = other.listen_unix(path).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    };
    refused(&rig.socket, "another server answers there");
    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    other.listen_unix(&stale).unwrap();
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&stale).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    // One of another kind, which refuses connections in other words.
    let datagrams = dir.path().join("datagrams");
    let living = std::os::unix::net::UnixDatagram::bind(&datagrams).unwrap();
    refused(&datagrams, "found a socket of another kind");
    let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
    sender.send_to(b"hello", &datagrams).unwrap();
    assert_eq!(living.recv(&mut [0; 8]).unwrap(), 5);
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    refused(&file, "found another kind of file");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    other.shut_down(Duration::from_secs(1));
    assert!(!stale.exists());
}

#[test]
fn a_client_that_takes_no_replies_is_cut_off() {
    let rig = rig(Limits {
        send: Duration::from_millis(300),
        ..Limits::default()
    });
    let mut greedy = Client::new(&rig.socket, "disk", false);
    for n in 0..16 {
        greedy.send(0, 0, n, 0, &[], 1 << 20);
    }
    let until = Instant::now() + Duration::from_secs(20);
    while rig.server.clients() > 0 {
        assert!(Instant::now() < until, "it is still served");
        std::thread::sleep(Duration::from_millis(5));
    }
    // A client that takes them may pause for as long as it likes.
    let mut patient = Client::new(&rig.socket, "disk", false);
    assert_eq!(patient.read(0, 1 << 20).error, 0);
    std::thread::sleep(Duration::from_millis(900));
    assert_eq!(patient.read(0, 1 << 20).error, 0);
}

#[test]
fn a_vm_has_only_so_many_connections_and_leaves_the_others_theirs() {
    let rig = rig(Limits {
        io: IoLimits {
            vm_connections: 2,
            ..IoLimits::default()
        },
        ..Limits::default()
    });
    let mut first = Client::new(&rig.socket, "disk", false);
    let mut second = Client::new(&rig.socket, "disk", false);
    // Who is served counts.
    assert_eq!((first.read(0, 1).error, second.read(0, 1).error), (0, 0));
    let mut third = Client::new(&rig.socket, "disk", false);
    assert!(third.closed());
    // Another VM's.
    assert_eq!(Client::new(&rig.socket, "safe", false).read(0, 1).error, 0);
    drop(first);
    let until = Instant::now() + Duration::from_secs(20);
    while rig.server.clients() > 1 {
        assert!(Instant::now() < until, "it never left");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(Client::new(&rig.socket, "disk", false).read(0, 1).error, 0);
}

#[test]
fn clients_that_say_nothing_give_way_to_those_that_do() {
    let rig = rig(Limits {
        connections: 3,
        ..Limits::default()
    });
    let mut first = Client::new(&rig.socket, "disk", false);
    let mut silent: Vec<_> = (0..2).map(|_| Client::silent(&rig.socket)).collect();
    silent.iter_mut().for_each(|c| drop(c.take(18)));
    assert_eq!(Client::new(&rig.socket, "disk", false).read(0, 1).error, 0);
    assert!(silent[0].closed(), "the oldest goes first");
    assert_eq!(first.read(0, 1).error, 0);
}

#[test]
fn a_port_is_opened_only_for_certificates_or_when_that_is_wanted() {
    let server = Server::new(Limits::default(), None).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let refused = server.listen_tcp(address, false).unwrap_err().to_string();
    assert!(refused.contains("insecure = true"), "{refused}");
    assert!(server.listen_tcp(address, true).is_ok());
}

#[test]
fn sockets_lie_where_no_other_user_can_put_one() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::new(Limits::default(), None).unwrap();
    let path = dir.path().join("s");
    for (mode, fits) in [
        (0o777, false),
        (0o1777, false),
        (0o770, false),
        (0o755, true),
    ] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(dir.path(), mode.clone()).unwrap();
        let listening = server.listen_unix(&path);
        assert_eq!(listening.is_ok(), fits, "{mode:?}: {listening:?}");
    }
}

#[test]
fn huge_trims_over_nothing_cached_hold_up_nobody() {
    // As many blocks in the cache as a sweep would look through each time.
    const BLOCKS: u64 = 16_384;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let cache = Cache::new(CacheConfig::of_memory((BLOCKS + 64) * 4096)).unwrap();
    let server = Server::new(Limits::default(), None).unwrap();
    for name in ["hostile", "other"] {
        let weight = Weight::default();
        let vm = cache.add_vm(name, weight, Policy::default()).unwrap();
        let id = cache.add_disk(vm, name).unwrap();
        let vast = Arc::new(NullDisk(1 << 52));
        let cached = CachedDisk::new(vast, Arc::clone(&cache), id, Mode::Inclusive).unwrap();
        let volume = Volume::new(name, Backend::Cached(cached));
        server.add(Export::new(volume, ""));
    }
    server.listen_unix(&socket).unwrap();
    let mut other = Client::new(&socket, "other", false);
    let read = 1 << 20;
    for at in 0..BLOCKS * 4096 / read {
        let count = u32::try_from(read).unwrap();
        assert_eq!(other.read(at * read, count).error, 0);
    }
    let mut hostile = Client::new(&socket, "hostile", true);
    assert_eq!(hostile.read(1 << 40, 4096).error, 0);
    let trim = |client: &mut Client, kind: u16, offset: u64, length: u64| {
        let mut m = 0x21e4_1c71_u32.to_be_bytes().to_vec();
        m.extend([0, 0]);
        m.extend(kind.to_be_bytes());
        m.extend(1u64.to_be_bytes());
        m.extend(offset.to_be_bytes());
        m.extend(length.to_be_bytes());
        client.stream.write_all(&m).unwrap();
        client.reply(0).error
    };
    for kind in [4, 6] {
        assert_eq!(trim(&mut hostile, kind, 0, 1 << 63), 28, "beyond the disk");
        assert_eq!(trim(&mut hostile, kind, u64::MAX, u64::MAX), 28);
        for n in 0..20 {
            assert_eq!(trim(&mut hostile, kind, n, (1 << 52) - 100), 0);
        }
    }
    let stats = cache.stats();
    let gone = |vm: usize| stats.vms[vm].pools[0].counts.invalidations;
    assert_eq!(
        (gone(0), gone(1)),
        (1, 0),
        "its own block, and nobody else's"
    );
    assert_eq!(other.read(0, 1 << 20).error, 0);
    assert!(server.volumes()[1].stats().inline_hits > 0);
}
