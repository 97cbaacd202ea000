//! The tables of `cache.toml`, as they are read.

use crate::config::{CacheConfig, Policy, StoreKind};
use justitia_common::toml_file::Size;
use justitia_common::toml_file::value::{some_weight, weight};
use justitia_share::Weight;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub(super) memory: MemoryTable,
    pub(super) ssd: Option<SsdTable>,
    #[serde(default)]
    pub(super) listen: ListenTable,
    pub(super) tls: Option<TlsTable>,
    pub(super) control: Option<PathBuf>,
    pub(super) metrics: Option<Spanned<SocketAddr>>,
    #[serde(default)]
    pub(super) vm: Vec<VmTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MemoryTable {
    pub(super) size: Size,
    pub(super) limit: Option<Size>,
}

impl Default for MemoryTable {
    fn default() -> Self {
        Self {
            size: Size(CacheConfig::default().memory_bytes),
            limit: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SsdTable {
    pub(super) path: PathBuf,
    pub(super) size: Spanned<Size>,
    #[serde(default)]
    pub(super) overwrite: bool,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListenTable {
    pub(super) unix: Option<PathBuf>,
    pub(super) tcp: Option<Spanned<SocketAddr>>,
    pub(super) insecure: Option<Spanned<bool>>,
    pub(super) socket_mode: Option<Spanned<String>>,
    pub(super) socket_owner: Option<Spanned<String>>,
    pub(super) socket_group: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsTable {
    pub(super) directory: PathBuf,
    #[serde(default = "yes")]
    pub(super) verify_clients: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VmTable {
    pub(super) name: Spanned<String>,
    #[serde(default, deserialize_with = "weight")]
    pub(super) weight: Weight,
    #[serde(default)]
    pub(super) policy: Option<Policy>,
    pub(super) socket: Option<PathBuf>,
    pub(super) clients: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    pub(super) pool: Vec<PoolTable>,
    #[serde(default)]
    pub(super) disk: Vec<DiskTable>,
    pub(super) port: Option<PortTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortTable {
    pub(super) name: Option<Spanned<String>>,
    #[serde(default = "residency")]
    pub(super) residency: Spanned<Size>,
    #[serde(default)]
    pub(super) ssd: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PoolTable {
    pub(super) name: Spanned<String>,
    #[serde(default, deserialize_with = "some_weight")]
    pub(super) weight: Option<Weight>,
    pub(super) store: Option<StoreKind>,
    pub(super) memory_weight: Option<Spanned<u64>>,
    pub(super) ssd_weight: Option<Spanned<u64>>,
    pub(super) tag: Option<Spanned<u16>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiskTable {
    pub(super) name: Spanned<String>,
    pub(super) image: PathBuf,
    #[serde(default)]
    pub(super) read_only: bool,
    #[serde(default = "yes")]
    pub(super) direct: bool,
    #[serde(default)]
    pub(super) mode: DiskMode,
    pub(super) serial: Option<Spanned<String>>,
    pub(super) vhost: Option<PathBuf>,
    pub(super) format: Option<ImageFormat>,
}

/// The format of an image, whatever its contents look like.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ImageFormat {
    Raw,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DiskMode {
    #[default]
    Inclusive,
    Exclusive,
    Uncached,
}

/// 16 bytes for each 4 KiB block of a guest's page cache of 4 GiB.
fn residency() -> Spanned<Size> {
    Spanned::new(0..0, Size(16 << 20))
}

const fn yes() -> bool {
    true
}
