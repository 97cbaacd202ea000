//! Probes that are attached only while a user asks for them.

use std::collections::HashMap;

use libbpf_rs::{Btf, MapCore as _, MapFlags};

use super::object::ProbeObject;
use super::programs::{self, Program};
use super::shared_inodes::{UseEntry, by_file};
use super::spec::{ObjectSpec, kernel_types};
use super::{
    Histogram, Latencies, Limits, LockContention, Probe, ProbeError, ProbeStatus, SharedInode,
};
use crate::capabilities::State;
use crate::cgroup::CgroupId;

/// How many entries of a map are read at once.
const BATCH: u32 = 256;
/// The map of that name, which every one of these objects has: dropped events, or for shared files all uses seen.
const DROPS: &str = ".data.drops";

/// One of these probes: its object, its programs, and its only sized map.
struct OnDemandProbe {
    probe: Probe,
    object: &'static [u8],
    programs: &'static [Program],
    map: &'static str,
}

const PROBES: [OnDemandProbe; 3] = [
    OnDemandProbe {
        probe: Probe::Latency,
        object: include_bytes!(concat!(env!("OUT_DIR"), "/latency.bpf.o")),
        programs: programs::LATENCY,
        map: "latencies",
    },
    OnDemandProbe {
        probe: Probe::SharedInodes,
        object: include_bytes!(concat!(env!("OUT_DIR"), "/shared.bpf.o")),
        programs: programs::SHARED,
        map: "shared_uses",
    },
    OnDemandProbe {
        probe: Probe::LockContention,
        object: include_bytes!(concat!(env!("OUT_DIR"), "/locks.bpf.o")),
        programs: programs::LOCKS,
        map: "contention",
    },
];

impl OnDemandProbe {
    /// Calls `then` with what to load.
    fn spec<T>(&self, limits: &Limits, then: impl FnOnce(&ObjectSpec<'_>) -> T) -> T {
        let entries = match self.probe {
            Probe::SharedInodes => limits.max_shared_files,
            _ => limits.max_cgroups,
        };
        then(&ObjectSpec {
            object: self.object,
            programs: self.programs,
            map_sizes: &[(self.map, entries)],
            config: &[],
        })
    }
}

#[derive(Debug)]
pub(super) struct OnDemandProbes {
    limits: Limits,
    status: Vec<ProbeStatus>,
    attached: HashMap<Probe, ProbeObject>,
    /// What each probe had dropped up to the last time that it was ended.
    dropped: HashMap<Probe, u64>,
}

impl OnDemandProbes {
    pub(super) fn new(limits: &Limits, types: &Btf<'_>) -> Result<Self, ProbeError> {
        let mut status = Vec::new();
        for probe in &PROBES {
            status.extend(probe.spec(limits, |spec| spec.status(types))?);
        }
        Ok(Self {
            limits: *limits,
            status,
            attached: HashMap::new(),
            dropped: HashMap::new(),
        })
    }

    pub(super) fn status(&self) -> &[ProbeStatus] {
        &self.status
    }

    /// Attaches or detaches one probe. Attached anew, it counts from zero.
    pub(super) fn switch(&mut self, probe: Probe, on: bool) -> Result<(), ProbeError> {
        if let Ok(dropped) = self.dropped(probe) {
            self.dropped.insert(probe, dropped);
        }
        self.attached.remove(&probe);
        let Some(found) = PROBES.iter().find(|one| one.probe == probe && on) else {
            return Ok(());
        };
        let types = kernel_types()?;
        let mut object = found.spec(&self.limits, |spec| ProbeObject::load(spec, &types))?;
        object.attach();
        if let Some(failed) = object.status().iter().find(|one| one.state != State::Yes) {
            for known in self.status.iter_mut().filter(|one| one.probe == probe) {
                known.clone_from(failed);
            }
            return Err(ProbeError::Unsupported {
                probe: probe.title(),
                reason: failed.reason.clone(),
            });
        }
        self.attached.insert(probe, object);
        Ok(())
    }

    /// Removes the entries of cgroups. The maps are bounded in any case.
    pub(super) fn forget(&self, removed: impl Iterator<Item = CgroupId> + Clone) {
        for (probe, map) in [
            (Probe::Latency, "latencies"),
            (Probe::LockContention, "contention"),
        ] {
            let Some(Ok(map)) = self.attached.get(&probe).map(|object| object.map(map)) else {
                continue;
            };
            for cgroup in removed.clone() {
                // Most have no entry.
                let _ = map.delete(&cgroup.0.to_ne_bytes());
            }
        }
    }

    pub(super) fn latencies(&self) -> Result<HashMap<CgroupId, Latencies>, ProbeError> {
        self.read(Probe::Latency, "latencies", |key, value| {
            let mut histogram = || Histogram {
                buckets: std::array::from_fn(|_| value.next().unwrap_or_default()),
                sum_ns: value.next().unwrap_or_default(),
            };
            let latencies = Latencies {
                read: histogram(),
                write: histogram(),
                sync: histogram(),
            };
            Some((CgroupId(key.next()?), latencies))
        })
    }

    pub(super) fn shared_inodes(&self, most: usize) -> Result<Vec<SharedInode>, ProbeError> {
        let entries = self.read(Probe::SharedInodes, "shared_uses", UseEntry::decode)?;
        Ok(by_file(entries, most))
    }

    pub(super) fn lock_contention(&self) -> Result<HashMap<CgroupId, LockContention>, ProbeError> {
        self.read(Probe::LockContention, "contention", |key, value| {
            let contention = LockContention {
                count: value.next()?,
                wait_ns: value.next()?,
            };
            Some((CgroupId(key.next()?), contention))
        })
    }

    /// See [`IoProbes::dropped`](super::IoProbes::dropped).
    pub(super) fn dropped(&self, probe: Probe) -> Result<u64, ProbeError> {
        let before = self.dropped.get(&probe).copied().unwrap_or(0);
        let Some(object) = self.attached.get(&probe) else {
            return Ok(before);
        };
        let count = object
            .map(DROPS)?
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| ProbeError::Map {
                map: DROPS,
                reason: error.to_string(),
            })?;
        let count = count.and_then(|bytes| words(&bytes).next()).unwrap_or(0);
        if probe != Probe::SharedInodes {
            return Ok(before + count);
        }
        let kept: Vec<()> = self.read(probe, "shared_uses", |_, _| Some(()))?;
        let kept = u64::try_from(kept.len()).unwrap_or(u64::MAX);
        Ok(before + count.saturating_sub(kept))
    }

    /// Every entry of a map, as the words of its key and its value.
    fn read<T, C: Default + Extend<T>>(
        &self,
        probe: Probe,
        name: &'static str,
        of: impl Fn(&mut dyn Iterator<Item = u64>, &mut dyn Iterator<Item = u64>) -> Option<T>,
    ) -> Result<C, ProbeError> {
        let mut all = C::default();
        let Some(object) = self.attached.get(&probe) else {
            return Ok(all);
        };
        let map = object.map(name)?;
        let entries = map
            .lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)
            .map_err(|error| ProbeError::Map {
                map: name,
                reason: error.to_string(),
            })?;
        all.extend(entries.filter_map(|(key, value)| of(&mut words(&key), &mut words(&value))));
        Ok(all)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word))
}
