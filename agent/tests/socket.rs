//! The status socket: who may ask, what a dead agent has left, and clients that do not read.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use justitia_api::client::{MAX_ANSWER_BYTES, ask, ask_within};
use justitia_api::{Status, TenantStatus};
use justitia_common::answer_socket::AnswerSocket;

fn large() -> Status {
    let tenant = TenantStatus {
        path: "x".repeat(100),
        ..TenantStatus::default()
    };
    Status {
        tenants: vec![tenant; 5000],
        ..Status::default()
    }
}

#[test]
fn it_is_its_owners_alone_and_goes_with_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/j.sock");
    let socket = AnswerSocket::listen(&path).unwrap();
    let mode = |p| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.as_path()), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("precious");
    std::fs::write(&path, "1").unwrap();
    let refused = AnswerSocket::listen(&path).unwrap_err().to_string();
    assert!(refused.contains("found something else"), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "1");
}

#[test]
fn a_dead_agents_socket_is_replaced_a_living_ones_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a closed listener leaves its address");
    let living = AnswerSocket::listen(&path).unwrap();
    let error = AnswerSocket::listen(&path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    // The refusal has not taken the first one's address away.
    let asker = std::thread::spawn({
        let path = path.clone();
        move || ask(&path)
    });
    while !asker.is_finished() {
        let here = Status {
            version: "here".into(),
            ..Status::default()
        };
        living.answer(|| move || here.encode(MAX_ANSWER_BYTES));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(asker.join().unwrap().unwrap().version, "here");
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.sock");
    let socket = AnswerSocket::listen(&path).unwrap();
    // A status far above what the socket buffers, and more clients than one answer takes: the one that reads
    // is the last.
    let silent: Vec<UnixStream> = (0..39)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    let mut reads = UnixStream::connect(&path).unwrap();
    let status = large();
    let mut made = 0;
    let begin = Instant::now();
    for _ in 0..10 {
        socket.answer(|| {
            made += 1;
            let status = status.clone();
            move || status.encode(MAX_ANSWER_BYTES)
        });
    }
    assert_eq!(
        made, 3,
        "one status for each 16 clients, and none for nobody"
    );
    let mut text = Vec::new();
    reads.read_to_end(&mut text).unwrap();
    let told: Status = serde_json::from_slice(&text).unwrap();
    assert_eq!(told.tenants.len(), 5000);
    // Seven silent ones came before it, and each of them is waited for two seconds.
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(8), "held up for {took:?}");

    // The silent ones are cut off: their connections end, with less than the whole.
    // (One write that came half through and one that did not begin: twice the two seconds.)
    std::thread::sleep(Duration::from_secs(7));
    for mut client in silent {
        client
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut part = Vec::new();
        client.read_to_end(&mut part).unwrap();
        assert!(part.len() < text.len(), "{} bytes", part.len());
    }
}

#[test]
fn an_agent_that_does_not_answer_in_time_is_said_to_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let error = ask_within::<Status>(&path, Duration::from_millis(200)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert!(error.to_string().starts_with("it runs, but"), "{error}");

    // One that gives its answer in parts, as far as it comes to that.
    let asker = std::thread::spawn(move || ask_within::<Status>(&path, Duration::from_secs(600)));
    let text = serde_json::to_vec(&large()).unwrap();
    let (mut client, _) = loop {
        let (client, from) = listener.accept().unwrap();
        // The first one has gone.
        if client.peer_addr().is_ok() && (&client).write_all(&text[..1]).is_ok() {
            break (client, from);
        }
    };
    for part in text[1..].chunks(100_000) {
        std::thread::sleep(Duration::from_millis(20));
        client.write_all(part).unwrap();
    }
    drop(client);
    assert_eq!(asker.join().unwrap().unwrap().tenants.len(), 5000);
}
