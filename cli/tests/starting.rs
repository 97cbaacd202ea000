//! What clients say while an agent starts: it has its status socket open, and not yet its control socket.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use justitia_api::Status;

/// `justitia COMMAND --config FILE`, of an agent whose sockets are in `dir`.
fn justitia(dir: &Path, command: &str) -> Output {
    let file = dir.join("j.toml");
    let socket = dir.join("j.sock");
    fs::write(&file, format!("socket = \"{}\"\n", socket.display())).unwrap();
    let mut justitia = Command::new(env!("CARGO_BIN_EXE_justitia"));
    justitia
        .args(command.split(' '))
        .arg("--config")
        .arg(file)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_agent_that_starts_is_waited_for_and_a_request_to_it_is_to_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("j.sock")).unwrap();
    let refused = justitia(dir.path(), "reload");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("is starting: give the command again"),
        "{}",
        said(&refused)
    );

    let answers = std::thread::spawn(move || {
        let text = serde_json::to_vec(&Status::default()).unwrap();
        // Some of them only look whether the socket has a listener.
        for client in listener.incoming().flatten() {
            if (&client).write_all(&text).is_ok() {
                drop(client);
            }
        }
    });
    let answered = justitia(dir.path(), "status --json");
    assert!(answered.status.success(), "{}", said(&answered));
    assert!(
        said(&answered).contains("the agent is starting: waiting for its answer"),
        "{}",
        said(&answered)
    );
    // Once it is ready nothing is said.
    let _control = UnixListener::bind(dir.path().join("j.sock.control")).unwrap();
    let answered = justitia(dir.path(), "status --json");
    assert!(answered.status.success());
    assert_eq!(said(&answered), "");
    drop(answers);
}

#[test]
fn what_a_killed_agent_has_left_is_no_agent_that_starts() {
    let dir = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(dir.path().join("j.sock")).unwrap());
    for command in ["status", "reload"] {
        let refused = justitia(dir.path(), command);
        assert!(
            said(&refused).contains("no agent answers"),
            "{}",
            said(&refused)
        );
    }
}
