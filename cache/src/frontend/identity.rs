//! What a client knows of a disk, which must be so for as long as it is connected.

use super::volume::Volume;
use rustix::fs::{FileType, fstat};
use serde::{Deserialize, Serialize};

/// What a client was told of a disk, and which image that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskIdentity {
    /// Bytes.
    pub(crate) size: u64,
    read_only: bool,
    /// Device and inode of its file, or the number of the device that it is. Ports have no image.
    image: Option<[u64; 2]>,
}

impl DiskIdentity {
    pub(crate) fn of(volume: &Volume) -> Self {
        let file = volume.backend().file();
        let found = file.and_then(|file| fstat(file.file()).ok());
        let image = found.map(|found| {
            if FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice {
                [0, found.st_rdev]
            } else {
                [found.st_dev, found.st_ino]
            }
        });
        Self {
            size: volume.size(),
            read_only: volume.is_read_only(),
            image,
        }
    }

    /// Is `now` the same disk? It may have grown.
    pub(crate) fn holds(&self, now: &Self) -> bool {
        let size = self.size.max(now.size);
        (Self { size, ..*self }) == *now
    }
}
