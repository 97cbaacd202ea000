//! Probes that are attached only while somebody asks for what they tell.

use std::collections::HashMap;

use libbpf_rs::{Btf, MapCore as _, MapFlags};

use super::distinct;
use super::load::{Loaded, Spec, kernel_types};
use super::programs::{self, Program};
use super::{
    Contention, Histogram, Latencies, Limits, Probe, ProbeError, ProbeStatus, SharedInode,
    SharedUse,
};
use crate::capabilities::State;
use crate::cgroup::CgroupId;

/// How many entries of a map are read at once.
const BATCH: u32 = 256;
/// The map of that name, which every one of these objects has.
const LOST: &str = ".data.lost";
/// Of the kernels that the probes work on.
const PAGE: u64 = 4096;

/// One of these probes: its object, its programs, and its only sized map.
struct Kind {
    probe: Probe,
    object: &'static [u8],
    programs: &'static [Program],
    map: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        probe: Probe::Latency,
        object: include_bytes!(concat!(env!("OUT_DIR"), "/latency.bpf.o")),
        programs: programs::LATENCY,
        map: "latencies",
    },
    Kind {
        probe: Probe::SharedInodes,
        object: include_bytes!(concat!(env!("OUT_DIR"), "/shared.bpf.o")),
        programs: programs::SHARED,
        map: "uses",
    },
    Kind {
        probe: Probe::LockContention,
        object: include_bytes!(concat!(env!("OUT_DIR"), "/locks.bpf.o")),
        programs: programs::LOCKS,
        map: "contention",
    },
];

impl Kind {
    /// Calls `then` with what to load.
    fn spec<T>(&self, limits: &Limits, then: impl FnOnce(&Spec<'_>) -> T) -> T {
        let entries = match self.probe {
            Probe::SharedInodes => limits.max_shared_files,
            _ => limits.max_cgroups,
        };
        then(&Spec {
            object: self.object,
            programs: self.programs,
            sizes: &[(self.map, entries)],
            config: &[],
        })
    }
}

#[derive(Debug)]
pub(super) struct OnDemand {
    limits: Limits,
    facts: Vec<ProbeStatus>,
    open: HashMap<Probe, Loaded>,
    /// What those that were ended had lost.
    lost: HashMap<Probe, u64>,
}

impl OnDemand {
    pub(super) fn new(limits: &Limits, types: &Btf<'_>) -> Result<Self, ProbeError> {
        let mut facts = Vec::new();
        for kind in &KINDS {
            facts.extend(kind.spec(limits, |spec| spec.facts(types))?);
        }
        Ok(Self {
            limits: *limits,
            facts,
            open: HashMap::new(),
            lost: HashMap::new(),
        })
    }

    pub(super) fn facts(&self) -> &[ProbeStatus] {
        &self.facts
    }

    pub(super) fn switch(&mut self, probe: Probe, on: bool) -> Result<(), ProbeError> {
        if let Ok(lost) = self.lost(probe) {
            self.lost.insert(probe, lost);
        }
        self.open.remove(&probe);
        let Some(kind) = KINDS.iter().find(|kind| kind.probe == probe && on) else {
            return Ok(());
        };
        let types = kernel_types()?;
        let mut loaded = kind.spec(&self.limits, |spec| Loaded::load(spec, &types))?;
        loaded.attach();
        if let Some(fact) = loaded.facts.iter().find(|fact| fact.state != State::Yes) {
            let reason = fact.reason.clone();
            for known in &mut self.facts {
                if known.probe == probe {
                    known.clone_from(fact);
                }
            }
            return Err(ProbeError::Absent {
                probe: probe.title(),
                reason,
            });
        }
        self.open.insert(probe, loaded);
        Ok(())
    }

    /// Removed cgroups take no room. The maps are bounded in any case.
    pub(super) fn forget(&self, removed: impl Iterator<Item = CgroupId> + Clone) {
        for (probe, map) in [
            (Probe::Latency, "latencies"),
            (Probe::LockContention, "contention"),
        ] {
            let Some(Ok(map)) = self.open.get(&probe).map(|loaded| loaded.map(map)) else {
                continue;
            };
            for cgroup in removed.clone() {
                // Most were never in it.
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
        let uses: Vec<_> = self.read(Probe::SharedInodes, "uses", |key, value| {
            let inode = key.next()?;
            let (user, charged) = (CgroupId(key.next()?), CgroupId(key.next()?));
            let device = u32::try_from(key.next()?).ok()?;
            let cached = value.next()? * PAGE;
            let generation = u32::try_from(value.next()?).ok()?;
            let mapped = value.next()? != 0;
            let (shift, _seed) = (value.next()?, value.next()?);
            let touched = distinct::pages(shift, value).saturating_mul(PAGE);
            let shared = SharedUse {
                user,
                charged,
                bytes: touched.min(cached),
            };
            Some(((device, inode, generation), shared, cached, mapped))
        })?;
        let mut inodes: HashMap<(u32, u64, u32), SharedInode> = HashMap::new();
        for (key, shared, cached, mapped) in uses {
            let (device, inode, generation) = key;
            let entry = inodes.entry(key).or_insert(SharedInode {
                device,
                inode,
                generation,
                mapped: false,
                cached: 0,
                uses: Vec::new(),
            });
            entry.cached = entry.cached.max(cached);
            entry.mapped |= mapped;
            entry.uses.push(shared);
        }
        let mut inodes: Vec<_> = inodes.into_values().collect();
        for inode in &mut inodes {
            inode.uses.sort_by_key(|one| std::cmp::Reverse(one.bytes));
        }
        let bytes = |inode: &SharedInode| inode.uses.iter().map(|one| one.bytes).sum::<u64>();
        inodes.sort_by_key(|inode| (std::cmp::Reverse(bytes(inode)), inode.device, inode.inode));
        inodes.truncate(most);
        Ok(inodes)
    }

    pub(super) fn lock_contention(&self) -> Result<HashMap<CgroupId, Contention>, ProbeError> {
        self.read(Probe::LockContention, "contention", |key, value| {
            let contention = Contention {
                count: value.next()?,
                wait_ns: value.next()?,
            };
            Some((CgroupId(key.next()?), contention))
        })
    }

    /// See [`IoProbes::dropped`](super::IoProbes::lost).
    pub(super) fn lost(&self, probe: Probe) -> Result<u64, ProbeError> {
        let before = self.lost.get(&probe).copied().unwrap_or(0);
        let Some(loaded) = self.open.get(&probe) else {
            return Ok(before);
        };
        let count = loaded
            .map(LOST)?
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| ProbeError::Map {
                map: LOST,
                reason: error.to_string(),
            })?;
        let count = count.and_then(|bytes| words(&bytes).next()).unwrap_or(0);
        if probe != Probe::SharedInodes {
            return Ok(before + count);
        }
        let kept: Vec<()> = self.read(probe, "uses", |_, _| Some(()))?;
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
        let Some(loaded) = self.open.get(&probe) else {
            return Ok(all);
        };
        let map = loaded.map(name)?;
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
