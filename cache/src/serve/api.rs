//! Requests to a running daemon over its control socket, and its responses.

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
    /// The configured disks, served or not, and their addresses.
    List,
    /// Which blocks of a disk are in memory, for a sample of its blocks. `justitia host duplicates` sends it.
    SampleDisk {
        /// Its name.
        disk: String,
        /// Chooses the sample.
        seed: u64,
        /// One block in 2^shift, or fewer if there are too many.
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
    /// Stop caching a VM: remove its pools and their blocks, and serve its disks uncached.
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
        /// Its new weight: in `store`, or if that is missing, in the one store that it uses.
        #[serde(default)]
        weight: Option<u64>,
        /// The one store that it uses from now on.
        #[serde(default)]
        store: Option<StoreKind>,
        /// Its new weight in memory; 0 to stop using memory. Not with `weight` and `store`.
        #[serde(default)]
        memory_weight: Option<u64>,
        /// Its new weight on the SSD; 0 to stop using the SSD. Not with `weight` and `store`.
        #[serde(default)]
        ssd_weight: Option<u64>,
        /// Its container's tag in requests over vhost-user, 1 to 1023, instead of the one it had.
        #[serde(default)]
        tag: Option<u16>,
        /// Make a new pool of that name.
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
    /// Move the cached blocks of a disk, or of a range of it, to another pool of the same VM (MIGRATE_OBJECT).
    MigrateDisk {
        /// Its name.
        disk: String,
        /// The pool's name.
        pool: String,
        /// The start of the range, bytes.
        #[serde(default)]
        offset: Size,
        /// Bytes of the range; `None`: to the end of the disk.
        length: Option<Size>,
    },
    /// Stop caching a disk: remove its blocks, and serve it uncached.
    UncacheDisk {
        /// Its name.
        disk: String,
    },
    /// Take over the current size of a disk's image, and tell front ends over vhost-user.
    RescanDisk {
        /// Its name.
        disk: String,
    },
    /// Grow the image of a disk, and tell front ends over vhost-user. For a block device, take over its size.
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
    /// Stop serving a VM and its disks.
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
    /// Stop serving a disk.
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
    /// Replace or add the SSD store. The blocks of the old one are dropped.
    ReplaceSsd {
        /// A file or a block device.
        path: PathBuf,
        /// Bytes of it to use.
        size: Size,
        /// Overwrite any contents. Otherwise only an empty place or a Justitia SSD store is accepted.
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
    /// The pools that guests have made.
    #[serde(skip)]
    pub pools_of_guests: BTreeSet<PoolId>,
    /// NBD clients at this moment.
    pub clients: usize,
    /// Front ends over vhost-user at this moment.
    pub vhost_front_ends: usize,
    /// Why io_uring is not supported here; worker threads read and write disks then. `None` if it is supported.
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
