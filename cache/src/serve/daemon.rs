//! What a running daemon serves.

use super::api::{ControlHandler, ControlRequest, Stats};
use super::change;
use super::config::{DiskConfig, PortConfig, VmConfig};
use super::error::ServeError;
use super::paths::{PathUse, collisions};
use super::planning::Planning;
use super::vms::{Vm, VmRegistry};
use crate::backing::{OpenOptions, RawDisk};
use crate::cache::{Cache, random};
use crate::config::SsdConfig;
use crate::disk::CachedDisk;
use crate::frontend::{Backend, Tenant, Volume};
use crate::nbd::{Export, Server};
use crate::port::{NamedPools, Port, PortVm, PutTarget};
use crate::vhost::VhostServer;
use justitia_link::Serial;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The cache, the volumes, and the servers in front of them.
pub(super) struct Daemon {
    pub(super) cache: Arc<Cache>,
    pub(super) servers: Vec<Server>,
    pub(super) vhost_servers: Vec<VhostServer>,
    pub(super) volumes: Vec<Arc<Volume>>,
    pub(super) ports: Vec<Arc<Port>>,
    pub(super) vms: Mutex<VmRegistry>,
    /// The paths that are in use, but for the SSD store's.
    paths: Vec<PathUse>,
    planning: Mutex<Planning>,
}

impl Daemon {
    pub(super) fn new(cache: Arc<Cache>, paths: Vec<PathUse>) -> Self {
        Self {
            cache,
            servers: Vec::new(),
            vhost_servers: Vec::new(),
            volumes: Vec::new(),
            ports: Vec::new(),
            vms: Mutex::default(),
            paths,
            planning: Mutex::default(),
        }
    }

    /// Adds a VM with its pools and disks. Returns the exports of its disks.
    pub(super) fn add_vm(&mut self, config: &VmConfig) -> Result<Vec<Arc<Export>>, ServeError> {
        let id = self
            .cache
            .add_vm(&config.name, config.weight, config.policy)?;
        let first = self.cache.default_pool(id)?;
        let tenant = Arc::new(Tenant::new(config.clients.clone()));
        tenant.set_weight(config.weight);
        let mut pools = NamedPools::new(first, Arc::clone(&tenant));
        for pool in &config.pools {
            let known = pools.get(&pool.name).map(|pool| pool.id);
            let id = if let Some(id) = known {
                self.cache.set_pool(id, pool.spec)?;
                pools.set_spec(&pool.name, pool.spec);
                id
            } else {
                let id = self.cache.create_pool(id, &pool.name, pool.spec)?;
                pools.insert(&pool.name, id, pool.spec);
                id
            };
            if let Some(named) = pools.get_mut(&pool.name) {
                named.target = pool.target;
            }
            if let Some(tag) = pool.tag {
                tenant.tags.set(tag, id);
            }
        }
        if let Some(port) = &config.port {
            self.cache.track_residency(id, port.residency_bytes)?;
        }
        let mut vm = Vm {
            id,
            tenant,
            pools: Arc::new(Mutex::new(pools)),
            disks: BTreeMap::new(),
            plans: config.plan,
        };
        let mut exports = Vec::new();
        let mut targets = BTreeMap::<_, Arc<dyn PutTarget>>::new();
        for disk in &config.disks {
            let volume = Arc::new(self.open_disk(&mut vm, disk)?);
            self.volumes.push(Arc::clone(&volume));
            if let Some(serial) = disk.serial.filter(|_| disk.mode.is_some()) {
                targets.insert(serial, Arc::clone(&volume) as _);
            }
            let description = format!("disk {} of VM {}", disk.name, config.name);
            exports.push(Arc::new(Export::new(volume, &description)));
        }
        if let Some(port) = &config.port {
            let volume = self.add_port(config, port, &vm, targets)?;
            let description = format!("port of VM {}", config.name);
            exports.push(Arc::new(Export::new(volume, &description)));
        }
        self.vms.get_mut().insert(&config.name, vm);
        Ok(exports)
    }

    /// Adds the port of a VM: a volume that only messages are written to.
    fn add_port(
        &mut self,
        config: &VmConfig,
        port: &PortConfig,
        vm: &Vm,
        disks: BTreeMap<Serial, Arc<dyn PutTarget>>,
    ) -> Result<Volume, ServeError> {
        let start = random().map_err(|source| ServeError::Io {
            what: "cannot take a random number for a port",
            source,
        })?;
        let vm_of_port = PortVm {
            id: vm.id,
            name: config.name.clone(),
            pools: Arc::clone(&vm.pools),
            disks,
            may_use_ssd: port.ssd,
        };
        let device = Arc::new(Port::new(Arc::clone(&self.cache), vm_of_port, start));
        self.ports.push(Arc::clone(&device));
        Ok(Volume::new(&port.name, Backend::Plain(device)).of_tenant(&vm.tenant))
    }

    fn open_disk(&self, vm: &mut Vm, disk: &DiskConfig) -> Result<Volume, ServeError> {
        let options = OpenOptions {
            read_only: disk.read_only,
            direct: disk.direct,
        };
        let raw = Arc::new(RawDisk::open(&disk.image, options)?);
        if disk.direct && !raw.is_direct() {
            tracing::warn!(
                "{}: the file system has no O_DIRECT: the host's page cache will hold the image, too",
                disk.image.display()
            );
        }
        let backend = self.backend(vm, disk, &raw)?;
        Ok(Volume::new(&disk.name, backend)
            .serial(disk.serial)
            .read_only(disk.read_only)
            .of_tenant(&vm.tenant)
            .allocation(raw))
    }

    /// Takes over the size that a disk's image has now.
    fn rescan(&self, disk: &str) -> Result<(), ServeError> {
        let volume = self.volumes.iter().find(|v| v.name() == disk);
        let volume = volume.ok_or_else(|| ServeError::NoVolume {
            found: disk.to_owned(),
            known: self
                .volumes
                .iter()
                .map(|v| v.name())
                .collect::<Vec<_>>()
                .join(", "),
        })?;
        let before = volume.size();
        let size = volume.backend().disk().refresh_size();
        let size = size.map_err(|source| ServeError::Size {
            disk: disk.to_owned(),
            source,
        })?;
        if size != before {
            tracing::info!(disk, "the disk has {size} bytes now, and had {before}");
            let ours = |s: &&VhostServer| Arc::ptr_eq(s.volume(), volume);
            let servers = self.vhost_servers.iter().filter(ours);
            servers.for_each(VhostServer::notify_config);
        }
        Ok(())
    }

    /// Puts another SSD store in the place of the one that there is, if its path is nothing else's.
    pub(super) fn replace_ssd(&self, ssd: SsdConfig) -> Result<(), ServeError> {
        let mut paths = self.paths.clone();
        paths.push(PathUse::ssd(&ssd.path));
        let found = collisions(&paths);
        if !found.is_empty() {
            return Err(ServeError::Paths(found));
        }
        Ok(self.cache.set_ssd(Some(ssd))?)
    }

    /// Plans the weights of VMs where that is asked for.
    pub(super) fn plan(&self) {
        self.planning.lock().step(&self.cache, &self.vms);
    }

    /// Closes all servers. Requests that are in flight have until `answered` to be finished; clients that have not taken
    /// their replies then are disconnected, and have until `left` to leave.
    pub(super) fn close_servers(&self, answered: Instant, left: Instant) {
        self.vhost_servers.iter().for_each(VhostServer::close);
        self.servers.iter().for_each(Server::close);
        let vhost = self.vhost_servers.iter();
        vhost.for_each(|server| server.wait(answered));
        self.servers.iter().for_each(|server| server.wait(answered));
        self.servers.iter().for_each(Server::cut_off);
        self.servers.iter().for_each(|server| server.wait(left));
    }

    fn backend(
        &self,
        vm: &mut Vm,
        disk: &DiskConfig,
        raw: &Arc<RawDisk>,
    ) -> Result<Backend, ServeError> {
        let Some(mode) = disk.mode else {
            return Ok(Backend::Plain(raw.clone()));
        };
        let id = self.cache.add_disk(vm.id, &disk.name)?;
        vm.disks.insert(disk.name.clone(), id);
        let cache = Arc::clone(&self.cache);
        Ok(Backend::Cached(CachedDisk::new(
            raw.clone(),
            cache,
            id,
            mode,
        )?))
    }
}

impl ControlHandler for Daemon {
    fn stats(&self) -> Stats {
        Stats {
            cache: self.cache.stats(),
            exports: self.volumes.iter().map(|v| v.stats()).collect(),
            ports: self.ports.iter().map(|port| port.stats()).collect(),
            plans: self.planning.lock().plans(),
            clients: self.servers.iter().map(Server::clients).sum(),
            vhost_front_ends: self
                .vhost_servers
                .iter()
                .filter(|s| s.is_connected())
                .count(),
            io_uring_unsupported: crate::ring::unsupported_reason(),
        }
    }

    fn change(&self, request: &ControlRequest) -> Result<(), ServeError> {
        match request {
            ControlRequest::RescanDisk { disk } => self.rescan(disk),
            ControlRequest::ReplaceSsd {
                path,
                size,
                overwrite,
            } => self.replace_ssd(SsdConfig {
                path: path.clone(),
                bytes: size.0,
                overwrite: *overwrite,
            }),
            _ => change::apply(&self.cache, &self.vms, request),
        }
    }
}
