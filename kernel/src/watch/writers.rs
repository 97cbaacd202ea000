//! Which process writes a knob, by fanotify: its events name the writer.
//!
//! cgroupfs reports writes through its files (`FAN_MODIFY`), whichever mount they come through. A mark on a cgroup's
//! directory reports those of its files; a mark on a file would stay, with the file's inode, when the cgroup is removed. The
//! files are told apart by their inode numbers: their paths are those of the writer's mounts, which it chooses.
//!
//! With `FAN_REPORT_PIDFD` (since 5.15) the kernel opens the writer's process with the event, so that another one that has
//! its number by now is not taken for it.

#![expect(
    unsafe_code,
    reason = "descriptors in fanotify's events have no safe wrapper that reads the process's, too"
)]

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, fstat, statat};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::cgroup::{Cgroup, CgroupId};
use crate::error::{Error, Operation, Result};
use crate::knob::Knob;
use crate::proc::process::Process;

/// A write of a watched file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileWrite {
    /// The cgroup.
    pub cgroup: CgroupId,
    /// The file's name.
    pub file: &'static str,
    /// The process that wrote it.
    pub writer: Writer,
}

/// A process that wrote, as far as it can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writer {
    /// It was there when its event was read.
    Process(Process),
    /// It had ended by then; its number.
    Ended(i32),
    /// It is in no process namespace that this process sees.
    Hidden,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// The writes, those of one process that are alike together. Their order is not certain.
    pub writes: Vec<FileWrite>,
    /// Whether some are missing.
    pub lost: bool,
}

/// Watches which processes write knobs of cgroups. Needs `CAP_SYS_ADMIN`.
#[derive(Debug)]
pub struct WriteWatcher {
    fanotify: Fanotify,
    /// The directories that are marked.
    marked: HashMap<CgroupId, Cgroup>,
    /// The watched files by device and inode.
    files: HashMap<(u64, u64), (CgroupId, &'static str)>,
}

/// The events of a directory's files that are reported.
const EVENTS: MaskFlags = MaskFlags::FAN_MODIFY.union(MaskFlags::FAN_EVENT_ON_CHILD);
/// How many reads one [`WriteWatcher::drain`] makes at most, of [`BUFFER`] bytes each.
const MAX_READS: usize = 64;
/// About a hundred events. Each holds two descriptors until the buffer is worked off.
const BUFFER: usize = 4 << 10;

fn failed(errno: nix::Error) -> Error {
    Error::Io {
        operation: Operation::Watch,
        path: PathBuf::from("fanotify"),
        // Both crates have the kernel's numbers.
        errno: Errno::from_raw_os_error(errno as i32),
    }
}

impl WriteWatcher {
    /// A watcher of nothing yet.
    ///
    /// # Errors
    /// `EPERM` without the capability, `ENOSYS` or `EINVAL` where the kernel cannot do it.
    pub fn new() -> Result<Self> {
        let flags = InitFlags::FAN_CLASS_NOTIF
            | InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_REPORT_PIDFD
            | InitFlags::FAN_UNLIMITED_MARKS;
        let files = EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC | EventFFlags::O_LARGEFILE;
        Ok(Self {
            fanotify: Fanotify::init(flags, files).map_err(failed)?,
            marked: HashMap::new(),
            files: HashMap::new(),
        })
    }

    /// Watches the file of `knob` in `cgroup`, from now on.
    ///
    /// # Errors
    /// [`Error::Gone`], and what the kernel refuses.
    pub fn watch(&mut self, cgroup: &Cgroup, knob: Knob) -> Result<()> {
        let (id, file) = (cgroup.id(), knob.file());
        let found = statat(cgroup.as_fd(), file, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| cgroup.failed(Operation::Stat, Some(file), errno))?;
        if !self.marked.contains_key(&id) {
            self.mark(MarkFlags::FAN_MARK_ADD, cgroup)?;
            self.marked.insert(id, cgroup.clone());
        }
        self.files.insert((found.st_dev, found.st_ino), (id, file));
        Ok(())
    }

    /// Whether a file of this cgroup is watched.
    #[must_use]
    pub fn watches(&self, id: CgroupId) -> bool {
        self.marked.contains_key(&id)
    }

    /// Watches no file of this cgroup any more. Also of one that was removed: the mark would keep its inode.
    pub fn forget(&mut self, id: CgroupId) {
        let Some(cgroup) = self.marked.remove(&id) else {
            return;
        };
        self.files.retain(|_, (of, _)| *of != id);
        // Without a mark there is nothing to remove.
        let _ = self.mark(MarkFlags::FAN_MARK_REMOVE, &cgroup);
    }

    /// Adds or removes the mark of a cgroup's directory, by the descriptor that is held of it.
    fn mark(&self, how: MarkFlags, cgroup: &Cgroup) -> Result<()> {
        let path = format!("/proc/self/fd/{}", cgroup.as_fd().as_raw_fd());
        let how = how | MarkFlags::FAN_MARK_ONLYDIR;
        self.fanotify
            .mark(how, EVENTS, rustix::fs::CWD, Some(path.as_str()))
            .map_err(failed)
    }

    /// Waits until there is something to read, for `timeout` at most.
    pub fn wait(&self, timeout: std::time::Duration) {
        let mut fds = [PollFd::new(&self.fanotify, PollFlags::IN)];
        // If it is interrupted, the wait is shorter.
        let _ = poll(&mut fds, Timespec::try_from(timeout).ok().as_ref());
    }

    /// The writes since the last call, but for those of this process; never waits.
    pub fn drain(&mut self) -> Writes {
        let mut found = Writes::default();
        let mut buffer = [0; BUFFER];
        // Bounded, so that a process that writes in a loop cannot keep the caller here.
        for _ in 0..MAX_READS {
            match rustix::io::read(&self.fanotify, &mut buffer) {
                Ok(read) => self.note(buffer.get(..read).unwrap_or_default(), &mut found),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The file was removed with its cgroup meanwhile: its writer does not matter any more.
                Err(Errno::NODEV | Errno::NOENT | Errno::STALE) => {}
                // For want of a descriptor, or because the file cannot be opened: that event is gone.
                Err(_) => found.lost = true,
            }
        }
        found
    }

    /// Takes the events of one read, and the descriptors in them.
    fn note(&self, mut events: &[u8], found: &mut Writes) {
        let own = i32::try_from(std::process::id()).ok();
        while let Some((event, rest)) = RawEvent::first(events) {
            events = rest;
            found.lost |= event.mask & MaskFlags::FAN_Q_OVERFLOW.bits() != 0;
            let file = event.file.and_then(|file| fstat(file).ok());
            let file = file.and_then(|file| self.files.get(&(file.st_dev, file.st_ino)));
            let Some((cgroup, file)) = file.copied().filter(|_| Some(event.pid) != own) else {
                continue;
            };
            let writer = writer(event.pid, event.process.as_ref());
            let write = FileWrite {
                cgroup,
                file,
                writer,
            };
            if !found.writes.contains(&write) {
                found.writes.push(write);
            }
        }
    }
}

/// Readable when [`WriteWatcher::drain`] has something to return.
impl AsFd for WriteWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fanotify.as_fd()
    }
}

fn writer(pid: i32, process: Option<&OwnedFd>) -> Writer {
    let Ok(number) = u32::try_from(pid) else {
        return Writer::Hidden;
    };
    if number == 0 {
        return Writer::Hidden;
    }
    // What was read of the number is the writer's if that has not ended since.
    let found = Process::read(number);
    match (found, process) {
        (Some(found), Some(process)) if is_alive(process) => Writer::Process(found),
        _ => Writer::Ended(pid),
    }
}

/// Whether the process of a pidfd has not ended.
fn is_alive(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)) == Ok(0)
}

/// An event with its descriptors, which are closed with it (`struct fanotify_event_metadata`, and
/// `struct fanotify_event_info_pidfd` behind it; linux/fanotify.h).
struct RawEvent {
    mask: u64,
    pid: i32,
    /// The file that was written, opened anew.
    file: Option<OwnedFd>,
    /// The process that wrote it.
    process: Option<OwnedFd>,
}

impl RawEvent {
    /// The length of `struct fanotify_event_metadata`.
    const HEAD: usize = 24;
    /// `FAN_EVENT_INFO_TYPE_PIDFD`.
    const PIDFD: u8 = 4;

    /// The first event of what the kernel has returned, and the rest of it.
    fn first(events: &[u8]) -> Option<(Self, &[u8])> {
        let head = events.get(..Self::HEAD)?;
        let length = usize::try_from(u32::from_ne_bytes(bytes(head, 0)?)).ok()?;
        let (event, rest) = events.split_at_checked(length.max(Self::HEAD))?;
        let begin = usize::from(u16::from_ne_bytes(bytes(head, 6)?));
        let info = event.get(begin..).unwrap_or_default();
        let process = (info.first() == Some(&Self::PIDFD))
            .then(|| bytes(info, 4).map(i32::from_ne_bytes))
            .flatten();
        let event = Self {
            mask: u64::from_ne_bytes(bytes(head, 8)?),
            pid: i32::from_ne_bytes(bytes(head, 20)?),
            file: owned(i32::from_ne_bytes(bytes(head, 16)?)),
            process: process.and_then(owned),
        };
        Some((event, rest))
    }
}

/// `N` bytes from `at` on.
fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..at + N)?.try_into().ok()
}

/// A descriptor of an event; `None` for the negative numbers that stand for none.
fn owned(descriptor: i32) -> Option<OwnedFd> {
    // SAFETY: the kernel has opened this descriptor for the event that was just read, each event is looked at once, and
    // nothing else owns it.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::CgroupFs;
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    const KNOB: Knob = Knob::MemoryLow;

    /// A cgroup of plain files, watched. `None` where this process may not watch.
    fn watched(dir: &Path) -> Option<(Cgroup, WriteWatcher)> {
        std::fs::create_dir(dir.join("a")).unwrap();
        for file in ["memory.low", "memory.min"] {
            std::fs::write(dir.join("a").join(file), "0\n").unwrap();
        }
        let fs = CgroupFs::open_fixture(dir).unwrap();
        let cgroup = Cgroup::open_at(&fs, Path::new("a")).unwrap();
        let mut watcher = match WriteWatcher::new() {
            Ok(watcher) => watcher,
            Err(error) => {
                eprintln!("not tested: {error}");
                return None;
            }
        };
        watcher.watch(&cgroup, KNOB).unwrap();
        Some((cgroup, watcher))
    }

    /// Descriptors of processes that this one has, those of tests beside this one among them.
    fn process_descriptors() -> usize {
        let own = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = own.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links
            .filter(|link| link.to_string_lossy().contains("pidfd"))
            .count()
    }

    /// One that writes `file` and stays until its input ends.
    fn writer_of(file: &Path) -> std::process::Child {
        let script = format!("echo 5 >{}; echo; read end", file.display());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        child
    }

    #[test]
    fn a_write_names_its_process_and_one_that_has_ended_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let Some((cgroup, mut watcher)) = watched(dir.path()) else {
            return;
        };
        assert_eq!(watcher.drain(), Writes::default());
        // Neither our own writes, nor of another file.
        std::fs::write(dir.path().join("a/memory.low"), "7\n").unwrap();
        let mut other = writer_of(&dir.path().join("a/memory.min"));
        assert_eq!(watcher.drain(), Writes::default());
        let mut child = writer_of(&dir.path().join("a/memory.low"));
        watcher.wait(Duration::from_secs(20));
        let found = watcher.drain();
        let [write] = found.writes.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!((write.cgroup, write.file), (cgroup.id(), "memory.low"));
        let Writer::Process(process) = &write.writer else {
            panic!("{write:?}");
        };
        assert_eq!(process.pid, child.id());
        assert!(process.exe.is_some() && process.cgroup.has_root());

        for child in [&mut child, &mut other] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        let mut child = writer_of(&dir.path().join("a/memory.low"));
        drop(child.stdin.take());
        child.wait().unwrap();
        let ended = Writer::Ended(i32::try_from(child.id()).unwrap());
        assert_eq!(watcher.drain().writes[0].writer, ended);
    }

    #[test]
    fn what_is_forgotten_is_not_reported_and_no_descriptor_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let Some((cgroup, mut watcher)) = watched(dir.path()) else {
            return;
        };
        let low = dir.path().join("a/memory.low");
        let shell = |script: &str| {
            let done = Command::new("sh").args(["-c", script]).status().unwrap();
            assert!(done.success());
        };
        shell(&format!(
            "for n in 1 2 3 4 5 6 7 8 9; do sh -c 'echo 1 >{}'; done",
            low.display()
        ));
        assert_eq!(watcher.drain().writes.len(), 9);
        // Others come and go; what is left stays.
        let is_left = |_| {
            std::thread::sleep(Duration::from_millis(50));
            process_descriptors() > 0
        };
        assert!(!(0..200).all(is_left), "{}", process_descriptors());
        watcher.forget(cgroup.id());
        assert!(!watcher.watches(cgroup.id()));
        shell(&format!("echo 1 >{}", low.display()));
        assert_eq!(watcher.drain(), Writes::default());
    }

    #[test]
    fn events_that_are_cut_or_odd_are_passed_over() {
        let event = |length: u32, begin: u16| {
            let mut event = length.to_ne_bytes().to_vec();
            event.extend([3, 0]);
            event.extend(begin.to_ne_bytes());
            event.extend(MaskFlags::FAN_Q_OVERFLOW.bits().to_ne_bytes());
            event.extend((-1_i32).to_ne_bytes());
            event.extend(7_i32.to_ne_bytes());
            event
        };
        let whole = event(24, 24);
        for cut in 0..24 {
            assert!(RawEvent::first(&whole[..cut]).is_none(), "{cut}");
        }
        let (first, rest) = RawEvent::first(&whole).unwrap();
        assert_eq!((first.pid, rest.len()), (7, 0));
        assert!(first.file.is_none() && first.process.is_none());
        // Lengths that say too little and too much, and information that begins behind the end.
        assert_eq!(RawEvent::first(&event(0, 24)).unwrap().1.len(), 0);
        assert!(RawEvent::first(&event(25, 24)).is_none());
        assert!(RawEvent::first(&event(24, 900)).is_some());
    }
}
