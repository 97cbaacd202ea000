//! What a running daemon serves.

use super::api::{ControlHandler, ControlRequest, Stats, UnservedDisk};
use super::change;
use super::config::Config;
use super::error::ServeError;
use super::paths::{PathUse, collisions};
use super::planning::Planning;
use super::vms::VmRegistry;
use crate::cache::Cache;
use crate::config::SsdConfig;
use crate::error::CacheError;
use crate::frontend::Volume;
use crate::nbd::Server;
use crate::port::Port;
use crate::store::{Foreign, check_place};
use crate::vhost::VhostServer;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// The cache, the volumes, and the servers in front of them.
pub(super) struct Daemon {
    pub(super) cache: Arc<Cache>,
    /// Serves all disks.
    pub(super) all: Server,
    /// Those of VMs that have sockets of their own, by the VM's name.
    pub(super) of_vms: Mutex<BTreeMap<String, Server>>,
    pub(super) vhost_servers: Mutex<Vec<VhostServer>>,
    pub(super) volumes: Mutex<Vec<Arc<Volume>>>,
    pub(super) ports: Mutex<Vec<Arc<Port>>>,
    pub(super) vms: Mutex<VmRegistry>,
    /// Disks that are configured and cannot be served, and why.
    pub(super) unserved: Mutex<BTreeMap<String, String>>,
    /// The paths that are in use, but for the SSD store's.
    paths: Mutex<Vec<PathUse>>,
    planning: Mutex<Planning>,
}

impl Daemon {
    pub(super) fn new(cache: Arc<Cache>, all: Server) -> Self {
        Self {
            cache,
            all,
            of_vms: Mutex::default(),
            vhost_servers: Mutex::default(),
            volumes: Mutex::default(),
            ports: Mutex::default(),
            vms: Mutex::default(),
            unserved: Mutex::default(),
            paths: Mutex::default(),
            planning: Mutex::default(),
        }
    }

    /// Remembers the paths of a configuration.
    pub(super) fn use_paths(&self, config: &Config) {
        let mut paths = PathUse::of(config);
        paths.retain(|of| !of.is_ssd());
        *self.paths.lock() = paths;
    }

    /// Adds the VMs and disks of a configuration that are not served yet, and serves them. Returns the names of the disks.
    /// What else has changed is left as it is, and said.
    pub(super) fn reload(&self, config: &Config) -> Result<Vec<String>, ServeError> {
        let found = collisions(&PathUse::of(config));
        if !found.is_empty() {
            return Err(ServeError::Paths(found));
        }
        let disks = config.vms.iter().flat_map(|vm| &vm.disks);
        let configured: BTreeSet<_> = disks.map(|disk| disk.name.as_str()).collect();
        for volume in self.volumes.lock().iter() {
            if !configured.contains(volume.name()) {
                let disk = volume.name();
                tracing::warn!(
                    disk,
                    "served until a restart, though it is not configured any more"
                );
            }
        }
        self.use_paths(config);
        let mut names = Vec::new();
        for vm in &config.vms {
            let added = self.add_vm(vm)?;
            names.extend(added.names());
            self.listen(added, config.listen.access)?;
        }
        Ok(names)
    }

    /// Takes over the size that a disk's image has now.
    fn rescan(&self, disk: &str) -> Result<(), ServeError> {
        let volumes = self.volumes.lock().clone();
        let volume = volumes.iter().find(|v| v.name() == disk);
        let volume = volume.ok_or_else(|| ServeError::NoVolume {
            found: disk.to_owned(),
            known: volumes
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
            let servers = self.vhost_servers.lock();
            servers
                .iter()
                .filter(ours)
                .for_each(VhostServer::notify_config);
        }
        Ok(())
    }

    /// Puts another SSD store in the place of the one that there is, if its path is nothing else's.
    pub(super) fn replace_ssd(&self, ssd: SsdConfig) -> Result<(), ServeError> {
        let mut paths = self.paths.lock().clone();
        paths.push(PathUse::ssd(&ssd.path));
        let found = collisions(&paths);
        if !found.is_empty() {
            return Err(ServeError::Paths(found));
        }
        // Before the one that there is goes.
        check_place(&ssd.path, Foreign::of(&ssd)).map_err(|source| CacheError::Ssd {
            path: ssd.path.clone(),
            source,
        })?;
        Ok(self.cache.set_ssd(Some(ssd))?)
    }

    /// Plans the weights of VMs where that is asked for.
    pub(super) fn plan(&self) {
        self.planning.lock().step(&self.cache, &self.vms);
    }

    /// Closes all servers. Requests that are in flight have until `answered` to be finished; clients that have not taken
    /// their replies then are disconnected, and have until `left` to leave.
    pub(super) fn close_servers(&self, answered: Instant, left: Instant) {
        let vhost = self.vhost_servers.lock();
        let of_vms = self.of_vms.lock();
        let servers = || of_vms.values().chain([&self.all]);
        vhost.iter().for_each(VhostServer::close);
        servers().for_each(Server::close);
        vhost.iter().for_each(|server| server.wait(answered));
        servers().for_each(|server| server.wait(answered));
        servers().for_each(Server::cut_off);
        servers().for_each(|server| server.wait(left));
    }
}

impl ControlHandler for Daemon {
    fn stats(&self) -> Stats {
        Stats {
            cache: self.cache.stats(),
            exports: self.volumes.lock().iter().map(|v| v.stats()).collect(),
            unserved: self.unserved.lock().iter().map(UnservedDisk::new).collect(),
            ports: self.ports.lock().iter().map(|port| port.stats()).collect(),
            plans: self.planning.lock().plans(),
            clients: {
                let of_vms = self.of_vms.lock();
                let servers = of_vms.values().chain([&self.all]);
                servers.map(Server::clients).sum()
            },
            vhost_front_ends: self
                .vhost_servers
                .lock()
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
