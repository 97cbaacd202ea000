//! A volume as NBD clients see it.

use super::handshake::ExportInfo;
use super::proto::export_flag as flag;
use crate::frontend::Volume;
use std::sync::Arc;

/// A volume with a description for people. Its name is the volume's.
pub struct Export {
    volume: Arc<Volume>,
    description: String,
}

impl Export {
    /// Exports a volume, with a description for people, which may be empty.
    #[must_use]
    pub fn new(volume: impl Into<Arc<Volume>>, description: &str) -> Self {
        Self {
            volume: volume.into(),
            description: description.to_owned(),
        }
    }

    /// What is exported.
    #[must_use]
    pub const fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// What a client is told during negotiation.
    pub(super) fn info(&self) -> ExportInfo {
        ExportInfo {
            name: self.volume.name().to_owned(),
            description: self.description.clone(),
            size: self.volume.size(),
            flags: transmission_flags(&self.volume),
        }
    }
}

/// What clients of a volume are told that they may do.
pub(super) fn transmission_flags(volume: &Volume) -> u16 {
    let flags = flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_DF
        | flag::SEND_CACHE
        // A flush covers the writes of all connections: they share the one disk.
        | flag::CAN_MULTI_CONN;
    let more = if volume.is_read_only() {
        flag::READ_ONLY
    } else {
        flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
    };
    flags | more
}
