//! A request of the virtio block device (virtio 1.2, 5.2.6), without its buffers.

use super::limits::{MAX_RANGE_SECTORS, MAX_REQUEST, SECTOR};
use crate::frontend::{ContainerTag, Operation};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};

/// Bytes of the header, and of the segment of a discard or write-zeroes.
pub(crate) const HEADER: usize = 16;
/// The flag of a write-zeroes that may deallocate.
const UNMAP: u32 = 1;

/// The status byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Done.
    Ok,
    /// It failed.
    IoError,
    /// The device does not know it.
    Unsupported,
}

impl Status {
    /// The byte.
    #[must_use]
    pub(crate) fn code(self) -> u8 {
        let code = match self {
            Self::Ok => VIRTIO_BLK_S_OK,
            Self::IoError => VIRTIO_BLK_S_IOERR,
            Self::Unsupported => VIRTIO_BLK_S_UNSUPP,
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

/// A parsed request. Its range, in bytes, lies inside the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// An operation of a volume, with its offset and length in bytes. A read or write is at most the device's largest request.
    Do(Operation, u64, u64),
    /// The disk's name.
    GetId,
    /// It cannot be served.
    Refused(Status),
}

/// The disk's properties for the check of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceView {
    /// Bytes of the disk.
    pub size: u64,
    /// Changes are refused.
    pub read_only: bool,
    /// Writes are durable before they are answered.
    pub write_through: bool,
}

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlkHeader {
    kind: u32,
    priority: u32,
    sector: u64,
}

impl BlkHeader {
    /// Reads a header.
    #[must_use]
    pub(crate) fn parse(bytes: [u8; HEADER]) -> Self {
        let [a, b, c, d, e, f, g, h, sector @ ..] = bytes;
        Self {
            kind: u32::from_le_bytes([a, b, c, d]),
            priority: u32::from_le_bytes([e, f, g, h]),
            sector: u64::from_le_bytes(sector),
        }
    }

    /// The tag of the request's container, set by the guest's kernel.
    #[must_use]
    pub(crate) fn tag(&self) -> Option<ContainerTag> {
        ContainerTag::of_priority(self.priority)
    }

    /// Is it a discard or write-zeroes with exactly one segment?
    #[must_use]
    pub(crate) fn has_segment(&self) -> bool {
        [VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_WRITE_ZEROES].contains(&self.kind)
    }

    /// The request, with `readable` bytes behind the header, `writable` bytes before the status, and its segment, if any.
    #[must_use]
    pub(crate) fn command(
        &self,
        device: DeviceView,
        readable: u64,
        writable: u64,
        segment: Option<[u8; HEADER]>,
    ) -> Command {
        let refused = Command::Refused(Status::IoError);
        let fua = device.write_through;
        match self.kind {
            VIRTIO_BLK_T_IN => match self.transfer(device, writable) {
                Some((offset, length)) => Command::Do(Operation::Read, offset, length),
                None => refused,
            },
            VIRTIO_BLK_T_OUT => match self.transfer(device, readable) {
                Some((offset, length)) if !device.read_only => {
                    Command::Do(Operation::Write { fua }, offset, length)
                }
                _ => refused,
            },
            VIRTIO_BLK_T_FLUSH => Command::Do(Operation::Flush, 0, 0),
            VIRTIO_BLK_T_GET_ID => Command::GetId,
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES if device.read_only => refused,
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => match segment {
                Some(segment) => self.range(device, segment),
                None => refused,
            },
            _ => Command::Refused(Status::Unsupported),
        }
    }

    fn transfer(&self, device: DeviceView, length: u64) -> Option<(u64, u64)> {
        let whole = length > 0 && length.is_multiple_of(SECTOR) && length <= MAX_REQUEST;
        let offset = inside(device, self.sector, length)?;
        whole.then_some((offset, length))
    }

    /// A discard or write-zeroes of one segment; the device offers no more.
    fn range(&self, device: DeviceView, segment: [u8; HEADER]) -> Command {
        let refused = Command::Refused(Status::IoError);
        let [sector @ .., a, b, c, d, e, f, g, h] = segment;
        let sectors = u32::from_le_bytes([a, b, c, d]);
        let flags = u32::from_le_bytes([e, f, g, h]);
        let length = u64::from(sectors) * SECTOR;
        let Some(offset) = inside(device, u64::from_le_bytes(sector), length) else {
            return refused;
        };
        let discard = self.kind == VIRTIO_BLK_T_DISCARD;
        let fua = device.write_through;
        let operation = match flags {
            _ if sectors > MAX_RANGE_SECTORS => return refused,
            0 if discard => Operation::Discard { fua },
            0 | UNMAP if !discard => Operation::WriteZeroes {
                fua,
                may_unmap: flags == UNMAP,
                fast: false,
            },
            _ => return Command::Refused(Status::Unsupported),
        };
        Command::Do(operation, offset, length)
    }
}

/// The offset of a range, in bytes, if the range lies in the disk.
fn inside(device: DeviceView, sector: u64, length: u64) -> Option<u64> {
    let offset = sector.checked_mul(SECTOR)?;
    let end = offset.checked_add(length)?;
    (end <= device.size / SECTOR * SECTOR).then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceView = DeviceView {
        // Ends inside a sector.
        size: 1024 * SECTOR + 100,
        read_only: false,
        write_through: false,
    };

    fn header(kind: u32, priority: u32, sector: u64) -> BlkHeader {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&priority.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        BlkHeader::parse(bytes)
    }

    fn segment(sector: u64, sectors: u32, flags: u32) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&sector.to_le_bytes());
        bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
        bytes[12..].copy_from_slice(&flags.to_le_bytes());
        bytes
    }

    const IO_ERROR: Command = Command::Refused(Status::IoError);
    const UNSUPPORTED: Command = Command::Refused(Status::Unsupported);

    #[test]
    fn transfers_are_whole_sectors_inside_the_disk() {
        let read = |sector, length| header(0, 0, sector).command(DEVICE, 0, length, None);
        let (offset, length) = (1023 * SECTOR, SECTOR);
        assert_eq!(
            read(1023, SECTOR),
            Command::Do(Operation::Read, offset, length)
        );
        for (sector, length) in [
            (1024, SECTOR),
            (1023, 2 * SECTOR),
            (0, 0),
            (0, 511),
            (u64::MAX, SECTOR),
            (u64::MAX / SECTOR, SECTOR),
            (0, u64::MAX),
        ] {
            assert_eq!(read(sector, length), IO_ERROR, "{sector} {length}");
        }
        let large = DeviceView {
            size: 1 << 40,
            ..DEVICE
        };
        let most = |length| header(1, 0, 0).command(large, length, 0, None);
        assert_eq!(
            most(MAX_REQUEST),
            Command::Do(Operation::Write { fua: false }, 0, MAX_REQUEST)
        );
        assert_eq!(most(MAX_REQUEST + SECTOR), IO_ERROR);
    }

    #[test]
    fn a_read_only_disk_refuses_every_change() {
        let device = DeviceView {
            read_only: true,
            ..DEVICE
        };
        for kind in [1, 11, 13] {
            let found = header(kind, 0, 0).command(device, 512, 0, Some(segment(0, 1, 0)));
            assert_eq!(found, IO_ERROR, "{kind}");
        }
        let flush = Command::Do(Operation::Flush, 0, 0);
        assert_eq!(header(4, 0, 0).command(device, 0, 0, None), flush);
    }

    #[test]
    fn discards_and_zeroes_have_one_segment_and_known_flags() {
        let ask = |kind, segment| header(kind, 0, 0).command(DEVICE, 16, 0, segment);
        let (offset, length) = (8 * SECTOR, 16 * SECTOR);
        assert_eq!(
            ask(11, Some(segment(8, 16, 0))),
            Command::Do(Operation::Discard { fua: false }, offset, length)
        );
        let operation = |may_unmap| Operation::WriteZeroes {
            fua: false,
            may_unmap,
            fast: false,
        };
        for may_unmap in [false, true] {
            assert_eq!(
                ask(13, Some(segment(8, 16, may_unmap.into()))),
                Command::Do(operation(may_unmap), offset, length)
            );
        }
        assert_eq!(ask(11, Some(segment(8, 16, 1))), UNSUPPORTED);
        assert_eq!(ask(13, Some(segment(8, 16, 2))), UNSUPPORTED);
        assert_eq!(ask(11, Some(segment(1020, 5, 0))), IO_ERROR);
        assert_eq!(ask(11, Some(segment(u64::MAX, u32::MAX, 0))), IO_ERROR);
        assert_eq!(ask(11, None), IO_ERROR);
        assert_eq!(ask(99, None), UNSUPPORTED);
    }

    #[test]
    fn the_priority_carries_a_tag() {
        assert_eq!(
            header(0, 2 << 13 | 7 << 3 | 4, 0).tag(),
            ContainerTag::new(7)
        );
        assert_eq!(header(0, 4, 0).tag(), None);
    }
}
