//! A manager of services, as far as it is needed here, and a client.

use justitia_common::kill_on_drop::KillOnDrop;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::fmt::Write as _;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) const BLOCKS: u64 = 8192;

/// A manager of services, as far as it is needed here.
pub(crate) struct Manager {
    dir: tempfile::TempDir,
    notify: UnixDatagram,
    /// The descriptor store.
    pub(crate) stored: Vec<(String, OwnedFd)>,
}

pub(crate) fn content(block: u64, version: u8) -> Vec<u8> {
    let mut content = vec![version; 4096];
    content[..8].copy_from_slice(&block.to_le_bytes());
    content
}

impl Manager {
    /// With a configuration whose pools are in memory, or in both stores.
    pub(crate) fn new(hybrid: bool) -> Self {
        Self::with(|dir| {
            let at = |name: &str| dir.join(name);
            let (memory, ssd) = match hybrid {
                false => ("64MiB", String::new()),
                true => (
                    "16MiB",
                    format!("[ssd]\npath = {:?}\nsize = \"64MiB\"\n", at("ssd")),
                ),
            };
            let pool = "[[vm.pool]]\nname = \"default\"\nmemory_weight = 100\nssd_weight = 100\n";
            format!(
                "control = {:?}\n[memory]\nsize = \"{memory}\"\n{ssd}[listen]\nunix = {:?}\n[[vm]]\nname = \"vm\"\n{}[[vm.disk]]\nname = \"disk\"\nimage = {:?}\n",
                at("control"),
                at("nbd"),
                if hybrid { pool } else { "" },
                at("image"),
            )
        })
    }

    /// With a configuration, for which there is a directory with an image.
    pub(crate) fn with(configuration: impl FnOnce(&Path) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let whole: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 1)).collect();
        std::fs::write(dir.path().join("image"), whole).unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("cache.toml"), configuration(dir.path())).unwrap();
        let notify = UnixDatagram::bind(at("notify")).unwrap();
        notify
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Self {
            dir,
            notify,
            stored: Vec::new(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the daemon with what is in the store, from descriptor 3 on, and waits until it is ready.
    pub(crate) fn start(&mut self) -> Daemon {
        let (mut script, mut names) = (
            String::from("export LISTEN_PID=$$; exec \"$@\""),
            Vec::new(),
        );
        let mut kept = Vec::new();
        for (number, (name, fd)) in (3..).zip(&self.stored) {
            let high = fcntl_dupfd_cloexec(fd, 100).unwrap();
            fcntl_setfd(&high, FdFlags::empty()).unwrap();
            write!(script, " {number}<&{}", high.as_raw_fd()).unwrap();
            names.push(name.clone());
            kept.push(high);
        }
        let daemon = Command::new("bash")
            .args(["-c", &script, "bash", env!("CARGO_BIN_EXE_justitia")])
            .args(["cache", "serve", "--config"])
            .arg(self.path("cache.toml"))
            .env("NOTIFY_SOCKET", self.path("notify"))
            .envs(
                names
                    .first()
                    .map(|_| ("LISTEN_FDS", names.len().to_string())),
            )
            .envs(names.first().map(|_| ("LISTEN_FDNAMES", names.join(":"))))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Daemon(KillOnDrop(daemon));
        drop(kept);
        self.wait_until_ready();
        daemon
    }

    pub(crate) fn wait_until_ready(&mut self) {
        while !self.receive().contains("READY=1") {}
    }

    /// One message, after what it asks of the store is done.
    pub(crate) fn receive(&mut self) -> String {
        let mut bytes = [0; 4096];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(
            &self.notify,
            &mut parts,
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        let len = got.unwrap().bytes;
        let said = String::from_utf8_lossy(&bytes[..len]).into_owned();
        let name = said.lines().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.unwrap_or_default().to_owned();
        if said.contains("FDSTOREREMOVE=1") {
            self.stored.retain(|(of, _)| *of != name);
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                assert!(said.contains("FDSTORE=1"), "{said}");
                self.stored.extend(descriptors.map(|fd| (name.clone(), fd)));
            }
        }
        said
    }

    /// Ends the daemon with SIGTERM, and stores what it hands over.
    pub(crate) fn stop(&mut self, mut daemon: Daemon) {
        daemon.signal("TERM");
        assert!(daemon.0.wait().unwrap().success());
        self.notify.set_nonblocking(true).unwrap();
        let mut peek = [0; 1];
        while rustix::net::recv(&self.notify, &mut peek, RecvFlags::PEEK).is_ok() {
            self.receive();
        }
        self.notify.set_nonblocking(false).unwrap();
    }

    /// Reads each `step`th block once; returns which part of them was in the cache.
    pub(crate) fn read(&self, version: u8, step: usize) -> f64 {
        let before = self.hits();
        let mut client = Client::connect(&self.path("nbd"));
        let mut reads = 0;
        for block in (0..BLOCKS).step_by(step) {
            assert!(
                client.read(block) == content(block, version),
                "block {block}"
            );
            reads += 1;
        }
        let hits = u32::try_from(self.hits().all() - before.all()).unwrap();
        f64::from(hits) / f64::from(reads)
    }

    /// Which parts of all blocks the stores hold.
    pub(crate) fn held(&self) -> Held {
        let stats = self.stats();
        let part = |name: &str| {
            let bytes = stats["cache"]["vms"][0]["pools"][0][name].as_f64();
            bytes.unwrap() / f64::from(u32::try_from(BLOCKS * 4096).unwrap())
        };
        Held {
            memory: part("memory_bytes"),
            ssd: part("ssd_bytes"),
        }
    }

    pub(crate) fn hits(&self) -> Hits {
        let stats = self.stats();
        let counts = &stats["cache"]["vms"][0]["pools"][0]["counts"];
        Hits {
            memory: counts["memory_hits"].as_u64().unwrap(),
            ssd: counts["ssd_hits"].as_u64().unwrap(),
        }
    }

    /// What `justitia cache stats --json` says.
    pub(crate) fn stats(&self) -> serde_json::Value {
        let stats = Command::new(env!("CARGO_BIN_EXE_justitia"))
            .args(["cache", "stats", "--json", "--control"])
            .arg(self.path("control"))
            .output()
            .unwrap();
        serde_json::from_slice(&stats.stdout).unwrap()
    }
}

/// Which parts of all blocks the stores hold.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) memory: f64,
    pub(crate) ssd: f64,
}

/// Blocks that were read from each store.
pub(crate) struct Hits {
    pub(crate) memory: u64,
    pub(crate) ssd: u64,
}

impl Hits {
    pub(crate) fn all(&self) -> u64 {
        self.memory + self.ssd
    }
}

impl Held {
    /// Is nearly all there that there was? A store that is handed over needs some room for its index.
    pub(crate) fn has(&self, before: &Self) -> bool {
        self.memory >= 0.9 * before.memory && self.ssd >= 0.9 * before.ssd
    }
}

/// Killed when it is dropped.
pub(crate) struct Daemon(pub(crate) KillOnDrop);

impl Daemon {
    pub(crate) fn signal(&self, name: &str) {
        let done = Command::new("kill")
            .args(["-s", name, &self.0.id().to_string()])
            .status();
        assert!(done.unwrap().success());
    }
}

/// A client of NBD that reads.
pub(crate) struct Client(pub(crate) UnixStream);

impl Client {
    pub(crate) fn connect(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        let mut hello = vec![0, 0, 0, 3];
        hello.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk");
        stream.write_all(&hello).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        Self(stream)
    }

    pub(crate) fn read(&mut self, block: u64) -> Vec<u8> {
        let mut request = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0];
        request.extend(block.to_be_bytes());
        request.extend((block * 4096).to_be_bytes());
        request.extend(4096_u32.to_be_bytes());
        self.0.write_all(&request).unwrap();
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..8], [0; 4]);
        let mut content = vec![0; 4096];
        self.0.read_exact(&mut content).unwrap();
        content
    }
}
