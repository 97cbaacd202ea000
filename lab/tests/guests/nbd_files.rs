//! Files whose requests pass nbdkit's filters, for images on slow disks: nbdkit serves a directory, and nbdfuse makes files
//! of its exports.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use justitia_common::kill_on_drop::KillOnDrop;

/// The servers, which end when this is dropped.
pub(crate) struct NbdFiles {
    files: Vec<(PathBuf, KillOnDrop)>,
    /// Ended last.
    _nbdkit: KillOnDrop,
}

impl NbdFiles {
    /// Serves the files of `images` on `socket`, by nbdkit with these filters and their parameters. Each path of `files`
    /// becomes a file that is the export of the same name.
    pub(crate) fn start(
        images: &Path,
        socket: &Path,
        filters: &[&str],
        parameters: &[String],
        files: &[PathBuf],
    ) -> Self {
        let user = rustix::process::geteuid();
        assert!(
            user.is_root() && Path::new("/dev/fuse").exists(),
            "expected root, and /dev/fuse, for a slow disk: nbdfuse's files are mounted; found user {}",
            user.as_raw()
        );
        let filters = filters.iter().map(|filter| format!("--filter={filter}"));
        let mut nbdkit = Command::new("nbdkit");
        let nbdkit = nbdkit
            .args(["--exit-with-parent", "--foreground", "--unix"])
            .arg(socket)
            .args(filters)
            .args(["file", &format!("dir={}", images.display())])
            .args(parameters);
        let mut started = Self {
            files: Vec::new(),
            _nbdkit: start(nbdkit),
        };
        comes(|| socket.exists());
        for file in files {
            started.mount(file, socket);
        }
        started
    }

    fn mount(&mut self, file: &Path, socket: &Path) {
        File::create(file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy();
        let uri = format!("nbd+unix:///{name}?socket={}", socket.display());
        // Unmounted even if this process is killed.
        let mut nbdfuse = Command::new("setpriv");
        let nbdfuse = nbdfuse.args(["--pdeathsig=TERM", "nbdfuse"]);
        self.files
            .push((file.to_owned(), start(nbdfuse.arg(file).arg(uri))));
        comes(|| std::fs::metadata(file).is_ok_and(|file| file.len() > 0));
    }
}

fn start(command: &mut Command) -> KillOnDrop {
    KillOnDrop(command.spawn().unwrap_or_else(|error| {
        panic!("{command:?}: {error} (`make deps` installs what the tests need)")
    }))
}

fn comes(there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "expected nbdkit and nbdfuse to begin within 20 s: see what they have printed"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Drop for NbdFiles {
    fn drop(&mut self) {
        for (file, _) in &self.files {
            // Unmounted first: nbdfuse ends by itself then.
            let _ = Command::new("umount").arg("-l").arg(file).status();
        }
    }
}
