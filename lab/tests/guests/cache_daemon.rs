//! A `justitia cache serve` of this machine.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program, built beside this test's directory.
pub(crate) fn program() -> Command {
    Command::new(super::commands::program("justitia"))
}

/// QEMU's arguments for a disk of this serial: an export of the NBD server at `socket`. Its requests wait while that is gone.
pub(crate) fn nbd_disk(socket: &Path, export: &str, serial: &str) -> [String; 4] {
    let drive = format!(
        "if=none,id={serial},format=raw,cache=none,file.driver=nbd,file.server.type=unix,file.server.path={},\
         file.export={export},file.reconnect-delay=60",
        socket.display()
    );
    let device = format!("virtio-blk-pci,drive={serial},serial={serial}");
    ["-drive".into(), drive, "-device".into(), device]
}

/// Of all pools of the first VM: blocks looked up, and those found in memory.
pub(crate) fn lookups(stats: &Value) -> (u64, u64) {
    let pools = stats["cache"]["vms"][0]["pools"].as_array().unwrap();
    let of = |name: &str| {
        let counts = pools.iter().map(|pool| pool["counts"][name].as_u64());
        counts.map(Option::unwrap).sum()
    };
    (of("gets"), of("memory_hits"))
}

/// The daemon, killed when this is dropped.
#[derive(Default)]
pub(crate) struct Daemon(Option<Child>);

impl Daemon {
    /// Starts it with the configuration `cache.toml` in `dir`, and waits until its socket `control` there answers. It writes
    /// to `log` there.
    pub(crate) fn start(&mut self, dir: &Path) {
        let log = dir.join("log");
        let written = File::options().append(true).create(true).open(&log);
        let mut command = program();
        command.args(["cache", "serve", "--config"]);
        command.arg(dir.join("cache.toml")).stderr(written.unwrap());
        self.0 = Some(command.spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        while UnixStream::connect(dir.join("control")).is_err() {
            let log = std::fs::read_to_string(&log).unwrap();
            assert!(
                Instant::now() < deadline,
                "the daemon does not start: {log}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Has it execute its program again, waits until that serves, and returns the sockets that it has no more: of clients that
    /// were cut off.
    pub(crate) fn execute_again(&self, dir: &Path) -> Vec<String> {
        let pid = self.0.as_ref().unwrap().id();
        let starts = || {
            let log = std::fs::read_to_string(dir.join("log")).unwrap();
            (log.matches("control socket").count(), log)
        };
        let (before, sockets) = (starts().0, sockets(pid, dir));
        assert!(sockets.len() >= 2, "no client is connected: {sockets:?}");
        let told = Command::new("kill")
            .args(["-s", "USR2", &pid.to_string()])
            .status();
        assert!(told.unwrap().success());
        let deadline = Instant::now() + Duration::from_secs(60);
        while starts().0 == before {
            assert!(
                Instant::now() < deadline,
                "it does not serve again: {}",
                starts().1
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        let after = self::sockets(pid, dir);
        sockets
            .into_iter()
            .filter(|socket| !after.contains(socket))
            .collect()
    }

    /// SIGKILL, and the wait for its end.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The sockets that a process has open, by their inodes, of clients on paths in `dir`.
fn sockets(pid: u32, dir: &Path) -> Vec<String> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = open.filter_map(|fd| {
        let link = std::fs::read_link(fd.ok()?.path()).ok()?;
        link.into_os_string().into_string().ok()
    });
    let bound = std::fs::read_to_string("/proc/net/unix").unwrap();
    let dir = dir.to_str().unwrap();
    // Each as the link says it, and its path.
    let bound: Vec<(String, &str)> = bound
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // Not those that are listened on: over vhost-user the next program makes its own.
            let [_, _, _, "00000000", _, _, inode, path] = words[..] else {
                return None;
            };
            let is_ours = path.starts_with(dir);
            is_ours.then(|| (format!("socket:[{inode}]"), path))
        })
        .collect();
    links
        .filter_map(|link| {
            let (inode, path) = bound.iter().find(|(inode, _)| *inode == link)?;
            Some(format!("{inode} {path}"))
        })
        .collect()
}
