//! Where a file lies on its file system's device (`FS_IOC_FIEMAP`).

#![expect(unsafe_code, reason = "the ioctl has no safe wrapper")]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// A part of a file that lies in one piece, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins in the file.
    pub offset: u64,
    /// Where it begins on the device.
    pub place: u64,
    /// Its length.
    pub length: u64,
}

/// Extents that one call returns.
const EXTENTS: usize = 64;
/// Calls for one file: with more extents than in all of these, the rest is not known.
const MAX_CALLS: usize = 64;

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
const LAST: u32 = 1;
/// The place is not known, not yet given, not the device's, or has not the file's content: `UNKNOWN`, `DELALLOC`, `ENCODED`,
/// `DATA_ENCRYPTED`, `NOT_ALIGNED`, `DATA_INLINE`, `DATA_TAIL`, `UNWRITTEN`.
const ELSEWHERE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS],
}

/// The parts of a file whose place is known, in the file's order. What was not written yet has none.
///
/// # Errors
/// As `ioctl(2)`: `EOPNOTSUPP` where the file system cannot tell.
pub fn extents(file: &impl AsFd) -> std::result::Result<Vec<Extent>, Errno> {
    let mut found = Vec::new();
    let mut start = 0;
    for _ in 0..MAX_CALLS {
        let mut map = Fiemap {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: u32::try_from(EXTENTS).unwrap_or(0),
            reserved: 0,
            extents: [RawExtent::default(); EXTENTS],
        };
        // SAFETY: the structure has the kernel's layout, room for as many extents as it says, and lives through the call.
        let done = unsafe {
            libc::ioctl(
                file.as_fd().as_raw_fd(),
                FS_IOC_FIEMAP,
                std::ptr::from_mut(&mut map),
            )
        };
        if done != 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        let mapped = usize::try_from(map.mapped).unwrap_or(0).min(EXTENTS);
        let part = map.extents.get(..mapped).unwrap_or_default();
        let known = part.iter().filter(|extent| extent.flags & ELSEWHERE == 0);
        found.extend(known.map(|extent| Extent {
            offset: extent.logical,
            place: extent.physical,
            length: extent.length,
        }));
        let Some(last) = part.last() else { break };
        let next = last.logical.saturating_add(last.length);
        if last.flags & LAST != 0 || next <= start {
            break;
        }
        start = next;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn a_written_file_has_a_place_and_its_holes_have_none() {
        let file = tempfile::tempfile().unwrap();
        for at in [0, 1 << 20] {
            file.write_all_at(&[7; 8192], at).unwrap();
        }
        file.sync_all().unwrap();
        let found = match extents(&file) {
            Ok(found) => found,
            // The directory is on a tmpfs, say.
            Err(errno) => return assert_eq!(errno, Errno::OPNOTSUPP),
        };
        let offsets: Vec<u64> = found.iter().map(|extent| extent.offset).collect();
        assert_eq!(offsets, [0, 1 << 20]);
        assert!(
            found
                .iter()
                .all(|extent| extent.place > 0 && extent.length == 8192)
        );
    }

    #[test]
    fn more_extents_than_one_call_returns() {
        let file = tempfile::tempfile().unwrap();
        let count = 3 * EXTENTS as u64 + 5;
        for at in 0..count {
            file.write_all_at(&[7; 4096], at * 8192).unwrap();
        }
        file.sync_all().unwrap();
        if let Ok(found) = extents(&file) {
            let offsets: Vec<u64> = found.iter().map(|extent| extent.offset).collect();
            assert_eq!(offsets, (0..count).map(|at| at * 8192).collect::<Vec<_>>());
        }
    }
}
