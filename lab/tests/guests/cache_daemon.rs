//! A `justitia cache serve` of this machine.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The program, built beside this test's directory.
pub(crate) fn program() -> Command {
    let test = std::env::current_exe().unwrap();
    Command::new(test.ancestors().nth(2).unwrap().join("justitia"))
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
