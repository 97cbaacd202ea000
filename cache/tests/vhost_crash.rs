//! A daemon that is killed again and again while a guest's requests are in flight on four queues.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use justitia_cache::lab::front_end::{FrontEnd, FrontEndOptions, Workload};
use justitia_cache::serve::{Config, Service};
use justitia_common::kill_on_drop::KillOnDrop;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of the disk.
const SIZE: u64 = 8 << 20;
/// How often the daemon is killed.
const KILLS: usize = 50;
/// Where the daemon finds its image and makes its socket.
const DIRECTORY: &str = "JUSTITIA_TEST_VHOST_DIRECTORY";

/// This program again, as the daemon.
struct Daemon(KillOnDrop);

impl Daemon {
    fn start(directory: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_daemon_that_is_killed", "--ignored"]);
        command.env(DIRECTORY, directory);
        command.stdout(std::process::Stdio::null());
        Self(KillOnDrop(command.spawn().unwrap()))
    }

    /// SIGKILL, and the wait for its end.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "it is the daemon of another test, in a process of its own"]
fn the_daemon_that_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let directory = Path::new(&directory);
    let text = format!(
        "[memory]\nsize = \"2MiB\"\n[[vm]]\nname = \"vm\"\n[[vm.disk]]\nname = \"disk\"\nimage = {:?}\nvhost = {:?}\n",
        directory.join("image"),
        directory.join("vhost"),
    );
    let config = Config::parse(Path::new("cache.toml"), &text).unwrap();
    let _service = Service::start(&config).unwrap();
    loop {
        std::thread::park();
    }
}

fn until_it_listens<T>(mut connect: impl FnMut() -> std::io::Result<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match connect() {
            Ok(connected) => return connected,
            Err(e) if Instant::now() > deadline => panic!("the daemon does not listen: {e}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[test]
fn a_daemon_that_is_killed_loses_nothing_and_answers_nothing_twice() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(SIZE)
        .unwrap();
    let socket = directory.path().join("vhost");
    let mut daemon = Daemon::start(directory.path());
    let options = FrontEndOptions {
        queues: 4,
        queue_size: 16,
        ..FrontEndOptions::default()
    };
    let mut front_end = until_it_listens(|| FrontEnd::connect(&socket, options));
    let mut workload = Workload::new(SIZE, 7);
    let mut in_flight = 0;
    for kill in 0..KILLS {
        workload.advance(&mut front_end, 100 + kill).unwrap();
        in_flight += workload.in_flight();
        daemon.kill();
        daemon = Daemon::start(directory.path());
        until_it_listens(|| front_end.reconnect());
    }
    assert!(in_flight > KILLS, "requests were in flight: {in_flight}");
    workload.finish(&mut front_end).unwrap();
    workload.advance(&mut front_end, 500).unwrap();
    workload.finish(&mut front_end).unwrap();
    daemon.kill();
    assert!(std::fs::read(&image).unwrap() == workload.content());
}
