//! The machine's disks, from `/sys/block`: device numbers, serials, and the blocks that one write may carry.

use std::fs;
use std::path::{Path, PathBuf};

use justitia_guest_protocol::puts::{MAX_BLOCKS, PORT_SIZE, Serial};
use justitia_kernel::io::DevId;
use justitia_kernel::probes::Device;

/// The most disks that are read.
const MAX_DISKS: usize = 256;

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Its name, such as `vda`.
    pub(crate) name: String,
    pub(crate) device: Device,
    /// Its serial, if it has one in the port's format.
    pub(crate) serial: Option<Serial>,
    /// Its size in sectors of 512 bytes.
    pub(crate) sectors: u64,
    /// Blocks of 4 KiB that one write may carry besides a first page, without being split by the kernel.
    pub(crate) message_blocks: usize,
}

impl Disk {
    /// Whether it has the size of a port.
    pub(crate) fn may_be_port(&self) -> bool {
        usize::try_from(self.sectors) == Ok(PORT_SIZE / 512)
    }

    /// Whether it is a loop device: those belong to others.
    pub(crate) fn is_loop(&self) -> bool {
        self.name.starts_with("loop")
    }

    /// Its device file.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

/// All disks below a `/sys/block`, in the order of their names.
pub(crate) fn disks(sys_block: &Path) -> Vec<Disk> {
    let entries = fs::read_dir(sys_block).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .take(MAX_DISKS)
        .collect();
    paths.sort_unstable();
    paths.iter().filter_map(|path| disk(path)).collect()
}

fn disk(path: &Path) -> Option<Disk> {
    let text = |name: &str| fs::read_to_string(path.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let device: DevId = text("dev")?.trim().parse().ok()?;
    // virtio-blk has the serial here; SCSI and NVMe disks have it below.
    let serial = text("serial").or_else(|| text("device/serial"));
    let blocks = |units: Option<u64>, per_block: u64| {
        let blocks = units.map_or(MAX_BLOCKS, |n| {
            usize::try_from(n / per_block).unwrap_or(MAX_BLOCKS)
        });
        blocks.saturating_sub(1)
    };
    Some(Disk {
        name: path.file_name()?.to_str()?.to_owned(),
        device: Device::new(device)?,
        serial: serial.and_then(|text| Serial::new(text.trim_end_matches('\0').trim())),
        sectors: number("size")?,
        message_blocks: blocks(number("queue/max_segments"), 1)
            .min(blocks(number("queue/max_sectors_kb"), 4))
            .clamp(1, MAX_BLOCKS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_known_by_their_serials() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, content: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        };
        put("vda/dev", "254:0\n");
        put("vda/size", "2097152\n");
        put("vda/serial", "root");
        put("vda/queue/max_segments", "254\n");
        put("vda/queue/max_sectors_kb", "1280\n");
        put("vdb/dev", "254:16\n");
        put("vdb/size", "256\n");
        put("vdb/serial", "no serial");
        put("vdb/queue/max_segments", "30\n");
        put("nvme0n1/dev", "259:0\n");
        put("nvme0n1/size", "1\n");
        put("nvme0n1/device/serial", "S123   \n");
        put("nvme0n1/queue/max_sectors_kb", "64\n");
        put("loop0/size", "0\n");
        put("odd/dev", "9999999:1\n");
        put("odd/size", "1\n");
        let found = disks(dir.path());
        let names: Vec<&str> = found.iter().map(|disk| disk.name.as_str()).collect();
        assert_eq!(names, ["nvme0n1", "vda", "vdb"]);
        assert_eq!(found[0].serial, Serial::new("S123"));
        assert_eq!(found[0].message_blocks, 15);
        assert_eq!(
            (found[1].serial, found[1].message_blocks),
            (Serial::new("root"), 31)
        );
        assert!(found[2].may_be_port() && !found[1].may_be_port());
        assert_eq!((found[2].serial, found[2].message_blocks), (None, 29));
        let (major, minor) = (254, 16);
        assert_eq!(Some(found[2].device), Device::new(DevId { major, minor }));
    }
}
