//! Finds the port and speaks the protocol over it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use justitia_guest_protocol::puts::{
    AlignedBuf, Answer, Area, AreaHeader, Command, MAX_ANSWERS, MAX_BLOCKS, PAGE, PORT_SIZE,
    PoolRow, Serial, sequence,
};
use rustix::fs::{Mode, OFlags};

use crate::batch::{Batch, Origin};
use crate::disks::Disk;

// The port's block device: messages are written to it, answers are read from it.

/// An open port. No other process has it open.
#[derive(Debug)]
pub(crate) struct Port {
    file: File,
    area: AlignedBuf,
}

impl Port {
    /// Opens a block device as a port. Nothing is written before a read has shown that it is one.
    ///
    /// # Errors
    /// If it cannot be opened, is no port, or is in use (mounted, or open in another guest agent).
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // EXCL fails for a mounted block device, and for a second opener.
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let kind = file.metadata()?.file_type();
        if !kind.is_block_device() {
            return Err(io::Error::other(format!(
                "expected a block device, found {}",
                justitia_common::regular_file::kind(kind)
            )));
        }
        let mut port = Self {
            file,
            area: AlignedBuf::new(PORT_SIZE),
        };
        port.answers()?;
        Ok(port)
    }

    /// Writes a message in one write. The host has handled it when this returns.
    ///
    /// # Errors
    /// If the host does not answer any more.
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
    /// If the host does not answer, or it is no port.
    pub(crate) fn answers(&mut self) -> io::Result<Area<'_>> {
        self.read(PAGE)
    }

    /// Reads the answers and the pool table.
    ///
    /// # Errors
    /// If the host does not answer, or it is no port.
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

// Finding the disk that is the port.

/// The beginning of a port's serial, unless `--port` names the device.
const SERIAL: &[u8] = b"justitia-port";

/// A port that was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) port: Port,
    /// Its device.
    pub(crate) path: PathBuf,
    /// Blocks that one message may carry.
    pub(crate) message_blocks: usize,
}

/// Opens the named device. Without a name it opens the first disk of a port's size that answers as one; disks with a port's
/// serial come first.
///
/// # Errors
/// Why no port was found.
pub(crate) fn find(named: Option<&Path>, disks: &[Disk]) -> io::Result<Found> {
    if let Some(path) = named {
        let whole = std::fs::canonicalize(path)?;
        let disk = disks.iter().find(|disk| disk.path() == whole);
        return open(path.to_owned(), disk);
    }
    first(candidates(disks), |disk| open(disk.path(), Some(disk)))
}

/// The first disk that opens. Otherwise the first error is the most useful: disks with a port's serial come first.
fn first<'a, T>(
    disks: impl Iterator<Item = &'a Disk>,
    mut open: impl FnMut(&Disk) -> io::Result<T>,
) -> io::Result<T> {
    let mut why = None;
    for disk in disks {
        match open(disk) {
            Ok(found) => return Ok(found),
            Err(error) => why = why.or(Some((disk, error))),
        }
    }
    let tried = match why {
        Some((disk, error)) if has_serial_of_port(disk) => {
            let told = format!("{}: {error}", disk.name);
            return Err(io::Error::new(error.kind(), told));
        }
        Some((disk, error)) => format!(" ({}: {error})", disk.name),
        None => String::new(),
    };
    Err(io::Error::other(format!(
        "expected a disk of 128 KiB that is a port, found none{tried}: give the VM `[vm.port]` and the disk, or `--port DEVICE`"
    )))
}

fn open(path: PathBuf, disk: Option<&Disk>) -> io::Result<Found> {
    Ok(Found {
        port: Port::open(&path)?,
        path,
        message_blocks: disk.map_or(MAX_BLOCKS, |disk| disk.message_blocks),
    })
}

fn has_serial_of_port(disk: &Disk) -> bool {
    let serial = disk.serial.as_ref().map(Serial::bytes);
    serial.is_some_and(|serial| serial.starts_with(SERIAL))
}

fn candidates(disks: &[Disk]) -> impl Iterator<Item = &Disk> {
    let right = |named| {
        let possible = |disk: &&Disk| disk.may_be_port() && !disk.is_loop();
        let possible = disks.iter().filter(possible);
        possible.filter(move |disk| has_serial_of_port(disk) == named)
    };
    right(true).chain(right(false))
}

// A session over a port, from one start of the host's daemon to the next.

/// Messages with answers read together: the area keeps more.
const MAX_SENT: usize = 32;
const _: () = assert!(MAX_SENT <= MAX_ANSWERS);

/// Why a session has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The port does not answer.
    #[error("the port does not answer: {0}")]
    Io(#[from] io::Error),
    /// The host's daemon was restarted: it has lost its pools and blocks.
    #[error("the host's daemon was started anew")]
    Restarted,
}

/// A put that was written.
#[derive(Clone, Copy, Debug)]
struct Sent {
    sequence: u64,
    origin: Origin,
}

/// The answer to a put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutAnswer {
    pub(crate) origin: Origin,
    pub(crate) answer: Answer,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    port: Port,
    start: u64,
    sequence: u64,
    page: AlignedBuf,
    sent: VecDeque<Sent>,
    /// Puts without an answer since this was last reset: the host did not see a message, or newer answers replaced it.
    pub(crate) unanswered: u64,
}

impl Session {
    /// Begins a session at the port's current sequence number.
    ///
    /// # Errors
    /// If the port does not answer.
    pub(crate) fn begin(mut port: Port) -> Result<Self, Ended> {
        let header = port.answers()?.header();
        Ok(Self {
            port,
            start: header.daemon_start_id,
            sequence: header.sequence,
            page: AlignedBuf::new(PAGE),
            sent: VecDeque::new(),
            unanswered: 0,
        })
    }

    /// Begins a new session with the same port.
    ///
    /// # Errors
    /// If the port does not answer.
    pub(crate) fn again(self) -> Result<Self, Ended> {
        Self::begin(self.port)
    }

    /// Writes a put.
    ///
    /// # Errors
    /// If the session has ended.
    pub(crate) fn put(&mut self, batch: &mut Batch) -> Result<(), Ended> {
        let sequence = self.next();
        self.port.write(batch.message(sequence))?;
        let origin = batch.origin;
        self.sent.push_back(Sent { sequence, origin });
        Ok(())
    }

    /// Whether answers must be read before more is written.
    pub(crate) fn is_full(&self) -> bool {
        self.sent.len() >= MAX_SENT
    }

    /// Reads the answers to the puts.
    ///
    /// # Errors
    /// If the session has ended.
    pub(crate) fn answers(&mut self) -> Result<Vec<PutAnswer>, Ended> {
        if self.sent.is_empty() {
            return Ok(Vec::new());
        }
        let area = self.port.answers()?;
        let header = area.header();
        let answered = |sent: &Sent| {
            let answer = area.answer(sent.sequence)?;
            Some(PutAnswer {
                origin: sent.origin,
                answer,
            })
        };
        let found: Vec<PutAnswer> = self.sent.iter().filter_map(answered).collect();
        let missing = self.sent.len().saturating_sub(found.len());
        self.unanswered += u64::try_from(missing).unwrap_or(0);
        self.sent.clear();
        self.follow(&header)?;
        Ok(found)
    }

    /// Has a command executed. `None` when the host did not see it.
    ///
    /// # Errors
    /// If the session has ended.
    pub(crate) fn command(&mut self, command: &Command) -> Result<Option<Answer>, Ended> {
        let sequence = self.next();
        if let Some(page) = self.page.first_chunk_mut::<PAGE>() {
            command.encode(sequence, page);
        }
        self.port.write(&self.page)?;
        let area = self.port.answers()?;
        let (header, answer) = (area.header(), area.answer(sequence));
        self.follow(&header)?;
        Ok(answer)
    }

    /// Current figures of the VM and of its pools.
    ///
    /// # Errors
    /// If the session has ended.
    pub(crate) fn stats(&mut self) -> Result<(AreaHeader, Vec<PoolRow>), Ended> {
        self.command(&Command::GetStats)?;
        let area = self.port.tables()?;
        let (header, rows) = (area.header(), area.pools().collect());
        self.follow(&header)?;
        Ok((header, rows))
    }

    fn next(&mut self) -> u64 {
        self.sequence = sequence::next(self.sequence);
        self.sequence
    }

    /// Follows the host's sequence number, as another program may have used the port.
    fn follow(&mut self, header: &AreaHeader) -> Result<(), Ended> {
        if header.daemon_start_id != self.start {
            return Err(Ended::Restarted);
        }
        if sequence::is_later(header.sequence, self.sequence) {
            self.sequence = header.sequence;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::probes::Device;

    fn disk(name: &str, serial: &str, sectors: u64) -> Disk {
        Disk {
            name: name.to_owned(),
            device: Device(1),
            serial: Serial::new(serial),
            sectors,
            message_blocks: 31,
        }
    }

    #[test]
    fn a_port_is_known_by_its_size_and_serial() {
        let disks = [
            disk("vda", "justitia-port", 2048),
            disk("vdb", "", 256),
            disk("vdc", "justitia-port-web", 256),
            disk("loop0", "", 256),
        ];
        let names: Vec<&str> = candidates(&disks).map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["vdc", "vdb"]);
    }

    #[test]
    fn the_error_of_the_port_is_told_and_not_that_of_another_disk() {
        let disks = [
            disk("vda", "", 256),
            disk("vdb", "justitia-port", 256),
            disk("vdc", "justitia-port-2", 256),
        ];
        let opened = |busy: &[&str], other: &[&str]| {
            let opened = first(candidates(&disks), |disk| match disk.name.as_str() {
                name if busy.contains(&name) => Err(io::Error::other("busy")),
                name if other.contains(&name) => Err(io::Error::other("no port")),
                name => Ok(name.to_owned()),
            });
            opened.unwrap_or_else(|error| error.to_string())
        };
        assert_eq!(opened(&["vdb"], &["vda"]), "vdc");
        assert_eq!(opened(&["vdb"], &["vdc"]), "vda");
        assert_eq!(opened(&["vdb"], &["vda", "vdc"]), "vdb: busy");
        let none = first([].iter(), |_: &Disk| Ok(())).unwrap_err();
        assert!(none.to_string().contains("found none: give"), "{none}");
        let other = first([disk("vda", "", 256)].iter(), |_| {
            Err::<(), _>(io::Error::other("no port"))
        });
        let other = other.unwrap_err().to_string();
        assert!(other.contains("found none (vda: no port): give"), "{other}");
    }

    #[test]
    fn what_is_no_block_device_is_no_port() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, vec![0; 131_072]).unwrap();
        assert!(find(Some(&file), &[]).is_err());
        assert!(find(Some(&dir.path().join("none")), &[]).is_err());
        assert!(find(Some(Path::new("/dev/zero")), &[]).is_err());
    }
}
