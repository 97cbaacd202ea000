//! The NBD server with the clients that people use: qemu-img, qemu-io, nbdinfo, nbdcopy, nbdkit and fio.
//!
//! A tool that is missing is a failure: `make deps` installs them.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../fio_verify/mod.rs"]
mod fio_verify;
mod image;
mod live;
mod tls;
mod tools;

use justitia_cache::serve::{Config, ControlRequest, Service};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Runs a tool; its standard output.
fn tool(program: &str, args: &[&str]) -> String {
    let done = output(program, args);
    assert!(
        done.status.success(),
        "{program} {args:?} failed: {}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

fn output(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("expected {program} to be installed (`make deps`): {e}"))
}

fn words(text: &str) -> std::str::SplitWhitespace<'_> {
    text.split_whitespace()
}

/// Runs commands of qemu-io on an image or a disk; what it says.
fn qemu_io(uri: &str, commands: &[&str]) -> String {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let args: Vec<_> = words("-f raw").chain(commands).chain([uri]).collect();
    let done = tool("qemu-io", &args);
    assert!(!done.contains("verification failed"), "{done}");
    done
}

struct Rig {
    dir: tempfile::TempDir,
    service: Option<Service>,
}

impl Rig {
    /// Serves an image of this size with this much cache.
    fn new(size: u64, cache: u64, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("image"))
            .unwrap()
            .set_len(size)
            .unwrap();
        let rig = Self { dir, service: None };
        let config = format!(
            "control = {:?}\nmetrics = \"127.0.0.1:0\"\n{more}\n[memory]\nsize = {cache}\n[[vm]]\nname = \"vm\"\nsocket = {:?}\n[[vm.disk]]\nname = \"disk\"\nimage = {:?}\n",
            rig.path("control"),
            rig.path("nbd"),
            rig.path("image"),
        );
        let config = Config::parse(Path::new("cache.toml"), &config).unwrap();
        Self {
            service: Some(Service::start(&config).unwrap()),
            ..rig
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.text("nbd"))
    }

    fn service(&self) -> &Service {
        self.service.as_ref().unwrap()
    }

    /// Blocks were found in the cache, replaced by writes, and evicted.
    fn was_full(&self) {
        let counts = self.service().stats().cache.vms[0].pools[0].counts;
        let all = [counts.memory_hits, counts.invalidations, counts.evictions];
        assert!(!all.contains(&0), "{counts:?}");
    }

    fn stop(&mut self) {
        let service = self.service.take().unwrap();
        service.shut_down(Duration::from_secs(10)).unwrap();
    }
}

/// Bytes that no two places share.
fn pattern(size: u64) -> Vec<u8> {
    let mut x = 88_172_645_463_325_252u64;
    (0..size / 8)
        .flat_map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x.to_le_bytes()
        })
        .collect()
}
