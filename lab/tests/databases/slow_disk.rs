//! A disk with one arm: each request takes [`REQUEST`], one after the other, whichever of its images it is for.
//!
//! nbdkit delays them; nbdfuse makes a file of the image that the hypervisor cache serves. QEMU takes the other one, for
//! swap, from nbdkit itself.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::image::run;

/// What a request takes.
pub(crate) const REQUEST: Duration = Duration::from_millis(4);

/// Bytes for swap.
const SWAP: u64 = 1 << 30;

/// Its servers, which end when this is dropped.
pub(crate) struct SlowDisk {
    dir: PathBuf,
    nbdkit: Child,
    nbdfuse: Child,
}

impl SlowDisk {
    /// A copy of the image and a blank one for swap, in `dir`.
    pub(crate) fn start(dir: &Path, image: &Path) -> Self {
        let images = dir.join("images");
        std::fs::create_dir(&images).unwrap();
        run(Command::new("cp")
            .args(["--sparse=always", "--reflink=auto"])
            .args([image, &images.join("root")]));
        let swap = File::create(images.join("swap")).unwrap();
        swap.set_len(SWAP).unwrap();
        let delay = |which: &str| format!("{which}={}ms", REQUEST.as_millis());
        let nbdkit = start(
            Command::new("nbdkit")
                .args(["--exit-with-parent", "--foreground", "--unix"])
                .arg(dir.join("disk"))
                .args(["--filter=noparallel", "--filter=log", "--filter=delay"])
                .args(["file", &format!("dir={}", images.display())])
                .args(["serialize=all-requests", &delay("rdelay"), &delay("wdelay")])
                .arg(format!("logfile={}", dir.join("requests").display())),
        );
        comes(|| dir.join("disk").exists());
        File::create(dir.join("root")).unwrap();
        let uri = format!("nbd+unix:///root?socket={}", dir.join("disk").display());
        // Unmounted even if this process is killed.
        let nbdfuse = start(
            Command::new("setpriv")
                .args(["--pdeathsig=TERM", "nbdfuse"])
                .arg(dir.join("root"))
                .arg(uri),
        );
        let disk = Self {
            dir: dir.to_owned(),
            nbdkit,
            nbdfuse,
        };
        comes(|| std::fs::metadata(disk.root()).is_ok_and(|file| file.len() > 0));
        disk
    }

    /// The file that is the image.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The socket of nbdkit, whose export `swap` is for swap.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Reads and writes so far, of both.
    pub(crate) fn requests(&self) -> u64 {
        let log = std::fs::read_to_string(self.dir.join("requests")).unwrap();
        let one = |line: &&str| {
            [" Read id=", " Write id="]
                .iter()
                .any(|what| line.contains(what))
        };
        u64::try_from(log.lines().filter(one).count()).unwrap()
    }
}

fn start(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| {
        panic!("{command:?}: {error} (`make deps` installs what the tests need)")
    })
}

fn comes(there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "expected the slow disk's servers to begin within 20 s: see what they have printed"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // Unmounted first: nbdfuse ends by itself then.
        let _ = Command::new("umount").arg("-l").arg(self.root()).status();
        for server in [&mut self.nbdfuse, &mut self.nbdkit] {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
