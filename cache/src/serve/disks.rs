//! VMs and disks, added at the start and by a reload.

use super::config::{DiskConfig, PortConfig, VmConfig};
use super::daemon::Daemon;
use super::error::ServeError;
use super::vms::Vm;
use crate::backing::{OpenError, OpenOptions, RawDisk};
use crate::cache::random;
use crate::disk::CachedDisk;
use crate::frontend::{Backend, SocketAccess, Tenant, Volume};
use crate::nbd::{Export, Limits};
use crate::port::{NamedPools, Port, PortVm, PutTarget};
use crate::vhost::VhostServer;
use justitia_link::Serial;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// What was added of a VM, and is not listened for yet.
#[derive(Default)]
pub(super) struct Added {
    vm: String,
    /// The VM's own socket, if the VM is new.
    socket: Option<PathBuf>,
    /// With their vhost sockets.
    exports: Vec<(Arc<Export>, Option<PathBuf>)>,
    /// The first disk that cannot be served, and why.
    pub(super) failed: Option<OpenError>,
}

impl Added {
    /// The names of what can be served now.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let exports = self.exports.iter();
        exports.map(|(export, _)| export.volume().name().to_owned())
    }
}

impl Daemon {
    /// Adds a VM with its pools and disks; of one that is known, the disks that are not served yet. Disks whose images
    /// cannot be opened are left out, and said.
    pub(super) fn add_vm(&self, config: &VmConfig) -> Result<Added, ServeError> {
        let mut added = Added {
            vm: config.name.clone(),
            ..Added::default()
        };
        let opened = self.open_new(config, &mut added);
        let mut vms = self.vms.lock();
        let is_new = !vms.knows(&config.name);
        if is_new {
            let vm = self.new_vm(config)?;
            vms.insert(&config.name, vm);
            added.socket.clone_from(&config.socket);
        } else if opened.is_empty() {
            return Ok(added);
        }
        let vm = vms.vm(&config.name)?;
        let mut targets = BTreeMap::<_, Arc<dyn PutTarget>>::new();
        for (disk, raw) in opened {
            let volume = Arc::new(self.volume_of(vm, disk, raw)?);
            self.volumes.lock().push(Arc::clone(&volume));
            if let Some(serial) = disk.serial.filter(|_| disk.mode.is_some()) {
                targets.insert(serial, Arc::clone(&volume) as _);
            }
            let description = format!("disk {} of VM {}", disk.name, config.name);
            let export = Arc::new(Export::new(volume, &description));
            added.exports.push((export, disk.vhost.clone()));
        }
        match &config.port {
            Some(port) if is_new => {
                let volume = self.add_port(config, port, vm, targets)?;
                let description = format!("port of VM {}", config.name);
                let export = Arc::new(Export::new(volume, &description));
                added.exports.push((export, None));
            }
            Some(_) => tracing::warn!(
                vm = config.name,
                "its guest cannot put pages of disks that were added to it, until the daemon is restarted"
            ),
            None => {}
        }
        Ok(added)
    }

    /// Opens the images of a VM's disks that are not served yet. Without the locks: they may lie on storage that hangs.
    fn open_new<'a>(
        &self,
        config: &'a VmConfig,
        added: &mut Added,
    ) -> Vec<(&'a DiskConfig, Arc<RawDisk>)> {
        let volumes = self.volumes.lock();
        let served: BTreeSet<_> = volumes.iter().map(|v| v.name().to_owned()).collect();
        drop(volumes);
        let new = config.disks.iter();
        let new = new.filter(|disk| !served.contains(&disk.name));
        let mut opened = Vec::new();
        for disk in new {
            match open_image(disk) {
                Ok(raw) => {
                    self.unserved.lock().remove(&disk.name);
                    opened.push((disk, raw));
                }
                Err(e) => {
                    let (vm, name) = (&config.name, &disk.name);
                    tracing::error!(vm, disk = name, "a disk is not served: {e}");
                    self.unserved.lock().insert(name.clone(), e.to_string());
                    added.failed.get_or_insert(e);
                }
            }
        }
        opened
    }

    /// Serves what was added.
    pub(super) fn listen(&self, added: Added, access: SocketAccess) -> Result<(), ServeError> {
        let mut of_vms = self.of_vms.lock();
        if let Some(socket) = &added.socket {
            let own = self.all.sibling();
            own.listen_unix_as(socket, access)?;
            of_vms.insert(added.vm.clone(), own);
        }
        for (export, vhost) in added.exports {
            if let Some(path) = vhost {
                let volume = Arc::clone(export.volume());
                let limits = Limits::default().io;
                let server =
                    VhostServer::listen(&path, volume, self.all.executor(), limits, access)?;
                self.vhost_servers.lock().push(server);
            }
            if let Some(own) = of_vms.get(&added.vm) {
                own.add(Arc::clone(&export));
            }
            self.all.add(export);
        }
        Ok(())
    }

    /// A VM with its pools, in the cache.
    fn new_vm(&self, config: &VmConfig) -> Result<Vm, ServeError> {
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
        Ok(Vm {
            id,
            tenant,
            pools: Arc::new(Mutex::new(pools)),
            disks: BTreeMap::new(),
            plans: config.plan,
        })
    }

    /// Adds the port of a VM: a volume that only messages are written to.
    fn add_port(
        &self,
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
        self.ports.lock().push(Arc::clone(&device));
        Ok(Volume::new(&port.name, Backend::Plain(device)).of_tenant(&vm.tenant))
    }

    fn volume_of(
        &self,
        vm: &mut Vm,
        disk: &DiskConfig,
        raw: Arc<RawDisk>,
    ) -> Result<Volume, ServeError> {
        let backend = match disk.mode {
            None => Backend::Plain(raw.clone()),
            Some(mode) => {
                let id = self.cache.add_disk(vm.id, &disk.name)?;
                vm.disks.insert(disk.name.clone(), id);
                let cache = Arc::clone(&self.cache);
                Backend::Cached(CachedDisk::new(raw.clone(), cache, id, mode)?)
            }
        };
        Ok(Volume::new(&disk.name, backend)
            .serial(disk.serial)
            .read_only(disk.read_only)
            .of_tenant(&vm.tenant)
            .allocation(raw))
    }
}

/// How the image of a disk is opened.
pub(super) const fn options(disk: &DiskConfig) -> OpenOptions {
    OpenOptions {
        read_only: disk.read_only,
        direct: disk.direct,
        any_format: disk.any_format,
    }
}

fn open_image(disk: &DiskConfig) -> Result<Arc<RawDisk>, OpenError> {
    let raw = Arc::new(RawDisk::open(&disk.image, options(disk))?);
    if disk.direct && !raw.is_direct() {
        tracing::warn!(
            "{}: the file system has no O_DIRECT: the host's page cache will hold the image, too",
            disk.image.display()
        );
    }
    Ok(raw)
}
