//! The file system of the state directory. The journal of the knobs is synced before each write of a knob, and must not wait
//! for a disk that the agent itself throttles.

use std::path::{Path, PathBuf};

use rustix::fs::{FsWord, StatFs, statfs};

use super::settings::Config;
use justitia_api::escape;

/// File systems in memory (linux/magic.h).
const IN_MEMORY: [FsWord; 2] = [/* tmpfs */ 0x0102_1994, /* ramfs */ 0x8584_58f6];
/// Names of common file systems on disks (linux/magic.h).
const NAMES: [(FsWord, &str); 6] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0x794c_7630, "overlayfs"),
    (0x6969, "nfs"),
];

/// The state directory is not in memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected the state directory {} on a memory file system (tmpfs), found {found}: before each change of a knob its value \
     is synced there, which waits for that disk{}; set `state_dir` in the configuration to a directory below /run{}",
    escape::encode(path.as_os_str()),
    if *credits { ", which [io] may throttle" } else { "" },
    if *credits { ", or set [io] enabled = false" } else { "" }
)]
pub struct StateOnDisk {
    path: PathBuf,
    found: String,
    credits: bool,
}

impl StateOnDisk {
    /// Whether the agent refuses to run with it: only if it may throttle the disk.
    #[must_use]
    pub const fn refused(&self) -> bool {
        self.credits
    }
}

impl Config {
    /// The state directory's file system, if it is not in memory. A directory that does not exist yet is judged by the one
    /// above it. `None` also where the file system cannot be read: then opening the directory fails later.
    #[must_use]
    pub fn state_on_disk(&self) -> Option<StateOnDisk> {
        let found = on_disk(&nearest(&self.state_dir)?)?;
        Some(StateOnDisk {
            path: self.state_dir.clone(),
            found,
            credits: self.io.enabled,
        })
    }
}

/// The file system of `path`, or of the nearest existing directory above it.
fn nearest(path: &Path) -> Option<StatFs> {
    path.ancestors().find_map(|at| statfs(at).ok())
}

/// The name of a file system that is not in memory.
fn on_disk(found: &StatFs) -> Option<String> {
    let magic = found.f_type;
    if IN_MEMORY.contains(&magic) {
        return None;
    }
    let name = NAMES.iter().find(|(known, _)| *known == magic);
    Some(name.map_or_else(
        || format!("a file system of type {magic:#x}"),
        |(_, name)| (*name).to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Io;

    fn of(state: &str, credits: bool) -> Option<StateOnDisk> {
        let config = Config {
            state_dir: PathBuf::from(state),
            io: Io { enabled: credits },
            ..Config::default()
        };
        config.state_on_disk()
    }

    #[test]
    fn the_state_belongs_in_memory() {
        // Neither exists yet: the nearest directory above counts.
        assert_eq!(of("/dev/shm/no/such/justitia", true), None);
        let odd = of("/proc/self/no/such", false).unwrap();
        assert!(!odd.refused());
        let text = odd.to_string();
        assert!(
            text.starts_with(
                "expected the state directory /proc/self/no/such on a memory file system (tmpfs), found a file system \
                 of type 0x9fa0: "
            ) && text.ends_with("to a directory below /run"),
            "{text}"
        );
        let bad = of("/proc/self", true).unwrap();
        assert!(bad.refused());
        let text = bad.to_string();
        assert!(
            text.contains("which [io] may throttle")
                && text.ends_with("or set [io] enabled = false"),
            "{text}"
        );
    }
}
