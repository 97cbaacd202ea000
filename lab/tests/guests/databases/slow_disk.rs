//! A disk with one arm: each request takes [`REQUEST`], one after the other, whichever of its images it is for.
//!
//! nbdkit delays them; one image is a file, which the hypervisor cache serves. QEMU takes the other one, for swap, from
//! nbdkit itself.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::super::commands::run;
use super::super::nbd_files::NbdFiles;

/// What a request takes.
pub(crate) const REQUEST: Duration = Duration::from_millis(4);

/// Bytes for swap.
const SWAP: u64 = 1 << 30;

/// Its servers, which end when this is dropped.
pub(crate) struct SlowDisk {
    dir: PathBuf,
    _servers: NbdFiles,
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
        let parameters = [
            "serialize=all-requests".to_owned(),
            delay("rdelay"),
            delay("wdelay"),
            format!("logfile={}", dir.join("requests").display()),
        ];
        let filters = ["noparallel", "log", "delay"];
        let (socket, root) = (dir.join("disk"), dir.join("root"));
        let servers = NbdFiles::start(&images, &socket, &filters, &parameters, &[root]);
        Self {
            dir: dir.to_owned(),
            _servers: servers,
        }
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
