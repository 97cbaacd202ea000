//! The kernel's release: `6.12.117+deb12-cloud-amd64`.

use std::path::Path;

use crate::buffer::read_path;
use crate::error::Result;
use crate::parse;

/// A longer text is cut here.
const MAX_LEN: usize = 128;

/// Major and minor number of a kernel release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelVersion {
    /// The first number.
    pub major: u64,
    /// The second number.
    pub minor: u64,
}

impl KernelVersion {
    /// Version `major.minor`.
    #[must_use]
    pub const fn new(major: u64, minor: u64) -> Self {
        Self { major, minor }
    }

    /// Reads the first two numbers of a release; `None` if it does not begin with two numbers.
    #[must_use]
    pub fn parse(release: &str) -> Option<Self> {
        let mut parts = release.as_bytes().split(|byte| !byte.is_ascii_digit());
        Some(Self {
            major: parse::number(parts.next()?)?,
            minor: parse::number(parts.next()?)?,
        })
    }
}

impl std::fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The release of the running kernel, below the procfs at `proc` (`/proc`). Bytes that are not printable are escaped.
///
/// # Errors
/// If `sys/kernel/osrelease` cannot be read.
pub fn release(proc: &Path) -> Result<String> {
    read_path(&proc.join("sys/kernel/osrelease"), |text| {
        let text = text.get(..MAX_LEN).unwrap_or(text).trim_ascii();
        text.escape_ascii().to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_numbers_are_the_version() {
        for (text, expected) in [
            (
                "6.12.117+deb12-cloud-amd64",
                Some(KernelVersion::new(6, 12)),
            ),
            ("6.1", Some(KernelVersion::new(6, 1))),
            ("7.0-rc1", Some(KernelVersion::new(7, 0))),
            ("6", None),
            ("", None),
            ("six.1", None),
        ] {
            assert_eq!(KernelVersion::parse(text), expected, "{text}");
        }
        assert!(KernelVersion::new(6, 9) < KernelVersion::new(6, 12));
        assert_eq!(KernelVersion::new(6, 12).to_string(), "6.12");
    }

    #[test]
    fn the_release_is_bounded_and_printable() {
        let dir = tempfile::tempdir().unwrap();
        assert!(release(dir.path()).unwrap_err().is_missing());
        let file = dir.path().join("sys/kernel/osrelease");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, b"6.1\xff\n").unwrap();
        assert_eq!(release(dir.path()).unwrap(), r"6.1\xff");
        std::fs::write(&file, "6".repeat(1000)).unwrap();
        assert_eq!(release(dir.path()).unwrap().len(), MAX_LEN);
    }
}
