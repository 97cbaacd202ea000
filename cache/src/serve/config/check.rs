//! Whether the values of a configuration fit together.

use super::tables::{DiskMode, DiskTable, File, ListenTable, PoolTable, PortTable, VmTable};
use super::types::{Config, DiskConfig, Listen, NAME, PoolConfig, PortConfig, VmConfig, is_name};
use crate::config::{CacheConfig, Mode, Policy, PoolSpec, SsdConfig, StoreKind};
use crate::frontend::{ContainerTag, SocketAccess};
use crate::nbd::TlsFiles;
use justitia_link::Serial;
use justitia_share::Weight;
use nix::unistd::{Group, User};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;

impl File {
    pub(super) fn check(self, checker: &mut Checker) -> Config {
        self.check_listen(checker);
        self.check_metrics(checker);
        let access = self.listen.access(checker);
        let insecure = self.listen.insecure.is_some_and(Spanned::into_inner);
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
                    overwrite: ssd.overwrite,
                }),
            },
            listen: Listen {
                unix: self.listen.unix,
                insecure,
                access,
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

impl File {
    /// A TCP address needs certificates of clients, or the wish to do without.
    fn check_listen(&self, checker: &mut Checker) {
        let insecure = self.listen.insecure.as_ref();
        let insecure = insecure.filter(|insecure| *insecure.get_ref());
        let certified = self.tls.as_ref().is_some_and(|tls| tls.verify_clients);
        match (&self.listen.tcp, insecure) {
            (Some(tcp), None) if !certified => checker.error(
                Some(tcp.span().start),
                format!(
                    "expected a [tls] table with certificates of clients, found {} without: every client that reaches the address could read and write every disk; if that is intended, add `insecure = true`",
                    tcp.get_ref()
                ),
            ),
            (_, Some(insecure)) if certified => checker.error(
                Some(insecure.span().start),
                "expected either `insecure = true` or certificates of clients, found both: set `verify_clients = false` in [tls] to serve every disk to every client".into(),
            ),
            _ => {}
        }
    }

    fn check_metrics(&self, checker: &mut Checker) {
        if let Some(metrics) = &self.metrics
            && !metrics.get_ref().ip().is_loopback()
        {
            checker.error(
                Some(metrics.span().start),
                format!(
                    "expected a loopback address for metrics, found {}",
                    metrics.get_ref()
                ),
            );
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
        let unserved = self.disk.is_empty() || self.disk.iter().any(|d| d.vhost.is_none());
        if unserved && !served && self.socket.is_none() {
            checker.error(
                Some(self.name.span().start),
                format!(
                    "expected a socket for VM {:?}, a `vhost` socket for each of its disks, or a [listen] table for all, found none",
                    self.name.get_ref()
                ),
            );
        }
        self.check_pools(checker);
        for disk in &self.disk {
            checker.unique(exports, "disk", &disk.name);
        }
        let clients = match self.clients {
            Some(clients) => {
                if clients.get_ref().iter().any(String::is_empty) {
                    checker.error(
                        Some(clients.span().start),
                        "expected names in certificates, found an empty one".into(),
                    );
                }
                clients.into_inner()
            }
            None => vec![self.name.get_ref().clone()],
        };
        let port = self
            .port
            .map(|port| check_port(port, &self.name, exports, checker));
        check_serials(&self.disk, port.is_some(), checker);
        let exclusive = |d: &DiskTable| matches!(d.mode, DiskMode::Exclusive);
        let policy = self.policy.unwrap_or_else(|| {
            if self.disk.iter().any(exclusive) {
                Policy::Ghost
            } else {
                Policy::S3Fifo
            }
        });
        VmConfig {
            name: self.name.into_inner(),
            weight: self.weight,
            policy,
            socket: self.socket,
            clients,
            pools: self
                .pool
                .into_iter()
                .map(|pool| pool.into_config(checker))
                .collect(),
            disks: self.disk.into_iter().map(DiskTable::into_config).collect(),
            port,
        }
    }
}

impl VmTable {
    fn check_pools(&self, checker: &mut Checker) {
        let (mut names, mut tags) = (BTreeSet::new(), BTreeSet::new());
        for pool in &self.pool {
            checker.unique(&mut names, "pool of a VM", &pool.name);
            let Some(tag) = &pool.tag else { continue };
            let (at, found) = (Some(tag.span().start), *tag.get_ref());
            if ContainerTag::new(found).is_none() {
                let most = ContainerTag::MAX;
                checker.error(
                    at,
                    format!("expected a tag from 1 to {most}, found {found}"),
                );
            } else if !tags.insert(found) {
                checker.error(
                    at,
                    format!("expected every tag of a VM once, found {found} again"),
                );
            }
        }
    }
}

impl PoolTable {
    fn into_config(self, checker: &mut Checker) -> PoolConfig {
        PoolConfig {
            spec: self.spec(checker),
            name: self.name.into_inner(),
            tag: self.tag.and_then(|tag| ContainerTag::new(tag.into_inner())),
        }
    }

    /// ⟨store, weight⟩, or a weight for each store.
    fn spec(&self, checker: &mut Checker) -> PoolSpec {
        let Some(first) = self.memory_weight.as_ref().or(self.ssd_weight.as_ref()) else {
            let store = self.store.unwrap_or(StoreKind::Memory);
            return PoolSpec::of(store, self.weight.unwrap_or_default());
        };
        let at = Some(first.span().start);
        if self.weight.is_some() || self.store.is_some() {
            let both = "expected either `memory_weight` and `ssd_weight`, or `store` and `weight`, found both";
            checker.error(at, both.into());
        }
        let mut weight = |found: &Option<Spanned<u64>>| {
            let found = found.as_ref().filter(|found| *found.get_ref() > 0)?;
            let weight = Weight::try_from(*found.get_ref());
            if let Err(error) = &weight {
                checker.error(Some(found.span().start), error.to_string());
            }
            Some(weight.unwrap_or_default())
        };
        let (memory, ssd) = (weight(&self.memory_weight), weight(&self.ssd_weight));
        PoolSpec::new(memory, ssd).unwrap_or_else(|| {
            checker.error(
                at,
                "expected a weight in memory or on the SSD, found none".into(),
            );
            PoolSpec::default()
        })
    }
}

impl DiskTable {
    fn into_config(self) -> DiskConfig {
        DiskConfig {
            serial: serial(&self),
            name: self.name.into_inner(),
            image: self.image,
            read_only: self.read_only,
            direct: self.direct,
            vhost: self.vhost,
            any_format: self.format.is_some(),
            mode: match self.mode {
                DiskMode::Inclusive => Some(Mode::Inclusive),
                DiskMode::Exclusive => Some(Mode::Exclusive),
                DiskMode::Uncached => None,
            },
        }
    }
}

// The port of a VM, and the serials by which its guest names its disks.

/// The largest residency table: of a guest that holds 4 TiB.
const MAX_RESIDENCY: u64 = 16 << 30;

fn check_port(
    port: PortTable,
    vm: &Spanned<String>,
    exports: &mut BTreeSet<String>,
    checker: &mut Checker<'_>,
) -> PortConfig {
    let bytes = port.residency.get_ref().0;
    if !(64..=MAX_RESIDENCY).contains(&bytes) {
        checker.error(
            Some(port.residency.span().start),
            format!("expected a residency table of 64 bytes to 16 GiB, found {bytes} bytes"),
        );
    }
    let name = match port.name {
        Some(name) => {
            checker.unique(exports, "disk or port", &name);
            name.into_inner()
        }
        // No disk's name has a slash.
        None => format!("{}/port", vm.get_ref()),
    };
    PortConfig {
        name,
        residency_bytes: bytes,
        ssd: port.ssd,
    }
}

/// The serial of a disk: its own, or its name where that is one.
pub(super) fn serial(disk: &DiskTable) -> Option<Serial> {
    let name = disk.serial.as_ref().unwrap_or(&disk.name);
    Serial::new(name.get_ref())
}

/// A serial is one, and of the disks of a VM with a port each that is cached has one that no other has.
fn check_serials(disks: &[DiskTable], port: bool, checker: &mut Checker<'_>) {
    let mut seen = BTreeSet::new();
    for disk in disks {
        let named = disk.serial.as_ref().unwrap_or(&disk.name);
        let cached = !matches!(disk.mode, DiskMode::Uncached);
        let at = Some(named.span().start);
        let found = named.get_ref();
        match serial(disk) {
            None if disk.serial.is_some() => checker.error(
                at,
                format!("expected a serial of 1 to 20 printable ASCII characters, found {found:?}"),
            ),
            // The name is checked elsewhere.
            None if port && cached && is_name(found) => checker.error(
                at,
                format!(
                    "expected a serial for disk {found:?} of a VM with a port, as its name is none (1 to 20 printable ASCII characters): add `serial = \"...\"`"
                ),
            ),
            Some(serial) if port && cached && !seen.insert(serial) => checker.error(
                at,
                format!("expected every serial once among the disks of a VM, found {found:?} again"),
            ),
            _ => {}
        }
    }
}

// Who may connect to the sockets of disks.

impl ListenTable {
    pub(super) fn access(&self, checker: &mut Checker) -> SocketAccess {
        let mut access = SocketAccess::default();
        if let Some(mode) = &self.socket_mode {
            let parsed = u16::from_str_radix(mode.get_ref(), 8).ok();
            match parsed.filter(|mode| mode & 0o600 == 0o600 && mode & !0o770 == 0) {
                Some(mode) => access.mode = mode,
                None => checker.error(
                    Some(mode.span().start),
                    format!(
                        "expected an octal mode for user and group, such as \"0660\", found {:?}: who may connect can read and write every disk of the socket",
                        mode.get_ref()
                    ),
                ),
            }
        }
        access.owner = id(self.socket_owner.as_ref(), "user", checker, |name| {
            User::from_name(name).ok()?.map(|user| user.uid.as_raw())
        });
        access.group = id(self.socket_group.as_ref(), "group", checker, |name| {
            Group::from_name(name).ok()?.map(|group| group.gid.as_raw())
        });
        access
    }
}

/// The number of a user or group, by its name or as it is.
fn id(
    name: Option<&Spanned<String>>,
    what: &str,
    checker: &mut Checker,
    by_name: impl Fn(&str) -> Option<u32>,
) -> Option<u32> {
    let name = name?;
    let text = name.get_ref();
    let found = text.parse().ok().or_else(|| by_name(text));
    if found.is_none() {
        let what =
            format!("expected the name or number of a {what} of this machine, found {text:?}");
        checker.error(Some(name.span().start), what);
    }
    found
}

// Errors of a configuration, with file and line.

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

/// Collects the errors of one file.
pub(super) struct Checker<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    pub(super) errors: Vec<ConfigError>,
}

impl Checker<'_> {
    pub(super) fn error(&mut self, at: Option<usize>, what: String) {
        let line = at.map(|at| self.text[..at.min(self.text.len())].matches('\n').count() + 1);
        self.errors.push(ConfigError {
            file: self.file.into(),
            line,
            what,
        });
    }

    pub(super) fn unique(
        &mut self,
        seen: &mut BTreeSet<String>,
        what: &str,
        name: &Spanned<String>,
    ) {
        let text = name.get_ref();
        let at = Some(name.span().start);
        if !is_name(text) {
            self.error(
                at,
                format!("expected a {what} name of {NAME}, found {text:?}"),
            );
        } else if !seen.insert(text.clone()) {
            self.error(
                at,
                format!("expected every {what} once, found {text:?} again"),
            );
        }
    }
}
