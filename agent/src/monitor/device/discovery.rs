//! Disks that come and go.

use std::ffi::OsString;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::disk::{Disk, disks};

/// The block devices are listed this often, which is cheap: a device that comes or goes changes the listing.
const LIST: Duration = Duration::from_secs(1);
/// Each is read this often, whatever the listing says: a medium is changed, a device gets its size, or becomes a part of
/// another one, under the name that it has.
const READ: Duration = Duration::from_secs(10);

/// Which disks there are.
#[derive(Debug)]
pub struct DiskDiscovery {
    sys: PathBuf,
    /// Names and inode numbers in `/sys/block`. The kernel numbers them anew for each device.
    listing: Vec<(OsString, u64)>,
    listed: Option<Instant>,
    read: Option<Instant>,
}

impl DiskDiscovery {
    /// Follows the disks below `sys` (`/sys`).
    #[must_use]
    pub const fn new(sys: PathBuf) -> Self {
        Self {
            sys,
            listing: Vec::new(),
            listed: None,
            read: None,
        }
    }

    /// Every disk that there is now. `None` if nothing has changed since the last call, or it is not yet time to look; with
    /// `at_once` it is.
    pub fn poll(&mut self, at_once: bool, now: Instant) -> Option<Vec<Disk>> {
        let due = |at: Option<Instant>, period| at.is_none_or(|at| now - at >= period);
        if !at_once && !due(self.listed, LIST) {
            return None;
        }
        self.listed = Some(now);
        // Listed before read: what comes in between changes the next listing.
        let listing = list(&self.sys.join("block"));
        if !at_once && listing == self.listing && !due(self.read, READ) {
            return None;
        }
        self.listing = listing;
        self.read = Some(now);
        Some(disks(&self.sys))
    }
}

fn list(block: &Path) -> Vec<(OsString, u64)> {
    let entries = std::fs::read_dir(block).into_iter().flatten().flatten();
    let mut listing: Vec<_> = entries
        .map(|entry| (entry.file_name(), entry.ino()))
        .collect();
    listing.sort();
    listing
}

#[cfg(test)]
mod tests {
    use super::super::disk::tests::Sys;
    use super::*;

    fn names(found: Option<Vec<Disk>>) -> Option<Vec<String>> {
        found.map(|disks| disks.into_iter().map(|disk| disk.name).collect())
    }

    #[test]
    fn disks_that_come_and_go_are_found_within_a_second() {
        let sys = Sys(tempfile::tempdir().unwrap());
        let mut follower = DiskDiscovery::new(sys.0.path().to_owned());
        let begin = Instant::now();
        let mut look =
            |millis, at_once| names(follower.poll(at_once, begin + Duration::from_millis(millis)));
        let found = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
        assert_eq!(look(0, false), found(&[]));
        sys.device("sda", "8:0");
        assert_eq!(look(500, false), None, "not yet");
        assert_eq!(look(1000, false), found(&["sda"]));
        assert_eq!(look(2000, false), None, "nothing has changed");
        sys.device("sdb", "8:16");
        sys.remove("sda", "8:0");
        assert_eq!(look(2100, true), found(&["sdb"]), "at once");
        // Another one by the same name: the kernel gives its link another inode number, this file system does so if the
        // old one is still there.
        let block = sys.0.path().join("block");
        std::fs::rename(block.join("sdb"), sys.0.path().join("old")).unwrap();
        std::os::unix::fs::symlink(sys.0.path().join("devices/sdb"), block.join("sdb")).unwrap();
        assert_eq!(look(3200, false), found(&["sdb"]));
        assert_eq!(look(4200, false), None);
        // What does not show in the listing.
        std::fs::write(sys.0.path().join("devices/sdb/size"), "0\n").unwrap();
        assert_eq!(look(13_100, false), None);
        assert_eq!(look(14_100, false), found(&[]));
    }
}
