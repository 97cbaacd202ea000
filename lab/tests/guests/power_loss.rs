//! Power loss below the hypervisor cache, as the kernel records it: dm-log-writes under a file system with the image, and
//! under a disk that is the image. After every write that has reached the disk, what the cache's client was told is
//! durable must be there, and no sector may be torn or from elsewhere.

mod log;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use super::cache_script::run_within;
use super::programs::take_along;
use justitia_lab::vm::{DiskSpec, Guest, Vm, VmSpec};
use log::{Entry, Log};

/// Bytes of a place that is written at once, and how many there are in an image.
const PLACE: usize = 64 << 10;
const PLACES: usize = 64;
/// Rounds: one place is written in each, and flushed or written durably.
const ROUNDS: usize = 600;
/// Bytes of the log's disk: twice what is written.
const LOG: u64 = 512 << 20;

/// Has a file system on what the cache serves to `/dev/nbd0`, and in it a file of which one place is written after the
/// other. What dd says was durable is marked in the log: by a flush in even rounds, by durable writes in odd ones. A file
/// system sends those without a flush when they overwrite; to the block device itself a flush would follow each.
const WORKLOAD: &str = r#"
set -e
serve() {
    begin justitia cache serve $IMAGE --socket /run/n --control /run/c --memory 1MiB
    nbd-client -N $NAME -unix /run/n /dev/nbd0 -b 4096 >&2
}
stop() {
    nbd-client -d /dev/nbd0 >&2
    kill -TERM $(cat /run/server)
    while [ -d /proc/$(cat /run/server) ]; do sleep 0.1; done
}
serve
[ $(cat /sys/block/nbd0/queue/fua) = 1 ]
mkfs.ext4 -q -F -b 4096 -O ^has_journal -E nodiscard,lazy_itable_init=0 /dev/nbd0 >&2
mkdir -p /mnt; mount -o noatime /dev/nbd0 /mnt
dd if=/dev/zero of=/mnt/places bs=1M count=4 >&2; sync
filefrag -e -b4096 /mnt/places
dmsetup message logged 0 mark begin
n=0
while [ $n -lt $ROUNDS ]; do
    n=$((n + 1))
    if [ $((n % 2)) = 0 ]; then how=oflag=direct,seek_bytes\ conv=notrunc,fdatasync; else how=oflag=direct,dsync,seek_bytes\ conv=notrunc; fi
    yes $(printf %07d $n) | gnu-dd of=/mnt/places bs=4k count=16 iflag=fullblock seek=$((n * 7 % 64 * 65536)) $how status=none
    dmsetup message logged 0 mark $n
done
umount /mnt
stop
"#;

/// Runs a script that must succeed.
fn run(guest: &Guest, script: &str) -> String {
    run_within(guest, script, Duration::from_secs(900))
}

/// A guest with a disk that is logged to a file of this machine.
fn boot(log: &Path) -> Vm {
    let _turn = crate::agent_guest::turn();
    std::fs::File::create(log).unwrap().set_len(LOG).unwrap();
    let drive = format!("file={},if=none,format=raw,id=powerlog", log.display());
    let device = "virtio-blk-pci,drive=powerlog,serial=powerlog";
    Vm::boot(&VmSpec {
        disks: vec![DiskSpec::of(None, 128 << 20).unthrottled()],
        qemu_args: ["-drive", &drive, "-device", device]
            .map(str::to_owned)
            .into(),
        ..VmSpec::default()
    })
    .unwrap()
}

const LOGGED: &str = r#"
modprobe nbd; modprobe dm_mod; modprobe dm_log_writes; mkdir -p /data
for disk in /sys/block/vd*; do [ "$(cat $disk/serial)" = powerlog ] && log=/dev/${disk##*/}; done
dmsetup create logged --table "0 $(cat /sys/block/vda/size) log-writes /dev/vda $log"
[ -e /dev/mapper/logged ] || dmsetup mknodes
"#;

/// Bytes of a block of the file systems.
const BLOCK: u64 = 4096;

/// Where a file's blocks are, in blocks of what it lies on, in order. `None`: it is all of it.
type Blocks = Option<Vec<u64>>;

/// Which block of the places is on a block of the disk.
struct Places(HashMap<u64, usize>);

impl Places {
    /// The file with the places is on the image, and that on the disk.
    fn new(places: Blocks, image: &Blocks) -> Self {
        let places = places.unwrap();
        assert_eq!(places.len(), PLACES * PLACE / 4096);
        let on_disk = places.iter().map(|block| {
            image
                .as_ref()
                .map_or(*block, |image| image[usize::try_from(*block).unwrap()])
        });
        Self(on_disk.zip(0..).collect())
    }

    /// The sector of the places at this byte of the disk.
    fn sector(&self, at: u64) -> Option<usize> {
        let block = self.0.get(&(at / BLOCK))?;
        let within = usize::try_from(at % BLOCK / 512).unwrap();
        Some(block * 8 + within)
    }
}

/// The version of a sector; `None` of one that is torn or has another's content. 0 before it was written.
fn version(sector: usize, content: &[u8]) -> Option<usize> {
    if content.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let (line, _) = content.split_at(8);
    let whole = content.chunks(8).all(|other| other == line);
    let version: usize = std::str::from_utf8(line).ok()?.trim().parse().ok()?;
    let place = sector * 512 / PLACE;
    (whole && version * 7 % PLACES == place).then_some(version)
}

/// Replays the log, and crashes after each of its entries. Returns how many there were.
fn crashes(log: &mut Log, places: &Places) -> usize {
    let sectors = PLACES * PLACE / 512;
    let (mut found, mut promised) = (vec![0; sectors], vec![0; sectors]);
    let (mut points, mut begun, mut marks) = (0, false, 0);
    while let Some(entry) = log.next() {
        match entry {
            Entry::Mark(mark) if mark == "begin" => begun = true,
            // The kernel marks the end.
            Entry::Mark(mark) if mark == "dm-log-writes-end" => {}
            Entry::Mark(mark) => {
                let version: usize = mark.parse().unwrap();
                marks += 1;
                let first = version * 7 % PLACES * PLACE / 512;
                for sector in first..first + PLACE / 512 {
                    promised[sector] = version;
                    assert_eq!(
                        found[sector], version,
                        "sector {sector} was lost, entry {points}"
                    );
                }
            }
            Entry::Write { at, content } => {
                for (n, piece) in (0..).zip(content.chunks(512)).filter(|_| begun) {
                    let Some(sector) = places.sector(at + n * 512) else {
                        continue;
                    };
                    let Some(version) = version(sector, piece) else {
                        panic!("entry {points}: sector {sector} is torn or foreign");
                    };
                    assert!(
                        version >= promised[sector],
                        "entry {points}: an old {sector}"
                    );
                    found[sector] = version;
                }
            }
            Entry::Other => {}
        }
        points += usize::from(begun);
    }
    assert_eq!(marks, ROUNDS);
    points
}

/// The workload on one image, and all crashes of it.
fn crashes_of(image: &str, prepare: &str, end: &str) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let vm = boot(&path);
    let guest = vm.guest();
    take_along(guest, "nbd-client", "nbd-client");
    take_along(guest, "dd", "gnu-dd");
    take_along(guest, "filefrag", "filefrag");
    let prepared = run(guest, &format!("set -e\n{LOGGED}\n{prepare}"));
    let name = Path::new(image).file_stem().unwrap().to_str().unwrap();
    let worked = run(
        guest,
        &format!("IMAGE={image} NAME={name} ROUNDS={ROUNDS}\n{WORKLOAD}"),
    );
    run(
        guest,
        &format!("set -e\n{end}\ndmsetup remove logged; sync"),
    );
    drop(vm);
    let places = Places::new(blocks(&worked), &blocks(&prepared));
    let points = crashes(&mut Log::open(&path).unwrap(), &places);
    println!("{image}: {points} crash points");
    points
}

/// Of lines `0: 0.. 1023: 34816.. 35839: 1024: …` of filefrag, in blocks of 4 KiB.
fn blocks(told: &str) -> Blocks {
    let mut blocks = Vec::new();
    for line in told.lines().filter(|line| line.contains("..")) {
        let numbers: Vec<u64> = line
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect();
        let [_, from, _, to, _, count, ..] = numbers[..] else {
            panic!("expected a run of blocks, found {line:?}");
        };
        assert_eq!(from, u64::try_from(blocks.len()).unwrap(), "{told}");
        blocks.extend(to..to + count);
    }
    (!blocks.is_empty()).then_some(blocks)
}

#[test]
#[ignore = "minutes: make test-vm"]
fn what_is_durable_on_a_disk_outlives_every_crash() {
    let points = crashes_of("/dev/mapper/logged", "true", "true");
    assert!(points >= 10_000, "{points} crash points");
}

#[test]
#[ignore = "minutes: make test-vm"]
fn what_is_durable_in_a_file_outlives_every_crash() {
    // Written before, so that it stays where it is. What mkfs has put there is gone then.
    let prepare =
        "mkfs.ext4 -q -F -b 4096 -E nodiscard /dev/mapper/logged >&2; mount /dev/mapper/logged /data
         dd if=/dev/zero of=/data/image bs=1M count=32 >&2; sync
         filefrag -e -b4096 /data/image";
    let points = crashes_of("/data/image", prepare, "umount /data");
    assert!(points >= 10_000, "{points} crash points");
}
