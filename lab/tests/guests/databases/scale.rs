//! The paper's sizes, divided by eight.

/// Bytes of memory that containers have together: 6 GB.
pub(crate) const MEMORY: u64 = 768 << 20;

/// MiB of the hypervisor cache: 2 GB.
pub(crate) const CACHE_MIB: u64 = 256;

/// Redis's keys, of 1,000 bytes each: 212 MiB with what Redis keeps of each, for a working set of 2 GB.
pub(crate) const KEYS: u64 = 190_000;

/// MariaDB's rows, of 189 bytes each: with the server 1.9 GB.
pub(crate) const ROWS: u64 = 750_000;

/// PostgreSQL's rows: 230 MiB with their index, for the 1.8 GB that MongoDB used of both memories.
pub(crate) const DOCUMENTS: u64 = 1_300_000;

/// The web server's files.
pub(crate) const FILES: u64 = 6400;

/// Their mean size, as `justitia-load` reads it: together 400 MiB. With Morai++ it used 2.7 GB of both memories.
pub(crate) const MEAN_SIZE: &str = "64k";

/// The limits in the VM: 1 : 2 : 2 : 1 GB, in the order MongoDB, MySQL, Redis, Webserver.
pub(crate) const LIMITS_MIB: [(&str, u64); 4] = [
    ("postgres", 128),
    ("mariadb", 256),
    ("redis", 256),
    ("web", 128),
];

/// What one store has of both memories in the test of splits: 2 GB.
pub(crate) const SPLIT_MIB: u64 = 256;

/// How the guest's kernel reclaims. The paper's had the classic LRU only; MGLRU swapped nothing of these stores in one
/// run. 100 says that swap and files cost the same to read again: they lie on the same disk.
pub(crate) const RECLAIM: &str =
    "echo n >/sys/kernel/mm/lru_gen/enabled; echo 100 >/proc/sys/vm/swappiness";
