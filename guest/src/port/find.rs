//! Which disk is the port.

use std::io;
use std::path::{Path, PathBuf};

use justitia_link::{MAX_BLOCKS, Serial};

use super::device::Port;
use crate::monitor::disks::Disk;

/// How the serial of a port begins that nobody has named otherwise.
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

/// Opens the named device; without a name the first disk of a port's size that answers as one, those with the serial of a
/// port before the others.
///
/// # Errors
/// Why there is none.
pub(crate) fn find(named: Option<&Path>, disks: &[Disk]) -> io::Result<Found> {
    if let Some(path) = named {
        let whole = std::fs::canonicalize(path)?;
        let disk = disks.iter().find(|disk| disk.path() == whole);
        return open(path.to_owned(), disk);
    }
    first(candidates(disks), |disk| open(disk.path(), Some(disk)))
}

/// The first disk that opens. Otherwise the first error says most: disks with the serial of a port come first.
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
