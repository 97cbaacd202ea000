//! Why the daemon cannot start, or refuses a change.

use super::config::NAME;
use crate::backing::OpenError;
use crate::error::CacheError;
use crate::frontend::ListenError;
use crate::nbd::TlsError;
use justitia_share::WeightError;
use std::io;
use std::net::SocketAddr;

/// Why the daemon cannot start, or refused a change.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// An image.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A weight.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// Two ways to say the weights of a pool.
    #[error(
        "expected `memory_weight` and `ssd_weight`, or `weight` and `store`, of pool {pool:?} of VM {vm:?}, found both"
    )]
    Weights {
        /// The VM.
        vm: String,
        /// Its pool.
        pool: String,
    },
    /// One weight for a pool that has two.
    #[error(
        "expected to know of which store the weight is: pool {pool:?} of VM {vm:?} uses both; give `--memory-weight` or `--ssd-weight`"
    )]
    OneWeight {
        /// The VM.
        vm: String,
        /// Its pool.
        pool: String,
    },
    /// A pool in no store.
    #[error("expected a weight in memory or on the SSD, found 0 for both")]
    NoWeight,
    /// No VM of that name.
    #[error("expected the name of a VM that is served, found {found:?}; there are: {known}")]
    NoVm {
        /// What was asked for.
        found: String,
        /// What there is.
        known: String,
    },
    /// A VM that was taken out of the cache.
    #[error(
        "expected a VM that is cached, found {vm:?}, which is served uncached; restart the daemon to cache it again"
    )]
    Uncached {
        /// What was asked for.
        vm: String,
    },
    /// No pool of that name.
    #[error("expected the name of a pool of VM {vm:?}, found {found:?}; there are: {known}")]
    NoPool {
        /// The VM.
        vm: String,
        /// What was asked for.
        found: String,
        /// What there is.
        known: String,
    },
    /// A pool of that name.
    #[error("expected a new name for a pool of VM {vm:?}, found {found:?}, which exists")]
    PoolExists {
        /// The VM.
        vm: String,
        /// What was asked for.
        found: String,
    },
    /// The pool that is there as long as its VM.
    #[error(
        "expected a pool of a container, found {pool:?} of VM {vm:?}, which holds the blocks of no container: `justitia cache set vm {vm} --uncached` removes all pools of the VM"
    )]
    DefaultPool {
        /// The VM.
        vm: String,
        /// The pool.
        pool: String,
    },
    /// No cached disk of that name.
    #[error("expected the name of a disk that is cached, found {found:?}; there are: {known}")]
    NoDisk {
        /// What was asked for.
        found: String,
        /// What there is.
        known: String,
    },
    /// No disk of that name.
    #[error("expected the name of a disk that is served, found {found:?}; there are: {known}")]
    NoVolume {
        /// What was asked for.
        found: String,
        /// What there is.
        known: String,
    },
    /// A VM or disk of that name.
    #[error("expected a new name for a {what}, found {found:?}, which exists")]
    Exists {
        /// VM or disk.
        what: &'static str,
        /// What was asked for.
        found: String,
    },
    /// A serial that another disk of the VM has.
    #[error(
        "expected a serial that no other disk of VM {vm:?} has, found that of {other:?}: give another one"
    )]
    SerialExists {
        /// The VM.
        vm: String,
        /// Its disk that has it.
        other: String,
    },
    /// A VM or disk that the configuration would not take.
    #[error("{}", .0.join("; "))]
    Request(Vec<String>),
    /// Something was removed, and not as it should be.
    #[error("removed, but: {}", .0.join("; "))]
    Removed(Vec<String>),
    /// What is served is being changed, and that takes long.
    #[error("what is served is being changed by another request: ask again")]
    Changing,
    /// A configuration that would end all that is served.
    #[error(
        "expected at least one [[vm]], found none: nothing is removed; to end all disks, stop the daemon"
    )]
    NoVms,
    /// A disk that does not become larger.
    #[error(
        "expected a size of more than the {size} bytes that disk {disk:?} has, in whole sectors of 512 bytes, found {found}: disks only grow here"
    )]
    NoGrowth {
        /// The disk.
        disk: String,
        /// What it has, bytes.
        size: u64,
        /// What was asked for.
        found: u64,
    },
    /// A range that is not one of the disk.
    #[error(
        "expected a range in the {size} bytes of disk {disk:?}, found one from {begin} to {end}"
    )]
    Range {
        /// The disk.
        disk: String,
        /// What it has, bytes.
        size: u64,
        /// Where the range begins.
        begin: u64,
        /// Where it ends.
        end: u64,
    },
    /// A disk that is served read-only.
    #[error(
        "expected a disk that is writable, found {disk:?}, which is served read-only: only the size that its image gets elsewhere can be taken over (`--rescan`)"
    )]
    ReadOnly {
        /// The disk.
        disk: String,
    },
    /// An image cannot be made larger.
    #[error("cannot make the image of disk {disk:?} larger: {source}")]
    Grow {
        /// The disk.
        disk: String,
        /// Why not.
        source: io::Error,
    },
    /// A tag that no container has.
    #[error("expected a tag from 1 to 1023, found {found}")]
    Tag {
        /// What was asked for.
        found: u16,
    },
    /// The size of an image cannot be found out.
    #[error("cannot find out the size of the image of disk {disk:?}: {source}")]
    Size {
        /// The disk.
        disk: String,
        /// Why not.
        source: io::Error,
    },
    /// A name that cannot be given.
    #[error("expected a name of {NAME}, found {found:?}")]
    Name {
        /// What was asked for.
        found: String,
    },
    /// Metrics cannot be served.
    #[error("cannot serve metrics on {address}: {source}")]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Paths that lead to the same file or device.
    #[error("{}", .0.join("\n"))]
    Paths(Vec<String>),
    /// A thread cannot be started, or a directory made.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}
