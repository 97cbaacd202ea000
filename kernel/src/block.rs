//! Attributes of block devices below `/sys/block` (Documentation/block/switching-sched.rst).

use std::path::Path;

use crate::buffer::read_path;
use crate::io::DevId;
use crate::parse;

/// The I/O scheduler in use on the disk whose directory is `disk` (`/sys/block/NAME`), such as `none` or `bfq`; `None`
/// if its `queue/scheduler` cannot be read or names none.
#[must_use]
pub fn scheduler(disk: &Path) -> Option<String> {
    let parse = |text: &[u8]| active(text).map(|name| String::from_utf8_lossy(name).into_owned());
    read_path(&disk.join("queue/scheduler"), parse).ok()?
}

/// The names of the disks below `sys_block` (`/sys/block`) that BFQ schedules, sorted.
///
/// # Errors
/// When the directory cannot be listed.
pub fn bfq_disks(sys_block: &Path) -> std::io::Result<Vec<String>> {
    let disks = std::fs::read_dir(sys_block)?.flatten();
    let mut names: Vec<_> = disks
        .filter(|disk| scheduler(&disk.path()).as_deref() == Some("bfq"))
        .map(|disk| disk.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// The name of a disk (`sda`), by its number. `sys_dev_block` is `/sys/dev/block`. `None` if there is no such disk.
#[must_use]
pub fn disk_name(sys_dev_block: &Path, device: DevId) -> Option<String> {
    let disk = std::fs::read_link(sys_dev_block.join(device.to_string())).ok()?;
    Some(disk.file_name()?.to_string_lossy().into_owned())
}

/// The name in brackets of `none mq-deadline [bfq]`.
fn active(text: &[u8]) -> Option<&[u8]> {
    parse::words(text.trim_ascii()).find_map(|word| word.strip_prefix(b"[")?.strip_suffix(b"]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_called_as_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let device = |minor| DevId { major: 8, minor };
        std::os::unix::fs::symlink("../../devices/ata1/block/sda", dir.path().join("8:0")).unwrap();
        std::fs::write(dir.path().join("8:1"), "no link").unwrap();
        for (minor, expected) in [(0, Some("sda")), (1, None), (2, None)] {
            let found = disk_name(dir.path(), device(minor));
            assert_eq!(found.as_deref(), expected, "8:{minor}");
        }
    }

    #[test]
    fn the_scheduler_in_brackets_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(scheduler(dir.path()), None);
        std::fs::create_dir(dir.path().join("queue")).unwrap();
        for (text, expected) in [
            ("none mq-deadline [bfq]\n", Some("bfq")),
            ("[none] bfq\n", Some("none")),
            ("none bfq\n", None),
            ("", None),
        ] {
            std::fs::write(dir.path().join("queue/scheduler"), text).unwrap();
            assert_eq!(scheduler(dir.path()).as_deref(), expected, "{text}");
        }
    }
}
