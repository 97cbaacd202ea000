//! What looks like an image of another format than raw: served as it is, a guest would see the format's tables for its disk.

use rustix::io::pread;
use std::fs::File;
use std::io;

/// Formats by the bytes with which a file begins: those that QEMU reads.
const BEGINNINGS: [(&[u8], &str); 10] = [
    (b"QFI\xfb", "qcow2"),
    (b"QED\0", "QED"),
    (b"KDMV", "VMDK"),
    (b"COWD", "VMDK"),
    (b"# Disk DescriptorFile", "VMDK"),
    (b"vhdxfile", "VHDX"),
    (b"conectix", "VHD"),
    (b"WithoutFreeSpace", "Parallels"),
    (b"WithouFreSpacExt", "Parallels"),
    (b"Bochs Virtual HD Image", "Bochs"),
];

/// VDI has a text before its mark.
const VDI: (usize, [u8; 4]) = (64, [0x7f, 0x10, 0xda, 0xbe]);

/// Formats by the bytes with which their last 512 bytes begin.
const ENDS: [(&[u8], &str); 2] = [(b"conectix", "VHD"), (b"koly", "DMG")];

/// The format that the image looks like; `None` for raw. `file` may be read anywhere.
pub(super) fn foreign(file: &File, size: u64) -> io::Result<Option<&'static str>> {
    let beginning = read(file, 0)?;
    let (at, vdi) = VDI;
    if beginning
        .get(at..)
        .is_some_and(|rest| rest.starts_with(&vdi))
    {
        return Ok(Some("VDI"));
    }
    let known = |formats: &[(&[u8], &'static str)], found: &[u8]| {
        let mut formats = formats.iter();
        formats
            .find(|(bytes, _)| found.starts_with(bytes))
            .map(|(_, name)| *name)
    };
    if let Some(name) = known(&BEGINNINGS, &beginning) {
        return Ok(Some(name));
    }
    match size.checked_sub(512) {
        Some(end) => Ok(known(&ENDS, &read(file, end)?)),
        None => Ok(None),
    }
}

fn read(file: &File, at: u64) -> io::Result<Vec<u8>> {
    let mut found = vec![0; 512];
    let count = pread(file, &mut found, at)?;
    found.truncate(count);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn other_formats_are_known_and_raw_images_are_none() {
        let of = |at: u64, bytes: &[u8]| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 20).unwrap();
            file.write_all_at(bytes, at).unwrap();
            foreign(&file, 1 << 20).unwrap()
        };
        for (bytes, name) in BEGINNINGS {
            assert_eq!(of(0, bytes), Some(name));
            assert_eq!(of(512, bytes), None);
        }
        assert_eq!(of(64, &VDI.1), Some("VDI"));
        for (bytes, name) in ENDS {
            assert_eq!(of((1 << 20) - 512, bytes), Some(name));
        }
        // A partition table, a LUKS header, nothing.
        assert_eq!(of(510, &[0x55, 0xaa]), None);
        assert_eq!(of(0, b"LUKS\xba\xbe"), None);
        let empty = tempfile::tempfile().unwrap();
        assert_eq!(foreign(&empty, 0).unwrap(), None);
    }
}
