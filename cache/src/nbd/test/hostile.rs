//! Clients that mean no good.

use super::client::Client;
use super::live::rig;
use crate::nbd::{Limits, ListenError, Server};
use std::io::Write;
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
    while c.stream.write_all(&[0]).is_ok() && since.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(since.elapsed() < Duration::from_secs(5));
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
    let since = Instant::now();
    for _ in 0..100 {
        assert_eq!(other.read(0, 4096).error, 0);
    }
    assert!(since.elapsed() < Duration::from_secs(2));
    // And it can end all the same.
    rig.server.shut_down(Duration::from_millis(200)).unwrap();
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

#[test]
fn sockets_are_taken_over_only_when_nobody_serves_them() {
    let rig = rig(Limits::default());
    let other = Server::new(Limits::default(), None).unwrap();
    assert!(matches!(
        other.listen_unix(&rig.socket),
        Err(ListenError::InUse { .. })
    ));
    let dir = tempfile::tempdir().unwrap();
    let stale = dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    other.listen_unix(&stale).unwrap();
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&stale).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(
        other.listen_unix(&file),
        Err(ListenError::NoSocket { .. })
    ));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    other.shut_down(Duration::from_secs(1)).unwrap();
    assert!(!stale.exists());
}
