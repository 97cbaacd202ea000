//! What looks like an image of another format than raw, by what it begins with: read as a disk, its tables would be taken for
//! the disk's blocks.

/// Formats by the bytes with which a file begins: those that QEMU reads.
pub const BEGINNINGS: [(&[u8], &str); 10] = [
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

/// VDI has a text before its mark: where that is, and what.
pub const VDI: (usize, [u8; 4]) = (64, [0x7f, 0x10, 0xda, 0xbe]);

/// The name of the format of an image that begins with these bytes, of which 512 are enough; `None` for raw, and for a format
/// that has its mark at its end.
#[must_use]
pub fn of_beginning(beginning: &[u8]) -> Option<&'static str> {
    let (at, vdi) = VDI;
    let rest = beginning.get(at..).unwrap_or_default();
    match rest.starts_with(&vdi) {
        true => Some("VDI"),
        false => named(&BEGINNINGS, beginning),
    }
}

/// The name of the first of `formats` whose bytes `found` begins with.
#[must_use]
pub fn named(formats: &[(&[u8], &'static str)], found: &[u8]) -> Option<&'static str> {
    let mut formats = formats.iter();
    formats
        .find(|(bytes, _)| found.starts_with(bytes))
        .map(|(_, name)| *name)
}
