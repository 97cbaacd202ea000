//! Sizes of disks that change while they are served.

use super::daemon::Daemon;
use super::error::ServeError;
use crate::frontend::Volume;
use crate::vhost::VhostServer;
use std::sync::Arc;

/// Sizes are whole sectors: a virtio disk has no part of one.
const SECTOR: u64 = 512;

impl Daemon {
    /// Takes over the size that a disk's image has now.
    pub(super) fn rescan(&self, disk: &str) -> Result<(), ServeError> {
        let volume = self.volume(disk)?;
        let before = volume.size();
        let size = volume.backend().disk().refresh_size();
        let size = size.map_err(|source| ServeError::Size {
            disk: disk.to_owned(),
            source,
        })?;
        self.tell_size(&volume, before, size);
        Ok(())
    }

    /// Makes a disk's image larger: a file with a hole at its end, which is on stable storage before this returns; of a block
    /// device the size that it has now is taken over. A size that it has already is no error: the request may come again.
    pub(super) fn grow(&self, disk: &str, size: u64) -> Result<(), ServeError> {
        // Not while it is removed.
        let _served = self.served.lock();
        let volume = self.volume(disk)?;
        let before = volume.size();
        if size < before || !size.is_multiple_of(SECTOR) {
            return Err(ServeError::NoGrowth {
                disk: disk.to_owned(),
                size: before,
                found: size,
            });
        }
        if volume.is_read_only() {
            return Err(ServeError::ReadOnly {
                disk: disk.to_owned(),
            });
        }
        let grown = volume.backend().disk().grow(size);
        let size = grown.map_err(|source| ServeError::Grow {
            disk: disk.to_owned(),
            source,
        })?;
        self.tell_size(&volume, before, size);
        Ok(())
    }

    fn volume(&self, disk: &str) -> Result<Arc<Volume>, ServeError> {
        let volumes = self.volumes.lock();
        let volume = volumes.iter().find(|v| v.name() == disk);
        volume.map(Arc::clone).ok_or_else(|| ServeError::NoVolume {
            found: disk.to_owned(),
            known: volumes
                .iter()
                .map(|v| v.name())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// Tells front ends over vhost-user of a new size. NBD has no message for it: clients see it when they connect again.
    fn tell_size(&self, volume: &Arc<Volume>, before: u64, size: u64) {
        if size == before {
            return;
        }
        let disk = volume.name();
        tracing::info!(disk, "the disk has {size} bytes now, and had {before}");
        let ours = |server: &&VhostServer| Arc::ptr_eq(server.volume(), volume);
        let servers = self.vhost_servers.lock();
        servers
            .iter()
            .filter(ours)
            .for_each(VhostServer::notify_config);
    }
}
