//! Where the kernel's interfaces are looked for.

use std::path::PathBuf;

/// Where to look.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The procfs.
    pub proc: PathBuf,
    /// The sysfs.
    pub sys: PathBuf,
    /// Whether the mount must really be of cgroup v2; `false` for fixtures.
    pub verify_cgroup2: bool,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            verify_cgroup2: true,
        }
    }
}
