//! The port's block device: messages are written to it, answers are read from it.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;

use justitia_link::{AlignedBuf, Area, PAGE, PORT_SIZE};
use rustix::fs::{Mode, OFlags};

/// An open port. Nobody else has it.
#[derive(Debug)]
pub(crate) struct Port {
    file: File,
    area: AlignedBuf,
}

impl Port {
    /// Opens a block device as a port. It is read, and nothing is written, before it has shown that it is one.
    ///
    /// # Errors
    /// When it cannot be opened, somebody else has it (it is mounted, or another guest agent runs), or it is no port.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // EXCL on a block device: not while it is mounted, and only once.
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let kind = file.metadata()?.file_type();
        if !kind.is_block_device() {
            return Err(io::Error::other(format!(
                "expected a block device, found {}",
                justitia_regular_file::kind(kind)
            )));
        }
        let mut port = Self {
            file,
            area: AlignedBuf::new(PORT_SIZE),
        };
        port.answers()?;
        Ok(port)
    }

    /// Writes a message, in one write. It was handled when this returns.
    ///
    /// # Errors
    /// When the host does not answer any more.
    pub(crate) fn write(&self, message: &[u8]) -> io::Result<()> {
        let written = self.file.write_at(message, 0)?;
        if written == message.len() {
            Ok(())
        } else {
            Err(io::Error::other(format!(
                "expected a message to be written as a whole, found {written} of {} bytes written",
                message.len()
            )))
        }
    }

    /// Reads the header and the answers.
    ///
    /// # Errors
    /// When the host does not answer, or it is no port.
    pub(crate) fn answers(&mut self) -> io::Result<Area<'_>> {
        self.read(PAGE)
    }

    /// Reads the answers and the pool table.
    ///
    /// # Errors
    /// When the host does not answer, or it is no port.
    pub(crate) fn tables(&mut self) -> io::Result<Area<'_>> {
        self.read(PORT_SIZE)
    }

    fn read(&mut self, len: usize) -> io::Result<Area<'_>> {
        let bytes = self.area.get_mut(..len).unwrap_or_default();
        self.file.read_exact_at(bytes, 0)?;
        let known = Area::new(&self.area);
        known.ok_or_else(|| io::Error::other("expected a port's answers, found something else"))
    }
}
