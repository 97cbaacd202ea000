//! Intervals of a disk's own counters (Documentation/admin-guide/iostats.rst), and the discovery of added and removed disks.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_share::num::to_f64;

use super::disk::{Disk, disks, entries};

/// The used fields of `/sys/block/NAME/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStat {
    /// Requests completed, reads and writes.
    pub completed: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Time with any request in flight, milliseconds.
    pub busy: u64,
    /// The same, multiplied by their number.
    pub waited: u64,
    /// Sectors read and written, 512 bytes each.
    pub sectors: u64,
}

impl DiskStat {
    /// Parses the file; `None` if it has another format.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let fields: Vec<u64> = text
            .split_ascii_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        let at = |index: usize| fields.get(index).copied();
        Some(Self {
            completed: at(0)? + at(4)?,
            in_flight: at(8)?,
            busy: at(9)?,
            waited: at(10)?,
            sectors: at(2)? + at(6)?,
        })
    }
}

/// Tenants may contend for a disk that is busy for this part of the time. A bottleneck also rests now and then, before the
/// waiting tenants send their next requests.
pub(super) const LOOKED_AT: f64 = 0.7;
/// A disk is busy from this part of the time on.
pub(super) const BUSY: f64 = 0.95;

/// An interval of a disk's counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its length, seconds.
    pub seconds: f64,
    /// The part of it in which the disk had requests, 0 to 1.
    pub busy: f64,
    /// The used part of io.cost's budget; more than 1 if it was saved or advanced. `None` without io.cost, or if it is not
    /// known yet.
    pub used: Option<f64>,
    /// Bytes read and written, per second.
    pub bytes: f64,
    /// Completed requests, per second.
    pub requests: f64,
    /// The growth of the requests in flight from its beginning to its end.
    pub queued: f64,
    /// The mean number of requests in flight.
    pub under_way: f64,
}

impl Interval {
    /// A quarter of a second in which the disk is always busy with one request, and completes this much a second.
    #[cfg(test)]
    pub(super) const fn busy(bytes: f64, requests: f64) -> Self {
        Self {
            seconds: 0.25,
            busy: 1.0,
            used: None,
            bytes,
            requests,
            queued: 0.0,
            under_way: 1.0,
        }
    }

    /// The part of it in which requests waited for the disk, or for io.cost before it, 0 to 1.
    #[must_use]
    pub fn occupied(&self) -> f64 {
        self.busy.max(self.used.unwrap_or(0.0).min(1.0))
    }
}

/// Bytes of a sector in `stat`, whatever the disk's own sectors are.
const SECTOR: f64 = 512.0;
/// More bytes than seventeen numbers take.
const MAX_TEXT: usize = 512;

/// Samples one disk.
#[derive(Debug)]
pub struct DiskSampler {
    /// Opened once: it belongs to this disk, and never to a later one with the same name. `None` once it cannot be read.
    file: Option<File>,
    last: Option<(Instant, DiskStat)>,
}

impl DiskSampler {
    /// The disk in this directory of `/sys/block`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            file: File::open(dir.join("stat")).ok(),
            last: None,
        }
    }

    /// Whether the disk is present: whether its counters can be read now.
    pub fn is_present(&mut self) -> bool {
        self.read().is_some()
    }

    /// Whether the last reading failed: the disk was removed.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.file.is_none()
    }

    /// The interval since the last sample; `None` for the first one, and once its counters could not be read.
    pub fn sample(&mut self, now: Instant) -> Option<Interval> {
        let stat = self.read()?;
        let (at, before) = self.last.replace((now, stat))?;
        let seconds = (now - at).as_secs_f64();
        interval(seconds, &before, &stat)
    }

    fn read(&mut self) -> Option<DiskStat> {
        let file = self.file.take()?;
        let mut text = [0; MAX_TEXT];
        let length = file.read_at(&mut text, 0).ok()?;
        let stat = DiskStat::parse(std::str::from_utf8(text.get(..length)?).ok()?)?;
        self.file = Some(file);
        Some(stat)
    }
}

fn interval(seconds: f64, before: &DiskStat, stat: &DiskStat) -> Option<Interval> {
    if seconds <= 0.0 {
        return None;
    }
    let busy = to_f64(stat.busy.saturating_sub(before.busy)) / 1000.0 / seconds;
    let per_second = |now: u64, then: u64| to_f64(now.saturating_sub(then)) / seconds;
    Some(Interval {
        seconds,
        busy: busy.min(1.0),
        used: None,
        bytes: per_second(stat.sectors, before.sectors) * SECTOR,
        requests: per_second(stat.completed, before.completed),
        queued: to_f64(stat.in_flight) - to_f64(before.in_flight),
        under_way: per_second(stat.waited, before.waited) / 1000.0,
    })
}

/// The period of listing the block devices. That is cheap, and shows added and removed devices.
const LIST_PERIOD: Duration = Duration::from_secs(1);
/// The period of reading each device even if the listing is the same. Its medium may have changed, it may have got a size, or
/// it may have become part of another device.
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

    /// Every present disk. `None` if nothing has changed since the last call, or the listing is not due; with `at_once` it is
    /// due. `None` also without a free file descriptor: then no disk counts as removed.
    pub fn poll(&mut self, at_once: bool, now: Instant) -> Option<Vec<Disk>> {
        let due = |at: Option<Instant>, period| at.is_none_or(|at| now - at >= period);
        if !at_once && !due(self.listed_at, LIST_PERIOD) {
            return None;
        }
        self.listed_at = Some(now);
        // List first, then read: a device added in between changes the next listing.
        let listing = list(&self.sys.join("block"))?;
        if !at_once && listing == self.listing && !due(self.read_at, READ_PERIOD) {
            return None;
        }
        let disks = disks(&self.sys)?;
        self.listing = listing;
        self.read_at = Some(now);
        Some(disks)
    }

    /// Has the next listing read even if it is the same: a device of the last one could not be used.
    pub const fn read_again(&mut self) {
        self.read_at = None;
    }
}

/// `None` if it cannot be read now.
fn list(block: &Path) -> Option<Vec<(OsString, u64)>> {
    let mut listing: Vec<_> = entries(block)
        .ok()?
        .into_iter()
        .map(|entry| (entry.file_name(), entry.ino()))
        .collect();
    listing.sort_unstable();
    Some(listing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::disk::tests::Sys;

    const TEXT: &str = "  100 5 800 40 200 9 3200 90 12 5000 130 3 0 24 1 7 2\n";

    #[test]
    fn counters() {
        let stat = DiskStat::parse(TEXT).unwrap();
        assert_eq!((stat.busy, stat.sectors), (5000, 4000));
        // Before discards came with 4.18, and flushes with 5.5.
        let old = DiskStat::parse("100 5 800 40 200 9 3200 90 12 5000 130").unwrap();
        assert_eq!(old, stat);
        for bad in ["", "1 2 3", "a b c d e f g h i j k"] {
            assert_eq!(DiskStat::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_disk_that_cannot_be_read_is_gone_even_if_another_has_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stat");
        assert!(DiskSampler::new(dir.path()).is_gone());
        std::fs::write(&path, TEXT).unwrap();
        let mut sampler = DiskSampler::new(dir.path());
        let begin = Instant::now();
        let mut sample = |seconds: f64| {
            let interval = sampler.sample(begin + std::time::Duration::from_secs_f64(seconds));
            (interval, sampler.is_gone())
        };
        assert_eq!(sample(0.0), (None, false), "the first sample");
        let later = "  100 5 800 40 220 9 3210 90 14 5100 140 3 0 24 1 7 2\n";
        std::fs::write(&path, later).unwrap();
        let (interval, failed) = sample(0.25);
        let expected = Interval {
            busy: 0.4,
            queued: 2.0,
            under_way: 0.04,
            ..Interval::busy(10.0 * SECTOR / 0.25, 20.0 / 0.25)
        };
        assert_eq!(interval, Some(expected));
        assert!(!failed);
        // As the kernel does for a disk that is removed; then another one gets its name.
        std::fs::write(&path, "").unwrap();
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        std::fs::write(&path, TEXT.replace("5000", "5200")).unwrap();
        assert_eq!((sample(0.5).0, sampler.is_gone()), (None, true));
        assert!(!sampler.is_present());
    }

    #[test]
    fn an_interval() {
        let before = DiskStat {
            busy: 100,
            ..DiskStat::default()
        };
        let now = DiskStat {
            busy: 590,
            ..DiskStat::default()
        };
        let interval = interval(0.5, &before, &now).unwrap();
        assert!((interval.busy - 0.98).abs() < 1e-9);
        assert_eq!(super::interval(0.0, &before, &now), None);
    }

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
