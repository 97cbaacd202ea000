//! What is asked of a running daemon over its control socket, and what it answers.

use super::config::Size;
use crate::cache::CacheStats;
use crate::config::{Policy, StoreKind};
use crate::frontend::VolumeStats;
use crate::ids::PoolId;
use crate::port::PortStats;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A table of the configuration, as JSON.
pub type Table = serde_json::Map<String, serde_json::Value>;

/// A request: one JSON object on a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ControlRequest {
    /// The statistics.
    Stats,
    /// The disks that are served, or should be, and where.
    List,
    /// Which blocks of a disk are in memory: of a sample. `justitia host duplicates` asks.
    SampleDisk {
        /// Its name.
        disk: String,
        /// Chooses the sample.
        seed: u64,
        /// One block in two to the power of this, or fewer if there are too many.
        shift: u8,
    },
    /// Change a VM.
    SetVm {
        /// Its name.
        vm: String,
        /// Its new weight.
        weight: Option<u64>,
        /// Its new eviction policy.
        policy: Option<Policy>,
    },
    /// Cache nothing of a VM any more: its pools and their blocks are removed, and its disks served uncached.
    UncacheVm {
        /// Its name.
        vm: String,
    },
    /// Change a pool (SET_CG_WEIGHT ⟨T, W⟩), or make a new one (CREATE_CGROUP).
    SetPool {
        /// The VM.
        vm: String,
        /// The pool's name.
        pool: String,
        /// Its new weight: in `store`, or without that in the one store that it uses.
        #[serde(default)]
        weight: Option<u64>,
        /// The one store that it uses from now on.
        #[serde(default)]
        store: Option<StoreKind>,
        /// Its new weight in memory; 0 to use memory no more. Not with `weight` and `store`.
        #[serde(default)]
        memory_weight: Option<u64>,
        /// Its new weight on the SSD; 0 to use the SSD no more. Not with `weight` and `store`.
        #[serde(default)]
        ssd_weight: Option<u64>,
        /// Its container's tag in requests over vhost-user, 1 to 1023, instead of the one it had.
        #[serde(default)]
        tag: Option<u16>,
        /// There is none of that name yet: make it.
        #[serde(default)]
        create: bool,
    },
    /// Remove a pool and its blocks (DESTROY_CGROUP).
    DestroyPool {
        /// The VM.
        vm: String,
        /// The pool's name.
        pool: String,
    },
    /// Make what the cache holds of a disk, or of a range of it, a pool's of the same VM (MIGRATE_OBJECT).
    MigrateDisk {
        /// Its name.
        disk: String,
        /// The pool's name.
        pool: String,
        /// Where the range begins, bytes.
        #[serde(default)]
        offset: Size,
        /// Bytes of the range; to the end of the disk without.
        length: Option<Size>,
    },
    /// Cache nothing of a disk any more: its blocks are removed, and it is served uncached.
    UncacheDisk {
        /// Its name.
        disk: String,
    },
    /// Take over the size that a disk's image has now, and tell front ends over vhost-user.
    RescanDisk {
        /// Its name.
        disk: String,
    },
    /// Make the image of a disk larger, and tell front ends over vhost-user. Of a block device, take over its size.
    GrowDisk {
        /// Its name.
        disk: String,
        /// Its new size, whole sectors of 512 bytes. A block device must have it already.
        size: Size,
    },
    /// Serve another VM.
    AddVm {
        /// The keys of its `[[vm]]` in the configuration.
        vm: Table,
    },
    /// Serve a VM and its disks no more.
    RemoveVm {
        /// Its name.
        vm: String,
    },
    /// Serve another disk.
    AddDisk {
        /// The name of its VM, which is served.
        vm: String,
        /// The keys of its `[[vm.disk]]` in the configuration.
        disk: Table,
    },
    /// Serve a disk no more.
    RemoveDisk {
        /// Its name.
        disk: String,
    },
    /// Change the size of a store.
    SetStore {
        /// Which.
        store: StoreKind,
        /// Its new size.
        size: Size,
    },
    /// Put another SSD store in the place of the one that there is, if there is one; its blocks are dropped.
    ReplaceSsd {
        /// A file or a block device.
        path: PathBuf,
        /// Bytes of it to use.
        size: Size,
        /// What is there may be lost. Otherwise only what is empty, or an SSD store of Justitia's, is taken.
        #[serde(default)]
        overwrite: bool,
    },
    /// Remove the SSD store; its pools use memory.
    RemoveSsd,
}

/// The response to a request, on one line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlResponse {
    /// Done; for `stats`, the statistics; for `sample-disk`, bytes in memory, the shift and blocks; for
    /// `migrate-disk`, how many `blocks` were moved.
    Ok(serde_json::Value),
    /// Refused, and why.
    Error(String),
}

/// The statistics of a daemon.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// The cache.
    pub cache: CacheStats,
    /// The disks that are served.
    pub exports: Vec<VolumeStats>,
    /// Disks that are configured and cannot be served.
    pub unserved: Vec<UnservedDisk>,
    /// The ports of VMs that may put.
    pub ports: Vec<PortStats>,
    /// Those of the pools that guests have made.
    #[serde(skip)]
    pub pools_of_guests: BTreeSet<PoolId>,
    /// NBD clients at this moment.
    pub clients: usize,
    /// Front ends over vhost-user at this moment.
    pub vhost_front_ends: usize,
    /// Why io_uring is not supported here, if it is not: worker threads read and write disks then.
    pub io_uring_unsupported: Option<&'static str>,
}

/// A disk that cannot be served.
#[derive(Clone, Debug, Serialize)]
pub struct UnservedDisk {
    /// Its name.
    pub name: String,
    /// Why not.
    pub why: String,
}

impl UnservedDisk {
    pub(super) fn new((name, why): (&String, &String)) -> Self {
        Self {
            name: name.clone(),
            why: why.clone(),
        }
    }
}
