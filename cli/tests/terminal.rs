//! What takes a terminal over gives it back, however it ends.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// A terminal, and what was written to it.
fn terminal() -> (File, Arc<Mutex<Vec<u8>>>) {
    let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&control).unwrap();
    unlockpt(&control).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&control, size).unwrap();
    let name = ptsname(&control, Vec::new()).unwrap();
    let terminal = rustix::fs::open(
        name,
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY,
        0.into(),
    );
    let written = Arc::new(Mutex::new(Vec::new()));
    let (noted, mut control) = (written.clone(), File::from(control));
    std::thread::spawn(move || {
        let mut part = [0; 4096];
        while let Ok(length @ 1..) = control.read(&mut part) {
            noted.lock().unwrap().extend_from_slice(&part[..length]);
        }
    });
    (terminal.unwrap().into(), written)
}

fn wait_until(what: &str, come: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !come() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Answers each client with this.
fn answer(socket: &Path, text: Vec<u8>) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let _ = (&client).write_all(&text);
        }
    });
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let agents = serde_json::to_vec(&justitia_api::Status::default()).unwrap();
    answer(&at("j.sock"), agents);
    let _control = UnixListener::bind(at("j.sock.control")).unwrap();
    let hosts = serde_json::to_vec(&justitia_host::status::Status::default()).unwrap();
    answer(&at(justitia_host::status::TENANTS_SOCKET), hosts);
    let config = at("j.toml");
    fs::write(
        &config,
        format!("socket = \"{}\"\n", at("j.sock").display()),
    )
    .unwrap();
    let commands = [
        (["top", "--config"], config.as_path()),
        (["host", "top"], Path::new("--directory")),
    ];
    for (command, last) in commands {
        for signal in [Signal::TERM, Signal::HUP] {
            let (terminal, written) = terminal();
            let shared = || OwnedFd::from(terminal.try_clone().unwrap());
            let before = tcgetattr(&terminal).unwrap().local_modes;
            let mut justitia = Command::new(env!("CARGO_BIN_EXE_justitia"));
            justitia.args(command).arg(last).env("TERM", "xterm");
            if command[0] == "host" {
                justitia.arg(dir.path());
            }
            let justitia = justitia.stdin(shared()).stdout(shared()).stderr(shared());
            let mut child = justitia.spawn().unwrap();
            let modes = || tcgetattr(&terminal).unwrap().local_modes;
            wait_until("keys are read", || !modes().contains(LocalModes::ECHO));
            kill_process(Pid::from_child(&child), signal).unwrap();
            child.wait().unwrap();
            assert_eq!(modes(), before, "{command:?} {signal:?}");
            let has = |sequence: &[u8]| {
                let written = written.lock().unwrap();
                written.windows(sequence.len()).any(|part| part == sequence)
            };
            // The screen beside what was there before.
            wait_until("its screen is left", || {
                !has(b"\x1b[?1049h") || has(b"\x1b[?1049l")
            });
        }
    }
}

#[test]
fn a_signal_ends_what_waits_for_a_daemon_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(justitia_host::status::TENANTS_SOCKET);
    let listener = UnixListener::bind(socket).unwrap();
    for signal in [Signal::TERM, Signal::HUP] {
        let (terminal, _written) = terminal();
        let shared = || OwnedFd::from(terminal.try_clone().unwrap());
        let modes = || tcgetattr(&terminal).unwrap().local_modes;
        let before = modes();
        let mut justitia = Command::new(env!("CARGO_BIN_EXE_justitia"));
        justitia
            .args(["host", "top", "--directory"])
            .arg(dir.path());
        let justitia = justitia.stdin(shared()).stdout(shared()).stderr(shared());
        let mut child = justitia.spawn().unwrap();
        let (_unanswered, _) = listener.accept().unwrap();
        wait_until("keys are read", || !modes().contains(LocalModes::ECHO));
        kill_process(Pid::from_child(&child), signal).unwrap();
        // One that has waited until its request has failed says so by its exit code.
        assert!(child.wait().unwrap().success(), "{signal:?}");
        assert_eq!(modes(), before, "{signal:?}");
    }
}
