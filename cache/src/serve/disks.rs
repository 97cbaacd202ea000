//! Adds VMs and disks: at the start, by a reload and by requests.

use super::advice::sockets;
use super::change;
use super::config::{Config, DiskConfig, PortConfig, VmConfig};
use super::daemon::Daemon;
use super::error::ServeError;
use super::paths::{PathUse, collisions};
use crate::backing::{OpenError, OpenOptions, RawImage};
use crate::cache::random;
use crate::disk::CachedDisk;
use crate::frontend::{Backend, SocketAccess, Vm, Volume, check_socket_place};
use crate::ids::VmId;
use crate::nbd::{Export, Limits};
use crate::port::{Port, PutTarget};
use crate::store::{Foreign, check_place};
use crate::vhost::VhostServer;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// Parts of a VM that were added and have no listening sockets yet.
#[derive(Default)]
pub(super) struct Added {
    vm: String,
    /// The VM's own socket, if the VM is new.
    socket: Option<PathBuf>,
    /// Added disks and ports, with their vhost sockets.
    exports: Vec<(Arc<Export>, Option<PathBuf>)>,
    /// Disks that cannot be served.
    pub(super) failed: Vec<Failed>,
}

/// A disk that cannot be served, and why.
pub(super) struct Failed {
    pub(super) disk: String,
    pub(super) why: ServeError,
}

impl Daemon {
    /// Adds a VM with its pools and disks. If the VM is known, adds only the disks that are not served yet. Disks that fail are
    /// left out.
    ///
    /// # Errors
    /// When the VM cannot be added; nothing is changed then.
    pub(super) fn add_vm(&self, config: &VmConfig) -> Result<Added, ServeError> {
        let mut added = Added {
            vm: config.name.clone(),
            ..Added::default()
        };
        let opened = self.open_new(config, &mut added);
        let mut vms = self.vms.lock();
        let is_new = !vms.knows(&config.name);
        if is_new {
            vms.insert(self.new_vm(config)?);
            added.socket.clone_from(&config.socket);
        } else if opened.is_empty() {
            return Ok(added);
        }
        let vm = vms.vm(&config.name)?;
        let port = match (&config.port, is_new) {
            (Some(port), true) => Some(self.new_port(port, vm)?),
            _ => self.port_of(&config.name),
        };
        for (disk, raw) in opened {
            let volume = match self.volume_of(vm, disk, raw) {
                Ok(volume) => Arc::new(volume),
                Err(why) => {
                    let disk = disk.name.clone();
                    added.failed.push(Failed { disk, why });
                    continue;
                }
            };
            if let (Some(port), Some(serial)) = (&port, disk.serial.filter(|_| disk.mode.is_some()))
            {
                let target: Weak<Volume> = Arc::downgrade(&volume);
                port.set_disk(serial, target as Weak<dyn PutTarget>);
            }
            self.volumes.lock().push(Arc::clone(&volume));
            let description = format!("disk {} of VM {}", disk.name, config.name);
            let export = Arc::new(Export::new(volume, &description));
            added.exports.push((export, disk.vhost.clone()));
        }
        if let (Some(of), Some(device), true) = (&config.port, port, is_new) {
            let volume = Volume::new(&of.name, Backend::Plain(device)).of_vm(vm);
            let description = format!("port of VM {}", config.name);
            let export = Arc::new(Export::new(volume, &description));
            added.exports.push((export, None));
        }
        Ok(added)
    }

    /// Opens the images of a VM's disks that are not served yet. It holds no locks, since an image's storage may hang.
    fn open_new<'a>(
        &self,
        config: &'a VmConfig,
        added: &mut Added,
    ) -> Vec<(&'a DiskConfig, Arc<RawImage>)> {
        let volumes = self.volumes.lock();
        let served: BTreeSet<_> = volumes.iter().map(|v| v.name().to_owned()).collect();
        drop(volumes);
        let new = config.disks.iter();
        let new = new.filter(|disk| !served.contains(&disk.name));
        let mut opened = Vec::new();
        for disk in new {
            match open_image(disk) {
                Ok(raw) => opened.push((disk, raw)),
                Err(why) => added.failed.push(Failed {
                    disk: disk.name.clone(),
                    why: why.into(),
                }),
            }
        }
        opened
    }

    /// Listens for added disks. Returns the disks that are served now, and those whose sockets failed.
    ///
    /// # Errors
    /// When the VM's own socket fails.
    pub(super) fn listen(
        &self,
        added: Added,
        access: SocketAccess,
    ) -> Result<(Vec<String>, Vec<Failed>), ServeError> {
        let own = added.socket.as_ref().map(|_| self.all.sibling());
        let mut of_vms = self.of_vms.lock();
        let server = own.as_ref().or_else(|| of_vms.get(&added.vm));
        let (mut served, mut failed) = (Vec::new(), Vec::new());
        for (export, vhost) in added.exports {
            let name = export.volume().name().to_owned();
            match vhost.map(|path| self.listen_vhost(&path, &export, access)) {
                Some(Err(why)) => {
                    failed.push(Failed { disk: name, why });
                    continue;
                }
                Some(Ok(server)) => self.vhost_servers.lock().push(server),
                None => {}
            }
            self.unserved.lock().remove(&name);
            served.push(name);
            if let Some(server) = server {
                server.add(Arc::clone(&export));
            }
            self.all.add(export);
        }
        if let (Some(own), Some(socket)) = (own, &added.socket) {
            // Listen only after the server has all its disks.
            own.listen_unix_as(socket, access)?;
            of_vms.insert(added.vm, own);
        }
        Ok((served, failed))
    }

    fn listen_vhost(
        &self,
        path: &Path,
        export: &Export,
        access: SocketAccess,
    ) -> Result<VhostServer, ServeError> {
        let volume = Arc::clone(export.volume());
        let limits = Limits::default().io;
        let executor = self.all.executor();
        Ok(VhostServer::listen(path, volume, executor, limits, access)?)
    }

    /// Remembers why a disk is not served.
    pub(super) fn cannot_serve(&self, vm: &str, disk: &str, why: &ServeError) {
        tracing::error!(vm, disk, "a disk is not served: {why}");
        let mut unserved = self.unserved.lock();
        unserved.insert(disk.to_owned(), why.to_string());
    }

    /// A VM with its pools, in the cache.
    fn new_vm(&self, config: &VmConfig) -> Result<Arc<Vm>, ServeError> {
        let id = self
            .cache
            .add_vm(&config.name, config.weight, config.policy)?;
        self.fill_vm(id, config).inspect_err(|_| {
            // Undo the registration.
            let _ = self.cache.remove_vm(id);
        })
    }

    fn fill_vm(&self, id: VmId, config: &VmConfig) -> Result<Arc<Vm>, ServeError> {
        let vm = Vm::new(&self.cache, id, &config.name, config.clients.clone())?;
        vm.set_weight(config.weight);
        change::configure_pools(&self.cache, &vm, &config.pools)?;
        if let Some(port) = &config.port {
            self.cache.track_residency(id, port.residency_bytes)?;
        }
        Ok(Arc::new(vm))
    }

    /// The port of a new VM: a disk that only messages are written to.
    fn new_port(&self, port: &PortConfig, vm: &Arc<Vm>) -> Result<Arc<Port>, ServeError> {
        let start = random().map_err(|e| {
            ServeError::Refused(format!("cannot take a random number for a port: {e}"))
        })?;
        let cache = Arc::clone(&self.cache);
        let port = Arc::new(Port::new(cache, Arc::clone(vm), port.ssd, start));
        self.ports.lock().push(Arc::clone(&port));
        Ok(port)
    }

    fn port_of(&self, vm: &str) -> Option<Arc<Port>> {
        let ports = self.ports.lock();
        ports.iter().find(|port| port.vm_name() == vm).cloned()
    }

    fn volume_of(
        &self,
        vm: &Arc<Vm>,
        disk: &DiskConfig,
        raw: Arc<RawImage>,
    ) -> Result<Volume, ServeError> {
        let backend = match disk.mode {
            None => Backend::Plain(raw.clone()),
            Some(mode) => {
                let id = self.cache.add_disk(vm.id, &disk.name)?;
                self.images.lock().insert(id, Arc::downgrade(&raw));
                let cache = Arc::clone(&self.cache);
                Backend::Cached(CachedDisk::new(raw.clone(), cache, id, mode)?)
            }
        };
        Ok(Volume::new(&disk.name, backend)
            .serial(disk.serial)
            .read_only(disk.read_only)
            .of_vm(vm)
            .image(raw))
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

fn open_image(disk: &DiskConfig) -> Result<Arc<RawImage>, OpenError> {
    let raw = Arc::new(RawImage::open(&disk.image, options(disk))?);
    if disk.direct && !raw.is_direct() {
        tracing::warn!(
            "{}: the file system has no O_DIRECT: the host's page cache will hold the image, too",
            disk.image.display()
        );
    }
    Ok(raw)
}

// Sizes of disks that change while they are served.

/// Sizes are whole sectors: a virtio disk has no part of one.
const SECTOR: u64 = 512;

impl Daemon {
    /// Takes over the current size of a disk's image.
    pub(super) fn rescan(&self, disk: &str) -> Result<(), ServeError> {
        let volume = self.volume(disk)?;
        let before = volume.size();
        let size = volume.backend().disk().refresh_size();
        let size = size.map_err(|e| {
            ServeError::Refused(format!(
                "cannot find out the size of the image of disk {disk:?}: {e}"
            ))
        })?;
        self.tell_size(&volume, before, size);
        Ok(())
    }

    /// Grows a disk's image. A file gets a hole at its end, which is on stable storage before this returns. A block device must
    /// already have the size, which is taken over. The current size is no error, so that a request can be repeated.
    pub(super) fn grow(&self, disk: &str, size: u64) -> Result<(), ServeError> {
        // Excludes a concurrent removal.
        let _served = self.served.lock();
        let volume = self.volume(disk)?;
        let before = volume.size();
        if size < before || !size.is_multiple_of(SECTOR) {
            return Err(ServeError::Refused(format!(
                "expected a size of more than the {before} bytes that disk {disk:?} has, in whole sectors of 512 bytes, found {size}: disks only grow here"
            )));
        }
        if volume.is_read_only() {
            return Err(ServeError::Refused(format!(
                "expected a disk that is writable, found {disk:?}, which is served read-only: only the size that its image gets elsewhere can be taken over (`--rescan`)"
            )));
        }
        let grown = volume.backend().disk().grow(size);
        let size = grown.map_err(|e| {
            ServeError::Refused(format!(
                "cannot make the image of disk {disk:?} larger: {e}"
            ))
        })?;
        self.tell_size(&volume, before, size);
        Ok(())
    }

    /// Checks that a range of a migration begins inside the disk and does not end behind it.
    pub(super) fn check_range(
        &self,
        disk: &str,
        begin: u64,
        length: Option<u64>,
    ) -> Result<(), ServeError> {
        // A caller reports unserved disks, with the names of the cached ones.
        let Ok(volume) = self.volume(disk) else {
            return Ok(());
        };
        let size = volume.size();
        let end = length.map_or(size, |length| begin.saturating_add(length));
        if end > size || (begin > 0 && begin >= size) {
            let end = end.max(begin);
            return Err(ServeError::Refused(format!(
                "expected a range in the {size} bytes of disk {disk:?}, found one from {begin} to {end}"
            )));
        }
        Ok(())
    }

    fn volume(&self, disk: &str) -> Result<Arc<Volume>, ServeError> {
        let volumes = self.volumes.lock();
        let volume = volumes.iter().find(|v| v.name() == disk);
        volume.map(Arc::clone).ok_or_else(|| {
            let known = volumes.iter().map(|v| v.name());
            ServeError::unknown("disk that is served", disk, known)
        })
    }

    /// Tells front ends over vhost-user of a new size. NBD has no message for it: clients see it when they connect again.
    fn tell_size(&self, volume: &Arc<Volume>, before: u64, size: u64) {
        if size == before {
            return;
        }
        let disk = volume.name();
        tracing::info!(disk, "the disk has {size} bytes now, and had {before}");
        let ours = |server: &&VhostServer| Arc::ptr_eq(server.volume(), volume);
        let servers = self.vhost_servers.lock();
        servers
            .iter()
            .filter(ours)
            .for_each(VhostServer::notify_config);
    }
}

// Checks of `--check-config` on this machine, before anything is started or changed.

/// The parts of a configuration that cannot be served here and now, in words. Changes nothing.
#[must_use]
pub fn preflight(config: &Config) -> Vec<String> {
    let mut found = collisions(&PathUse::of(config));
    // Of a path that is used twice, more need not be said.
    if found.is_empty() {
        if let Some(ssd) = &config.cache.ssd
            && let Err(e) = check_place(&ssd.path, Foreign::of(ssd))
        {
            found.push(format!(
                "cannot use {} as SSD store: {e}",
                ssd.path.display()
            ));
        }
        let places = sockets(config).chain(&config.control);
        let refused = places.filter_map(|path| check_socket_place(path).err());
        found.extend(refused.map(|why| why.to_string()));
    }
    for disk in config.vms.iter().flat_map(|vm| &vm.disks) {
        if let Err(e) = RawImage::check(&disk.image, options(disk)) {
            found.push(format!("disk {:?}: {e}", disk.name));
        }
    }
    if let Some(tls) = &config.tls {
        found.extend(tls.faults());
    }
    found
}
