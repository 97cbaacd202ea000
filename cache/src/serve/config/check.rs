//! Whether the values of a configuration fit together.

use super::tables::{DiskMode, DiskTable, File, ListenTable, PoolTable, PortTable, VmTable};
use super::types::{Config, DiskConfig, Listen, PoolConfig, PortConfig, VmConfig};
use super::types::{NAME, default_policy, is_name};
use crate::config::{CacheConfig, Mode, PoolSpec, SsdConfig, StoreKind};
use crate::frontend::{ContainerTag, SocketAccess};
use crate::nbd::TlsFiles;
use justitia_common::toml_file::Report;
use justitia_guest_protocol::puts::Serial;
use justitia_share::Weight;
use nix::unistd::{Group, User};
use std::collections::BTreeSet;
use toml::Spanned;

impl File {
    pub(super) fn check(self, report: &mut Report<'_>) -> Config {
        self.check_listen(report);
        self.check_metrics(report);
        if let Some(ssd) = self.ssd.as_ref().filter(|ssd| ssd.size.get_ref().0 == 0) {
            let what = "expected a size above 0, found 0: without an SSD store leave [ssd] out";
            report.error_at(&ssd.size, what);
        }
        let access = self.listen.access(report);
        let insecure = self.listen.insecure.is_some_and(Spanned::into_inner);
        let served = self.listen.unix.is_some() || self.listen.tcp.is_some();
        let (mut vms, mut exports) = (BTreeSet::new(), BTreeSet::new());
        let vms = self
            .vm
            .into_iter()
            .map(|vm| vm.check(report, served, &mut vms, &mut exports))
            .collect();
        Config {
            cache: CacheConfig {
                memory_bytes: self.memory.size.0,
                memory_limit: self.memory.limit.map(|s| s.0),
                ssd: self.ssd.map(|ssd| SsdConfig {
                    path: ssd.path,
                    bytes: ssd.size.into_inner().0,
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
    /// A TCP address needs client certificates, or `insecure = true`.
    fn check_listen(&self, report: &mut Report<'_>) {
        let insecure = self.listen.insecure.as_ref();
        let insecure = insecure.filter(|insecure| *insecure.get_ref());
        let certified = self.tls.as_ref().is_some_and(|tls| tls.verify_clients);
        match (&self.listen.tcp, insecure) {
            (Some(tcp), None) if !certified => {
                let what = format!(
                    "expected a [tls] table with certificates of clients, found {} without: every client that reaches the address could read and write every disk; if that is intended, add `insecure = true`",
                    tcp.get_ref()
                );
                report.error_at(tcp, what);
            }
            (_, Some(insecure)) if certified => report.error_at(
                insecure,
                "expected either `insecure = true` or certificates of clients, found both: set `verify_clients = false` in [tls] to serve every disk to every client",
            ),
            _ => {}
        }
    }

    fn check_metrics(&self, report: &mut Report<'_>) {
        if let Some(metrics) = &self.metrics
            && !metrics.get_ref().ip().is_loopback()
        {
            let found = metrics.get_ref();
            let what = format!("expected a loopback address for metrics, found {found}");
            report.error_at(metrics, what);
        }
    }
}

impl VmTable {
    fn check(
        self,
        report: &mut Report<'_>,
        served: bool,
        vms: &mut BTreeSet<String>,
        exports: &mut BTreeSet<String>,
    ) -> VmConfig {
        unique(report, vms, "VM", &self.name);
        let unserved = self.disk.is_empty() || self.disk.iter().any(|d| d.vhost.is_none());
        if unserved && !served && self.socket.is_none() {
            let what = format!(
                "expected `socket` for VM {:?}, `vhost` for each of its disks, or `unix` or `tcp` in [listen], found none (in a command: --socket PATH, --vhost PATH)",
                self.name.get_ref()
            );
            report.error_at(&self.name, what);
        }
        self.check_pools(report);
        for disk in &self.disk {
            unique(report, exports, "disk", &disk.name);
        }
        let clients = match self.clients {
            Some(clients) => {
                if clients.get_ref().iter().any(String::is_empty) {
                    let what = "expected names in certificates, found an empty one";
                    report.error_at(&clients, what);
                }
                clients.into_inner()
            }
            None => vec![self.name.get_ref().clone()],
        };
        let port = self
            .port
            .map(|port| check_port(port, &self.name, exports, report));
        check_serials(&self.disk, port.is_some(), report);
        let disks: Vec<_> = self.disk.into_iter().map(DiskTable::into_config).collect();
        VmConfig {
            name: self.name.into_inner(),
            weight: self.weight,
            policy: self.policy.unwrap_or_else(|| default_policy(&disks)),
            socket: self.socket,
            clients,
            pools: self
                .pool
                .into_iter()
                .map(|pool| pool.into_config(report))
                .collect(),
            disks,
            port,
        }
    }
}

impl VmTable {
    fn check_pools(&self, report: &mut Report<'_>) {
        let (mut names, mut tags) = (BTreeSet::new(), BTreeSet::new());
        for pool in &self.pool {
            unique(report, &mut names, "pool of a VM", &pool.name);
            let Some(tag) = &pool.tag else { continue };
            let found = *tag.get_ref();
            if ContainerTag::new(found).is_none() {
                let most = ContainerTag::MAX;
                let what = format!("expected a tag from 1 to {most}, found {found}");
                report.error_at(tag, what);
            } else if !tags.insert(found) {
                let what = format!("expected every tag of a VM once, found {found} again");
                report.error_at(tag, what);
            }
        }
    }
}

impl PoolTable {
    fn into_config(self, report: &mut Report<'_>) -> PoolConfig {
        PoolConfig {
            spec: self.spec(report),
            name: self.name.into_inner(),
            tag: self.tag.and_then(|tag| ContainerTag::new(tag.into_inner())),
        }
    }

    /// ⟨store, weight⟩, or a weight for each store.
    fn spec(&self, report: &mut Report<'_>) -> PoolSpec {
        let Some(first) = self.memory_weight.as_ref().or(self.ssd_weight.as_ref()) else {
            let store = self.store.unwrap_or(StoreKind::Memory);
            return PoolSpec::of(store, self.weight.unwrap_or_default());
        };
        if self.weight.is_some() || self.store.is_some() {
            let both = "expected either `memory_weight` and `ssd_weight`, or `store` and `weight`, found both";
            report.error_at(first, both);
        }
        let mut weight = |found: &Option<Spanned<u64>>| {
            let found = found.as_ref().filter(|found| *found.get_ref() > 0)?;
            let weight = Weight::try_from(*found.get_ref());
            if let Err(error) = &weight {
                report.error_at(found, error.to_string());
            }
            Some(weight.unwrap_or_default())
        };
        let (memory, ssd) = (weight(&self.memory_weight), weight(&self.ssd_weight));
        PoolSpec::new(memory, ssd).unwrap_or_else(|| {
            report.error_at(
                first,
                "expected a weight in memory or on the SSD, found none",
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
    report: &mut Report<'_>,
) -> PortConfig {
    let bytes = port.residency.get_ref().0;
    if !(64..=MAX_RESIDENCY).contains(&bytes) {
        let found = port.residency.get_ref();
        let what = format!("expected a residency table of 64 bytes to 16 GiB, found {found}");
        report.error_at(&port.residency, what);
    }
    let name = match port.name {
        Some(name) => {
            unique(report, exports, "disk or port", &name);
            name.into_inner()
        }
        // It cannot collide: disk names have no slash.
        None => format!("{}/port", vm.get_ref()),
    };
    PortConfig {
        name,
        residency_bytes: bytes,
        ssd: port.ssd,
    }
}

/// The serial of a disk: its own, or its name if that is a valid serial.
pub(super) fn serial(disk: &DiskTable) -> Option<Serial> {
    let name = disk.serial.as_ref().unwrap_or(&disk.name);
    Serial::new(name.get_ref())
}

/// Serials must be valid. In a VM with a port each cached disk needs a serial of its own.
fn check_serials(disks: &[DiskTable], port: bool, report: &mut Report<'_>) {
    let mut seen = BTreeSet::new();
    for disk in disks {
        let named = disk.serial.as_ref().unwrap_or(&disk.name);
        let cached = !matches!(disk.mode, DiskMode::Uncached);
        let found = named.get_ref();
        match serial(disk) {
            None if disk.serial.is_some() => report.error_at(
                named,
                format!("expected a serial of 1 to 20 printable ASCII characters, found {found:?}"),
            ),
            // The name is checked elsewhere.
            None if port && cached && is_name(found) => report.error_at(
                named,
                format!(
                    "expected a serial for disk {found:?} of a VM with a port, as its name is none (1 to 20 printable ASCII characters): add `serial = \"...\"`"
                ),
            ),
            Some(serial) if port && cached && !seen.insert(serial) => report.error_at(
                named,
                format!("expected every serial once among the disks of a VM, found {found:?} again"),
            ),
            _ => {}
        }
    }
}

// The owner, group and mode of the sockets of disks.

impl ListenTable {
    pub(super) fn access(&self, report: &mut Report<'_>) -> SocketAccess {
        let mut access = SocketAccess::default();
        if let Some(mode) = &self.socket_mode {
            let parsed = u16::from_str_radix(mode.get_ref(), 8).ok();
            match parsed.filter(|mode| mode & 0o600 == 0o600 && mode & !0o770 == 0) {
                Some(mode) => access.mode = mode,
                None => {
                    let what = format!(
                        "expected an octal mode for user and group, such as \"0660\", found {:?}: who may connect can read and write every disk of the socket",
                        mode.get_ref()
                    );
                    report.error_at(mode, what);
                }
            }
        }
        access.owner = id(self.socket_owner.as_ref(), "user", report, |name| {
            User::from_name(name).ok()?.map(|user| user.uid.as_raw())
        });
        access.group = id(self.socket_group.as_ref(), "group", report, |name| {
            Group::from_name(name).ok()?.map(|group| group.gid.as_raw())
        });
        access
    }
}

/// The number of a user or group, given by name or number.
fn id(
    name: Option<&Spanned<String>>,
    what: &str,
    report: &mut Report<'_>,
    by_name: impl Fn(&str) -> Option<u32>,
) -> Option<u32> {
    let name = name?;
    let text = name.get_ref();
    let found = text.parse().ok().or_else(|| by_name(text));
    if found.is_none() {
        let what =
            format!("expected the name or number of a {what} of this machine, found {text:?}");
        report.error_at(name, what);
    }
    found
}

/// Checks that `name` is valid and not in `seen`.
fn unique(
    report: &mut Report<'_>,
    seen: &mut BTreeSet<String>,
    what: &str,
    name: &Spanned<String>,
) {
    let text = name.get_ref();
    if !is_name(text) {
        let what = format!("expected a {what} name of {NAME}, found {text:?}");
        report.error_at(name, what);
    } else if !seen.insert(text.clone()) {
        let what = format!("expected every {what} once, found {text:?} again");
        report.error_at(name, what);
    }
}
