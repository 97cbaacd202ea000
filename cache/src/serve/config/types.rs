//! A configuration, checked. A daemon also hands it over to the program that it executes.

use crate::config::{CacheConfig, Mode, Policy, PoolSpec};
use crate::frontend::{ContainerTag, SocketAccess};
use crate::nbd::TlsFiles;
use justitia_common::toml_file::value::weight;
use justitia_guest_protocol::puts::Serial;
use justitia_share::Weight;
use serde::{Deserialize, Serialize, Serializer};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The configuration of `justitia cache serve`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Config {
    /// The stores.
    pub cache: CacheConfig,
    /// The addresses where the disks of all VMs are served. A VM can also have its own socket.
    pub listen: Listen,
    /// Certificates for TLS.
    pub tls: Option<TlsFiles>,
    /// The control socket, for `justitia cache set` and `stats`.
    pub control: Option<PathBuf>,
    /// The loopback address where OpenMetrics are served over HTTP.
    pub metrics: Option<SocketAddr>,
    /// The VMs.
    pub vms: Vec<VmConfig>,
}

/// The addresses for NBD clients.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Listen {
    /// A unix socket with all disks, for this user alone.
    pub unix: Option<PathBuf>,
    /// A TCP address. Clients show certificates, and see the disks of the VMs that name these certificates.
    pub tcp: Option<SocketAddr>,
    /// Every client of the TCP address sees all disks.
    pub insecure: bool,
    /// Owner, group and mode of the sockets of disks. The control socket is always for this user alone.
    pub access: SocketAccess,
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmConfig {
    /// Its name.
    pub name: String,
    /// Its weight among the VMs.
    #[serde(serialize_with = "number", deserialize_with = "weight")]
    pub weight: Weight,
    /// Its eviction policy.
    pub policy: Policy,
    /// A unix socket on which this VM's disks are served, and no others.
    pub socket: Option<PathBuf>,
    /// Names in the certificates of its clients over TCP: subject's common name or DNS name.
    pub clients: Vec<String>,
    /// Pools for its containers; `default` changes the one for everything else.
    pub pools: Vec<PoolConfig>,
    /// Its disks.
    pub disks: Vec<DiskConfig>,
    /// Its port, if its guest may put.
    pub port: Option<PortConfig>,
}

/// The port of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortConfig {
    /// The export's name.
    pub name: String,
    /// Bytes of the residency table: 16 for each block that is known.
    pub residency_bytes: u64,
    /// Its guest may choose the SSD store for its pools.
    pub ssd: bool,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolConfig {
    /// Its name; `default` is the pool of blocks that belong to no container.
    pub name: String,
    /// ⟨store, weight⟩.
    pub spec: PoolSpec,
    /// Its container's tag in requests over vhost-user.
    pub tag: Option<ContainerTag>,
}

impl Default for PoolConfig {
    /// The pool that every VM has.
    fn default() -> Self {
        Self {
            name: "default".into(),
            spec: PoolSpec::default(),
            tag: None,
        }
    }
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskConfig {
    /// The export's name.
    pub name: String,
    /// A raw file or a block device.
    pub image: PathBuf,
    /// Writes are refused.
    pub read_only: bool,
    /// Bypass the host's page cache where possible.
    pub direct: bool,
    /// Whether misses fill the cache; `None` is served uncached.
    pub mode: Option<Mode>,
    /// The serial by which its guest names it; needed where the VM has a port.
    pub serial: Option<Serial>,
    /// A unix socket on which it is served over vhost-user, to one front end at a time.
    pub vhost: Option<PathBuf>,
    /// Serve it raw, even if it looks like an image of another format.
    pub any_format: bool,
}

impl Config {
    /// One image of one VM on one socket, with default values for everything else.
    #[must_use]
    pub fn of_image(image: &Path, name: &str, socket: &Path) -> Self {
        Self {
            listen: Listen {
                unix: Some(socket.into()),
                ..Listen::default()
            },
            vms: vec![VmConfig {
                name: name.to_owned(),
                weight: Weight::default(),
                policy: Policy::S3Fifo,
                socket: None,
                clients: vec![name.to_owned()],
                pools: Vec::new(),
                disks: vec![DiskConfig {
                    name: name.to_owned(),
                    image: image.into(),
                    read_only: false,
                    direct: true,
                    mode: Some(Mode::Inclusive),
                    serial: Serial::new(name),
                    vhost: None,
                    any_format: false,
                }],
                port: None,
            }],
            ..Self::default()
        }
    }
}

/// The policy of a VM that names none, by the modes of its disks.
pub(in crate::serve) fn default_policy(disks: &[DiskConfig]) -> Policy {
    if disks.iter().any(|disk| disk.mode == Some(Mode::Exclusive)) {
        Policy::Ghost
    } else {
        Policy::S3Fifo
    }
}

fn number<S: Serializer>(weight: &Weight, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(weight.get())
}

// Names of VMs, pools and disks.

/// The form of names of VMs, pools and disks.
pub(in crate::serve) const NAME: &str = "1 to 255 bytes without slashes and control characters";

/// Does the text conform to [`NAME`]?
pub(in crate::serve) fn is_name(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.contains(|c: char| c == '/' || c.is_control())
}
