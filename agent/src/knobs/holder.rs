//! Finds a killed agent that still holds a lock: one of its threads waits in the kernel for memory or a disk, and the kernel
//! closes its files only after that.

use std::fs::{read_dir, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};

/// The bit of SIGKILL (9) in a signal mask.
const SIGKILL: u64 = 1 << 8;

/// The process that holds a flock(2) on the file `locked`, if it was killed and has not ended. It writes no knob any more: only
/// its main thread does, which has ended. The others end before they return from the kernel. `proc`: the mount of procfs.
pub(super) fn killed(proc: &Path, locked: &Path) -> Option<u32> {
    let file = std::fs::metadata(locked).ok()?;
    let (major, minor) = (major(file.dev()), minor(file.dev()));
    let inode = format!("{major:02x}:{minor:02x}:{}", file.ino());
    let locks = read_to_string(proc.join("locks")).ok()?;
    let pid = locks.lines().find_map(|line| holder(line, &inode))?;
    is_killed(&proc.join(pid.to_string())).then_some(pid)
}

/// The process of a line of /proc/locks, if it holds a flock(2) on this file: `1: FLOCK  ADVISORY  WRITE 7 00:19:42 0 EOF`.
/// Lines of waiting processes have a `->`.
fn holder(line: &str, inode: &str) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let is_held = words.next() == Some("FLOCK");
    let pid = words.nth(2)?.parse().ok()?;
    (is_held && words.next() == Some(inode)).then_some(pid)
}

/// Whether the process's main thread has ended, and all others wait in the kernel with SIGKILL pending.
fn is_killed(process: &Path) -> bool {
    let Some(pid) = process.file_name() else {
        return false;
    };
    let Ok(threads) = read_dir(process.join("task")) else {
        return false;
    };
    let mut others = 0;
    for thread in threads {
        let Ok(thread) = thread else { return false };
        let status = read_to_string(thread.path().join("status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let state = field("State:").and_then(|state| state.trim().chars().next());
        let pending = field("SigPnd:").and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        let is_dying = pending.is_some_and(|set| set & SIGKILL != 0);
        match state {
            Some('Z') if thread.file_name() == pid => {}
            Some('D') if is_dying && thread.file_name() != pid => others += 1,
            _ => return false,
        }
    }
    others > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of these threads: number, state and pending signals.
    fn process(proc: &Path, threads: &[(u32, &str, &str)]) {
        let _ = std::fs::remove_dir_all(proc.join("7"));
        for (number, state, pending) in threads {
            let thread = proc.join(format!("7/task/{number}"));
            std::fs::create_dir_all(&thread).unwrap();
            let status =
                format!("Name:\tjustitia\nState:\t{state} (x)\nSigPnd:\t{pending}\nShdPnd:\t0\n");
            std::fs::write(thread.join("status"), status).unwrap();
        }
    }

    #[test]
    fn a_process_is_killed_if_no_thread_of_it_returns_from_the_kernel() {
        let (kill, other) = ("0000000000000100", "0000000000000200");
        let dir = tempfile::tempdir().unwrap();
        for (threads, expected) in [
            (&[(7, "Z", "0"), (8, "D", kill)][..], true),
            (&[(7, "Z", "0"), (8, "D", kill), (9, "D", "104")], true),
            (&[(7, "Z", "0"), (8, "D", kill), (9, "D", other)], false),
            (&[(7, "Z", "0"), (8, "D", kill), (9, "R", kill)], false),
            (&[(7, "D", kill), (8, "D", kill)], false),
            (&[(7, "S", "0")], false),
            (&[(7, "Z", "0")], false),
            (&[], false),
        ] {
            process(dir.path(), threads);
            assert_eq!(is_killed(&dir.path().join("7")), expected, "{threads:?}");
        }
    }

    #[test]
    fn who_holds_a_lock_is_found() {
        let inode = "00:19:42";
        for (line, expected) in [
            ("1: FLOCK  ADVISORY  WRITE 7 00:19:42 0 EOF", Some(7)),
            ("1: FLOCK  ADVISORY  WRITE 7 00:19:421 0 EOF", None),
            ("1: -> FLOCK  ADVISORY  WRITE 7 00:19:42 0 EOF", None),
            ("1: POSIX  ADVISORY  WRITE 7 00:19:42 0 EOF", None),
            ("1: FLOCK  ADVISORY  WRITE -1 00:19:42 0 EOF", None),
            ("1: FLOCK", None),
        ] {
            assert_eq!(holder(line, inode), expected, "{line}");
        }
        // As this kernel writes it.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = std::fs::File::create(&path).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let (of, locks) = (
            path.metadata().unwrap(),
            read_to_string("/proc/locks").unwrap(),
        );
        let inode = format!(
            "{:02x}:{:02x}:{}",
            major(of.dev()),
            minor(of.dev()),
            of.ino()
        );
        let found = locks.lines().find_map(|line| holder(line, &inode));
        assert_eq!(found, Some(std::process::id()), "{inode} in {locks}");
        assert_eq!(killed(Path::new("/proc"), &path), None, "it runs");
    }
}
