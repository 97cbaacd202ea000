//! Pages that reclaim evicts from the page cache, with their content and their place on a disk (`bpf/evict.bpf.c`).

use std::path::Path;
use std::time::Duration;

use libbpf_rs::MapCore as _;
use libbpf_rs::{Map, MapFlags, RingBuffer, RingBufferBuilder};

use super::limits::ProbeError;
use super::mapped::MappedArray;
use super::object::{ObjectSpec, ProbeObject, kernel_types};
use super::probe::{EVICT, LACKS, Probe};
use crate::PAGE_SIZE;
use crate::buffer::read_path;
use crate::capabilities::State;
use crate::cgroup::CgroupId;
use crate::io::DevId;
use crate::proc::frames;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

const RING: &str = "evictions";
const COUNTS: &str = "eviction_counts";

/// A block number, a cgroup, a disk, a file system, and the content.
const RECORD: usize = 24 + PAGE;

/// The shift with which nothing is offered: `NOTHING` of `bpf/evict.bpf.c`.
pub const OFFER_NOTHING: u32 = 32;

/// The probes have every page frame's place in 16 bytes: a machine of 16 TiB.
const MAX_FRAMES: u64 = 1 << 32;

/// A device number as the kernel has it: the major number above 20 bits of the minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device(pub u32);

impl Device {
    /// Of a major and a minor number; `None` where the kernel has none such.
    #[must_use]
    pub fn new(DevId { major, minor }: DevId) -> Option<Self> {
        (major < 1 << 12 && minor < 1 << 20).then_some(Self(major << 20 | minor))
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        DevId::of_kernel(self.0).fmt(f)
    }
}

/// A page that was evicted.
#[derive(Clone, Copy, Debug)]
pub struct Eviction<'a> {
    /// Where its content is on the disk, in blocks of 4 KiB from the disk's beginning.
    pub block: u64,
    /// The disk.
    pub disk: Device,
    /// The file system's device number.
    pub filesystem: Device,
    /// The cgroup that was charged for it; 0 is none.
    pub cgroup: CgroupId,
    /// Its content.
    pub content: &'a [u8; PAGE],
}

impl<'a> Eviction<'a> {
    /// `None` when it is too short.
    fn decode(record: &'a [u8]) -> Option<Self> {
        let (head, content) = record.split_first_chunk::<24>()?;
        let (words, _) = head.as_chunks::<8>();
        let [block, cgroup, devices] = words else {
            return None;
        };
        let [d0, d1, d2, d3, f0, f1, f2, f3] = *devices;
        Some(Self {
            block: u64::from_ne_bytes(*block),
            cgroup: CgroupId(u64::from_ne_bytes(*cgroup)),
            disk: Device(u32::from_ne_bytes([d0, d1, d2, d3])),
            filesystem: Device(u32::from_ne_bytes([f0, f1, f2, f3])),
            content: content.first_chunk::<PAGE>()?,
        })
    }
}

/// What became of evicted pages since the probe was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionCounts {
    /// Copied for the reader.
    pub copied: u64,
    /// Not copied, as the ring was full.
    pub ring_full: u64,
    /// Held back, as the reader wants only some.
    pub not_sampled: u64,
    /// Of large folios: pages beyond what is copied of one.
    pub beyond_bound: u64,
    /// Pages whose place on a disk is not known: of other disks, of no disk, smaller blocks.
    pub unknown_place: u64,
    /// What the probe's programs took, nanoseconds of all processors. An estimate: one call in 64 is timed, and counts 64
    /// times.
    pub programs_ns: u64,
}

/// The probe, attached until this is dropped.
#[derive(Debug)]
pub struct EvictionProbe {
    object: ProbeObject,
    counts: MappedArray,
}

impl EvictionProbe {
    /// Attaches it. Nothing is copied before a disk is watched. `ring` is the size of the buffer between the kernel and the
    /// reader, a power of two of at least 64 KiB. The kernel needs 16 bytes a page frame besides.
    ///
    /// # Errors
    /// When this kernel does not support it, with the reason.
    pub fn attach(ring: u32) -> Result<Self, ProbeError> {
        let unsupported = |reason: String| ProbeError::Unsupported {
            probe: Probe::Evictions.title(),
            reason,
        };
        if !ring.is_power_of_two() || ring < 1 << 16 {
            return Err(unsupported(format!(
                "expected a ring of 2^n bytes, at least 64 KiB, found {ring}"
            )));
        }
        let symbols = std::fs::read("/proc/kallsyms")
            .map_err(|error| unsupported(format!("/proc/kallsyms cannot be read: {error}")))?;
        check_symbols(&symbols).map_err(unsupported)?;
        let frames = read_path(Path::new("/proc/zoneinfo"), frames)
            .map_err(|error| unsupported(error.to_string()))?
            .map_err(|error| unsupported(error.to_string()))?;
        let frames = u32::try_from(frames.min(MAX_FRAMES - 1)).unwrap_or(u32::MAX);
        let spec = ObjectSpec {
            object: include_bytes!(concat!(env!("OUT_DIR"), "/evict.bpf.o")),
            programs: EVICT,
            map_sizes: &[("places", frames), (RING, ring)],
            config: &[],
        };
        let mut object = ProbeObject::load(&spec, &kernel_types()?)?;
        object.attach();
        if let Some(failed) = object.status().iter().find(|one| one.state != State::Yes) {
            return Err(unsupported(failed.reason.clone()));
        }
        let counts = MappedArray::map(COUNTS, &object.map(COUNTS)?, 6)?;
        Ok(Self { object, counts })
    }

    /// Follows where the pages of a disk are, or ends that.
    ///
    /// # Errors
    /// When the kernel refuses it, as for more than 64 disks.
    pub fn watch(&self, disk: Device, on: bool) -> Result<(), ProbeError> {
        let set = on.then_some(1);
        self.set("watched", &disk.0.to_ne_bytes(), set)
    }

    /// Offers one block in `2^shift` of a file system on a disk, always the same ones; none from 32 on.
    ///
    /// # Errors
    /// When the kernel refuses it, as for more than 256 file systems.
    pub fn offer_of_filesystem(
        &self,
        filesystem: Device,
        disk: Device,
        shift: u32,
    ) -> Result<(), ProbeError> {
        let key = u64::from(filesystem.0) << 32 | u64::from(disk.0);
        self.set("filesystem_shift", &key.to_ne_bytes(), some(shift))
    }

    /// Detaches the probe: until it is attached again it costs nothing. What it knows of pages stays. Where that is not right
    /// any more, the page's owner is another one, or the host refuses the put.
    pub fn detach(&self) {
        self.object.detach();
    }

    /// Attaches the probe again.
    ///
    /// # Errors
    /// When the kernel refuses it; it is detached then.
    pub fn attach_again(&self) -> Result<(), ProbeError> {
        let attached = self.object.attach_again();
        if attached.is_err() {
            self.object.detach();
        }
        attached
    }

    /// The cgroup that stands for those of which nothing is said.
    pub const OTHER_CGROUPS: CgroupId = CgroupId(0);

    /// As [`offer_of_filesystem`](Self::offer_of_filesystem), of what a cgroup is charged for; `None`: as of
    /// [`OTHER_CGROUPS`](Self::OTHER_CGROUPS).
    ///
    /// # Errors
    /// When the kernel refuses it, as for more than 1,024 cgroups.
    pub fn offer_of_cgroup(&self, cgroup: CgroupId, shift: Option<u32>) -> Result<(), ProbeError> {
        let shift = shift.map(|shift| shift.min(OFFER_NOTHING));
        self.set("cgroup_shift", &cgroup.0.to_ne_bytes(), shift)
    }

    /// What became of evicted pages so far.
    #[must_use]
    pub fn counts(&self) -> EvictionCounts {
        EvictionCounts {
            copied: self.counts.get(0),
            ring_full: self.counts.get(1),
            not_sampled: self.counts.get(2),
            beyond_bound: self.counts.get(3),
            unknown_place: self.counts.get(4),
            programs_ns: self.counts.get(5),
        }
    }

    /// A reader, which calls `take` with each page. `take` says whether it takes another one now.
    ///
    /// # Errors
    /// When the ring cannot be mapped.
    pub fn reader<'a>(
        &'a self,
        mut take: impl FnMut(Eviction<'_>) -> bool + 'a,
    ) -> Result<EvictionReader<'a>, ProbeError> {
        let map = self.map(RING)?;
        let mut builder = RingBufferBuilder::new();
        let refused = |error: libbpf_rs::Error| ProbeError::Map {
            map: RING,
            reason: error.to_string(),
        };
        builder
            .add(&map, move |record| {
                let more = Eviction::decode(record).is_none_or(&mut take);
                if more { 0 } else { STOP }
            })
            .map_err(refused)?;
        Ok(EvictionReader(builder.build().map_err(refused)?))
    }

    fn map(&self, name: &'static str) -> Result<Map<'_>, ProbeError> {
        self.object.map(name)
    }

    fn set(&self, name: &'static str, key: &[u8], value: Option<u32>) -> Result<(), ProbeError> {
        let map = self.map(name)?;
        let Some(value) = value else {
            // It may have no entry.
            let _ = map.delete(key);
            return Ok(());
        };
        let done = map.update(key, &value.to_ne_bytes(), MapFlags::ANY);
        done.map_err(|error| ProbeError::Map {
            map: name,
            reason: error.to_string(),
        })
    }
}

/// Why the reader's library stops in the middle of a ring: a number that it passes on.
const STOP: i32 = -1;

/// Reads the pages that the probe copies.
#[derive(Debug)]
pub struct EvictionReader<'a>(RingBuffer<'a>);

impl EvictionReader<'_> {
    /// Calls the reader with what there is, until it takes no more. Waits until there are 128 KiB, at most so long.
    pub fn read(&self, timeout: Duration) {
        // Whatever has come without waking this one.
        if self.0.consume_raw() == 0 && !timeout.is_zero() && self.0.poll_raw(timeout) == 0 {
            self.0.consume_raw();
        }
    }
}

/// What the kernel's map has for a shift: no entry for 0.
fn some(shift: u32) -> Option<u32> {
    (shift > 0).then_some(shift.min(OFFER_NOTHING))
}

/// The programs compute a page's address from symbols. Not every kernel lists them, and it shows their addresses to
/// privileged readers only. `symbols` is `/proc/kallsyms`.
fn check_symbols(symbols: &[u8]) -> Result<(), String> {
    for name in ["vmemmap_base", "page_offset_base"] {
        let mut lines = symbols.split(|byte| *byte == b'\n');
        let address = lines.find_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ');
            let address = fields.next()?;
            (fields.nth(1) == Some(name.as_bytes())).then_some(address)
        });
        let Some(address) = address else {
            return Err(format!(
                "{LACKS} symbol {name}: it takes x86-64 and CONFIG_KALLSYMS_ALL"
            ));
        };
        if address.iter().all(|digit| *digit == b'0') {
            return Err(format!(
                "expected the address of {name} in /proc/kallsyms, found 0: it takes CAP_SYSLOG, and the sysctl \
                 kernel.kptr_restrict below 2"
            ));
        }
    }
    Ok(())
}

const _: () = assert!(PAGE as u64 == PAGE_SIZE && RECORD == 24 + PAGE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_there_and_their_addresses_shown() {
        let shown = "ffffffff82fb1c50 D vmemmap_base\nffffffff82fb1c60 D page_offset_base\n";
        let hidden = "0000000000000000 D vmemmap_base\n0000000000000000 D page_offset_base\n";
        let half = "ffffffff82fb1c50 D vmemmap_base\n0000000000000000 D page_offset_base\n";
        let other = "ffffffff82fb1c50 D vmemmap_base\nffffffff82fb1c60 D page_offset_base_of\n";
        for (symbols, expected) in [
            (shown, None),
            (hidden, Some("address of vmemmap_base")),
            (half, Some("address of page_offset_base")),
            (other, Some("no symbol page_offset_base")),
            ("", Some("no symbol vmemmap_base")),
            ("\n \n", Some("no symbol vmemmap_base")),
        ] {
            let found = check_symbols(symbols.as_bytes()).err();
            match expected {
                None => assert_eq!(found, None),
                Some(part) => assert!(found.is_some_and(|why| why.contains(part)), "{symbols}"),
            }
        }
    }

    #[test]
    fn a_record_is_decoded() {
        let mut record = vec![7; RECORD];
        record[..8].copy_from_slice(&9_u64.to_ne_bytes());
        record[8..16].copy_from_slice(&11_u64.to_ne_bytes());
        record[16..20].copy_from_slice(&(254_u32 << 20 | 16).to_ne_bytes());
        record[20..24].copy_from_slice(&(254_u32 << 20 | 17).to_ne_bytes());
        let found = Eviction::decode(&record).unwrap();
        assert_eq!((found.block, found.cgroup), (9, CgroupId(11)));
        let device = |major, minor| Device::new(DevId { major, minor });
        assert_eq!(Some(found.disk), device(254, 16));
        assert_eq!(Some(found.filesystem), device(254, 17));
        assert_eq!(found.filesystem.to_string(), "254:17");
        assert_eq!(found.content, &[7; PAGE]);
        assert!(Eviction::decode(&record[..RECORD - 1]).is_none());
        assert!(device(4096, 0).is_none() && device(0, 1 << 20).is_none());
    }
}
