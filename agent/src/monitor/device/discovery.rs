//! Disks that are added and removed.

use std::ffi::OsString;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::disk::{Disk, disks, entries};

/// How often the block devices are listed. That is cheap, and shows devices that were added or removed.
const LIST_PERIOD: Duration = Duration::from_secs(1);
/// How often each device is read although the listing is the same: its medium may have changed, it may have got a size, or
/// have become part of another device.
const READ_PERIOD: Duration = Duration::from_secs(10);

/// Finds the disks.
#[derive(Debug)]
pub struct DiskDiscovery {
    sys: PathBuf,
    /// Names and inode numbers in `/sys/block`. Each device gets a new inode number.
    listing: Vec<(OsString, u64)>,
    listed_at: Option<Instant>,
    read_at: Option<Instant>,
}

impl DiskDiscovery {
    /// Finds disks below `sys` (`/sys`).
    #[must_use]
    pub const fn new(sys: PathBuf) -> Self {
        Self {
            sys,
            listing: Vec::new(),
            listed_at: None,
            read_at: None,
        }
    }

    /// Every disk that is present. `None` if nothing has changed since the last call, or the listing is not due; with
    /// `at_once` it is due. `None` also if there is no file descriptor to read them: then no disk counts as gone.
    pub fn poll(&mut self, at_once: bool, now: Instant) -> Option<Vec<Disk>> {
        let due = |at: Option<Instant>, period| at.is_none_or(|at| now - at >= period);
        if !at_once && !due(self.listed_at, LIST_PERIOD) {
            return None;
        }
        self.listed_at = Some(now);
        // List first, then read: a device that is added in between changes the next listing.
        let listing = list(&self.sys.join("block"))?;
        if !at_once && listing == self.listing && !due(self.read_at, READ_PERIOD) {
            return None;
        }
        let disks = disks(&self.sys)?;
        self.listing = listing;
        self.read_at = Some(now);
        Some(disks)
    }

    /// Has the next listing read although it is the same: of what the last one found, something could not be used.
    pub const fn read_again(&mut self) {
        self.read_at = None;
    }
}

/// `None` if it cannot be read at this moment.
fn list(block: &Path) -> Option<Vec<(OsString, u64)>> {
    let mut listing: Vec<_> = entries(block)
        .ok()?
        .into_iter()
        .map(|entry| (entry.file_name(), entry.ino()))
        .collect();
    listing.sort();
    Some(listing)
}

#[cfg(test)]
mod tests {
    use super::super::disk::tests::Sys;
    use super::*;

    fn names(found: Option<Vec<Disk>>) -> Option<Vec<String>> {
        found.map(|disks| disks.into_iter().map(|disk| disk.name).collect())
    }

    #[test]
    fn added_and_removed_disks_are_found_within_a_second() {
        let sys = Sys(tempfile::tempdir().unwrap());
        let mut discovery = DiskDiscovery::new(sys.0.path().to_owned());
        let begin = Instant::now();
        let mut poll =
            |millis, at_once| names(discovery.poll(at_once, begin + Duration::from_millis(millis)));
        let found = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
        assert_eq!(poll(0, false), found(&[]));
        sys.device("sda", "8:0");
        assert_eq!(poll(500, false), None, "not yet");
        assert_eq!(poll(1000, false), found(&["sda"]));
        assert_eq!(poll(2000, false), None, "nothing has changed");
        sys.device("sdb", "8:16");
        sys.remove("sda", "8:0");
        assert_eq!(poll(2100, true), found(&["sdb"]), "at once");
        // Another disk of the same name. The kernel gives its link another inode number; this file system does so while the
        // old link exists.
        let block = sys.0.path().join("block");
        std::fs::rename(block.join("sdb"), sys.0.path().join("old")).unwrap();
        std::os::unix::fs::symlink(sys.0.path().join("devices/sdb"), block.join("sdb")).unwrap();
        assert_eq!(poll(3200, false), found(&["sdb"]));
        assert_eq!(poll(4200, false), None);
        // A change that the listing does not show.
        std::fs::write(sys.0.path().join("devices/sdb/size"), "0\n").unwrap();
        assert_eq!(poll(13_100, false), None);
        assert_eq!(poll(14_100, false), found(&[]));
    }
}
