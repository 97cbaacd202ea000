//! `cache.toml`.

use super::size::Size;
use crate::nbd::TlsFiles;
use crate::{CacheConfig, Mode, Policy, PoolSpec, SsdConfig, StoreKind, Weight};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::DeTable;

mod faults;

/// What `justitia cache serve` does.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Config {
    /// The stores.
    pub cache: CacheConfig,
    /// Where the disks of all VMs are served; a VM can have a socket of its own besides.
    pub listen: Listen,
    /// Certificates for TLS.
    pub tls: Option<TlsFiles>,
    /// Where `justitia cache set` and `stats` ask.
    pub control: Option<PathBuf>,
    /// Where OpenMetrics are served over HTTP; a loopback address.
    pub metrics: Option<SocketAddr>,
    /// The VMs.
    pub vms: Vec<VmConfig>,
}

/// Where NBD clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Listen {
    /// A unix socket with all disks, for this user alone.
    pub unix: Option<PathBuf>,
    /// A TCP address, where clients show certificates and see the disks of the VMs that these belong to.
    pub tcp: Option<SocketAddr>,
    /// Whoever reaches the TCP address sees all disks.
    pub insecure: bool,
}

/// A virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Its name.
    pub name: String,
    /// Its weight among the VMs.
    pub weight: Weight,
    /// What is evicted first.
    pub policy: Policy,
    /// A unix socket on which this VM's disks are served, and no others.
    pub socket: Option<PathBuf>,
    /// Names in the certificates of its clients over TCP: subject's common name or DNS name.
    pub clients: Vec<String>,
    /// Pools for its containers, besides the one for everything else.
    pub pools: Vec<PoolConfig>,
    /// Its disks.
    pub disks: Vec<DiskConfig>,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name; `default` is the pool of blocks that belong to no container.
    pub name: String,
    /// ⟨store, weight⟩.
    pub spec: PoolSpec,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The export's name.
    pub name: String,
    /// A raw file or a block device.
    pub image: PathBuf,
    /// Writes are refused.
    pub read_only: bool,
    /// Go past the host's page cache where possible.
    pub direct: bool,
    /// Whether misses fill the cache; `None` is served uncached.
    pub mode: Option<Mode>,
}

/// What is wrong with a configuration, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; `None` when it is not one line's fault.
    pub line: Option<usize>,
    /// What was expected and what was found.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.what)
    }
}

impl std::error::Error for ConfigError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    memory: MemoryTable,
    ssd: Option<SsdTable>,
    #[serde(default)]
    listen: ListenTable,
    tls: Option<TlsTable>,
    control: Option<PathBuf>,
    metrics: Option<Spanned<SocketAddr>>,
    #[serde(default)]
    vm: Vec<VmTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MemoryTable {
    size: Size,
    limit: Option<Size>,
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
struct SsdTable {
    path: PathBuf,
    size: Size,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListenTable {
    unix: Option<PathBuf>,
    tcp: Option<Spanned<SocketAddr>>,
    insecure: Option<Spanned<bool>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsTable {
    directory: PathBuf,
    #[serde(default = "yes")]
    verify_clients: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VmTable {
    name: Spanned<String>,
    #[serde(default, deserialize_with = "weight")]
    weight: Weight,
    #[serde(default)]
    policy: Option<Policy>,
    socket: Option<PathBuf>,
    clients: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    pool: Vec<PoolTable>,
    #[serde(default)]
    disk: Vec<DiskTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PoolTable {
    name: Spanned<String>,
    #[serde(default, deserialize_with = "weight")]
    weight: Weight,
    store: Option<StoreKind>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskTable {
    name: Spanned<String>,
    image: PathBuf,
    #[serde(default)]
    read_only: bool,
    #[serde(default = "yes")]
    direct: bool,
    #[serde(default)]
    mode: DiskMode,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DiskMode {
    #[default]
    Inclusive,
    Exclusive,
    Uncached,
}

const fn yes() -> bool {
    true
}

fn weight<'de, D: Deserializer<'de>>(from: D) -> Result<Weight, D::Error> {
    let found = u64::deserialize(from)?;
    Weight::try_from(found).map_err(serde::de::Error::custom)
}

/// What a name of a VM, a pool or a disk consists of.
pub(super) const NAME: &str = "1 to 255 bytes without slashes and control characters";

/// Is it [`NAME`]?
pub(super) fn is_name(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.contains(|c: char| c == '/' || c.is_control())
}

/// Collects what is wrong.
struct Checker<'a> {
    file: &'a Path,
    text: &'a str,
    errors: Vec<ConfigError>,
}

impl Checker<'_> {
    fn say(&mut self, at: Option<usize>, what: String) {
        let line = at.map(|at| self.text[..at.min(self.text.len())].matches('\n').count() + 1);
        self.errors.push(ConfigError {
            file: self.file.into(),
            line,
            what,
        });
    }

    fn unique(&mut self, seen: &mut BTreeSet<String>, what: &str, name: &Spanned<String>) {
        let text = name.get_ref();
        let at = Some(name.span().start);
        if !is_name(text) {
            self.say(
                at,
                format!("expected a {what} name of {NAME}, found {text:?}"),
            );
        } else if !seen.insert(text.clone()) {
            self.say(
                at,
                format!("expected every {what} once, found {text:?} again"),
            );
        }
    }
}

/// The largest configuration file, bytes.
const LARGEST: u64 = 1 << 20;

impl Config {
    /// Reads a configuration: a regular file of at most 1 MiB.
    ///
    /// # Errors
    /// Everything that is wrong with it, as far as it can be read.
    pub fn load(file: &Path) -> Result<Self, Vec<ConfigError>> {
        let text = crate::regular::read(file, LARGEST).map_err(|e| {
            vec![ConfigError {
                file: file.into(),
                line: None,
                what: format!("expected a configuration that can be read: {e}"),
            }]
        })?;
        Self::parse(file, &text)
    }

    /// Reads a configuration from `text`; `file` names it in errors.
    ///
    /// # Errors
    /// Everything that is wrong with it: with its syntax; else with its values; else with how they fit together.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Vec<ConfigError>> {
        let mut checker = Checker {
            file,
            text,
            errors: Vec::new(),
        };
        let (document, syntax) = DeTable::parse_recoverable(text);
        for e in &syntax {
            checker.say(e.span().map(|s| s.start), e.message().to_owned());
        }
        if !syntax.is_empty() {
            return Err(checker.errors);
        }
        match toml::from_str::<File>(text) {
            Err(e) => {
                for (at, what) in faults::faults(document) {
                    checker.say(at, what);
                }
                if checker.errors.is_empty() {
                    checker.say(e.span().map(|s| s.start), e.message().to_owned());
                }
            }
            Ok(read) => {
                let config = read.check(&mut checker);
                if checker.errors.is_empty() {
                    return Ok(config);
                }
            }
        }
        Err(checker.errors)
    }

    /// One image of one VM on one socket, with everything else as it is by default.
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
                policy: Policy::Sieve,
                socket: None,
                clients: vec![name.to_owned()],
                pools: Vec::new(),
                disks: vec![DiskConfig {
                    name: name.to_owned(),
                    image: image.into(),
                    read_only: false,
                    direct: true,
                    mode: Some(Mode::Inclusive),
                }],
            }],
            ..Self::default()
        }
    }
}

impl File {
    fn check(self, checker: &mut Checker) -> Config {
        let insecure = self.listen.insecure.as_ref();
        let insecure = insecure.filter(|insecure| *insecure.get_ref());
        let certified = self.tls.as_ref().is_some_and(|tls| tls.verify_clients);
        match (&self.listen.tcp, insecure) {
            (Some(tcp), None) if !certified => checker.say(
                Some(tcp.span().start),
                format!(
                    "expected a [tls] table with certificates of clients, found {} without: whoever reaches the address could read and write every disk; if that is wanted, say `insecure = true` beside it",
                    tcp.get_ref()
                ),
            ),
            (_, Some(insecure)) if certified => checker.say(
                Some(insecure.span().start),
                "expected either `insecure = true` or certificates of clients, found both: say `verify_clients = false` in [tls] to serve every disk to whoever connects".into(),
            ),
            _ => {}
        }
        if let Some(metrics) = &self.metrics
            && !metrics.get_ref().ip().is_loopback()
        {
            checker.say(
                Some(metrics.span().start),
                format!(
                    "expected a loopback address for metrics, found {}",
                    metrics.get_ref()
                ),
            );
        }
        let served = self.listen.unix.is_some() || self.listen.tcp.is_some();
        let (mut vms, mut exports) = (BTreeSet::new(), BTreeSet::new());
        let vms = self
            .vm
            .into_iter()
            .map(|vm| vm.check(checker, served, &mut vms, &mut exports))
            .collect();
        Config {
            cache: CacheConfig {
                memory_bytes: self.memory.size.0,
                memory_limit: self.memory.limit.map(|s| s.0),
                ssd: self.ssd.map(|ssd| SsdConfig {
                    path: ssd.path,
                    bytes: ssd.size.0,
                }),
                ..CacheConfig::default()
            },
            listen: Listen {
                unix: self.listen.unix,
                insecure: insecure.is_some(),
                tcp: self.listen.tcp.map(Spanned::into_inner),
            },
            tls: self.tls.map(|tls| TlsFiles {
                directory: tls.directory,
                verify_clients: tls.verify_clients,
            }),
            control: self.control,
            metrics: self.metrics.map(Spanned::into_inner),
            vms,
        }
    }
}

impl VmTable {
    fn check(
        self,
        checker: &mut Checker,
        served: bool,
        vms: &mut BTreeSet<String>,
        exports: &mut BTreeSet<String>,
    ) -> VmConfig {
        checker.unique(vms, "VM", &self.name);
        if !served && self.socket.is_none() {
            checker.say(
                Some(self.name.span().start),
                format!(
                    "expected a socket for VM {:?} or a [listen] table for all, found neither",
                    self.name.get_ref()
                ),
            );
        }
        let mut pools = BTreeSet::new();
        for pool in &self.pool {
            checker.unique(&mut pools, "pool of a VM", &pool.name);
        }
        for disk in &self.disk {
            checker.unique(exports, "disk", &disk.name);
        }
        let clients = match self.clients {
            Some(clients) => {
                if clients.get_ref().iter().any(String::is_empty) {
                    checker.say(
                        Some(clients.span().start),
                        "expected names in certificates, found an empty one".into(),
                    );
                }
                clients.into_inner()
            }
            None => vec![self.name.get_ref().clone()],
        };
        let exclusive = |d: &DiskTable| matches!(d.mode, DiskMode::Exclusive);
        let policy = self.policy.unwrap_or_else(|| {
            if self.disk.iter().any(exclusive) {
                Policy::Ghost
            } else {
                Policy::Sieve
            }
        });
        VmConfig {
            name: self.name.into_inner(),
            weight: self.weight,
            policy,
            socket: self.socket,
            clients,
            pools: self.pool.into_iter().map(PoolTable::into_config).collect(),
            disks: self.disk.into_iter().map(DiskTable::into_config).collect(),
        }
    }
}

impl PoolTable {
    fn into_config(self) -> PoolConfig {
        PoolConfig {
            name: self.name.into_inner(),
            spec: PoolSpec {
                store: self.store.unwrap_or(StoreKind::Memory),
                weight: self.weight,
            },
        }
    }
}

impl DiskTable {
    fn into_config(self) -> DiskConfig {
        DiskConfig {
            name: self.name.into_inner(),
            image: self.image,
            read_only: self.read_only,
            direct: self.direct,
            mode: match self.mode {
                DiskMode::Inclusive => Some(Mode::Inclusive),
                DiskMode::Exclusive => Some(Mode::Exclusive),
                DiskMode::Uncached => None,
            },
        }
    }
}
