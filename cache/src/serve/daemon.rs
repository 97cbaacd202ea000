//! The state of a running daemon.

use super::api::{ControlRequest, Stats, UnservedDisk};
use super::change;
use super::change::VmRegistry;
use super::error::ServeError;
use super::paths::PathUse;
use super::served::{Served, check_uses};
use crate::backing::RawImage;
use crate::cache::Cache;
use crate::config::SsdConfig;
use crate::connections::LeftConnection;
use crate::error::CacheError;
use crate::frontend::Volume;
use crate::ids::DiskId;
use crate::lock_rank::{Ranked, VMS};
use crate::nbd::Server;
use crate::port::Port;
use crate::store::{Foreign, check_place};
use crate::vhost::VhostServer;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The cache, the volumes, and the servers in front of them.
pub(super) struct Daemon {
    pub(super) cache: Arc<Cache>,
    /// Serves all disks.
    pub(super) all: Server,
    /// Servers of VMs with sockets of their own, by the VM's name.
    pub(super) of_vms: Mutex<BTreeMap<String, Server>>,
    pub(super) vhost_servers: Mutex<Vec<VhostServer>>,
    pub(super) volumes: Mutex<Vec<Arc<Volume>>>,
    pub(super) ports: Mutex<Vec<Arc<Port>>>,
    /// The images of cached disks.
    pub(super) images: Mutex<BTreeMap<DiskId, Weak<RawImage>>>,
    pub(super) vms: Ranked<VmRegistry, VMS>,
    /// Disks that are configured and cannot be served, and why.
    pub(super) unserved: Mutex<BTreeMap<String, String>>,
    /// The configuration to serve. A change holds this lock from its beginning to its end, so there is one at a time.
    pub(super) served: Mutex<Served>,
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
            images: Mutex::default(),
            vms: Ranked::default(),
            unserved: Mutex::default(),
            served: Mutex::default(),
        }
    }

    /// Replaces the SSD store, if the new path has no other use.
    pub(super) fn replace_ssd(&self, ssd: SsdConfig) -> Result<(), ServeError> {
        let mut served = self.served.lock();
        let mut paths = PathUse::of(&served.config);
        paths.retain(|of| !of.is_ssd());
        paths.push(PathUse::ssd(&ssd.path));
        check_uses(&paths)?;
        // Check before the old one is removed.
        check_place(&ssd.path, Foreign::of(&ssd)).map_err(|source| CacheError::Ssd {
            path: ssd.path.clone(),
            source,
        })?;
        // A store that failed to open is tried again at the next resize.
        let done = self.cache.set_ssd(Some(ssd));
        served.config.cache = self.cache.config();
        Ok(done?)
    }

    fn remove_ssd(&self) -> Result<(), ServeError> {
        let mut served = self.served.lock();
        self.cache.set_ssd(None)?;
        served.config.cache.ssd = None;
        Ok(())
    }

    /// Drops all volumes, ports and images.
    pub(super) fn let_go(&self) {
        self.all.forget();
        self.of_vms.lock().clear();
        self.vhost_servers.lock().clear();
        self.ports.lock().clear();
        *self.vms.lock() = VmRegistry::default();
        self.volumes.lock().clear();
    }

    /// Resumes the NBD clients that the last daemon has left.
    pub(super) fn go_on(&self) {
        let of_vms = self.of_vms.lock();
        of_vms.values().chain([&self.all]).for_each(Server::go_on);
    }

    /// Closes all servers of a daemon that could not start, and removes the sockets that it has made.
    pub(super) fn remove_sockets(&self) {
        let now = Instant::now();
        for path in self.close_servers(false, now, now).made() {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Closes all servers. Requests in flight have until `answered` to be finished. Clients that have not taken their replies
    /// then are disconnected, and have until `left` to leave. With `leaving`, the other clients are left to the next daemon.
    pub(super) fn close_servers(&self, leaving: bool, answered: Instant, left: Instant) -> Closed {
        let vhost = self.vhost_servers.lock();
        let of_vms = self.of_vms.lock();
        let servers = || of_vms.values().chain([&self.all]);
        vhost.iter().for_each(|server| server.close(leaving));
        let sockets = servers().flat_map(|server| server.close_keeping(leaving));
        let sockets = sockets.collect();
        vhost.iter().for_each(|server| server.wait(answered));
        servers().for_each(|server| server.wait(answered));
        servers().for_each(Server::cut_off);
        servers().for_each(|server| server.wait(left));
        Closed {
            sockets,
            connections: leaving.then(|| {
                let of_vhost = vhost.iter().filter_map(VhostServer::take_left);
                servers()
                    .flat_map(Server::take_left)
                    .chain(of_vhost)
                    .collect()
            }),
        }
    }
}

/// Sockets and connections of closed servers.
pub(super) struct Closed {
    /// The listening NBD sockets, with the paths of those that this daemon has made.
    pub(super) sockets: Vec<(Arc<OwnedFd>, Option<PathBuf>)>,
    /// Clients that the next daemon can resume; `None` unless it is about to be executed.
    pub(super) connections: Option<Vec<LeftConnection>>,
}

impl Closed {
    /// The paths of the sockets that this daemon has made. Closes the sockets.
    pub(super) fn made(&mut self) -> impl Iterator<Item = PathBuf> {
        self.sockets.drain(..).filter_map(|(_, path)| path)
    }
}

impl Daemon {
    /// The statistics.
    pub(super) fn stats(&self) -> Stats {
        // Release each lock before taking the next: others take them in other orders.
        let exports = self.volumes.lock().iter().map(|v| v.stats()).collect();
        let unserved = self.unserved.lock().iter().map(UnservedDisk::new).collect();
        let ports = self.ports.lock().iter().map(|port| port.stats()).collect();
        let pools_of_guests = self.vms.lock().pools_of_guests();
        let clients = {
            let of_vms = self.of_vms.lock();
            let servers = of_vms.values().chain([&self.all]);
            servers.map(Server::clients).sum()
        };
        let connected =
            |servers: &[VhostServer]| servers.iter().filter(|s| s.is_connected()).count();
        let vhost_front_ends = connected(&self.vhost_servers.lock());
        Stats {
            cache: self.cache.stats(),
            exports,
            unserved,
            ports,
            pools_of_guests,
            clients,
            vhost_front_ends,
            io_uring_unsupported: crate::ring::unsupported_reason(),
        }
    }

    /// Executes a request. Returns its response.
    pub(super) fn answer(&self, request: &ControlRequest) -> Result<Value, ServeError> {
        let (cache, vms) = (&self.cache, &self.vms);
        match request {
            ControlRequest::Stats => return json(self.stats()),
            ControlRequest::List => return json(self.list()?),
            ControlRequest::SampleDisk { disk, seed, shift } => {
                let (disk, _) = change::cached_disk(cache, disk)?;
                return json(cache.sample(disk, *seed, *shift));
            }
            ControlRequest::MigrateDisk {
                disk,
                pool,
                offset,
                length,
            } => {
                self.check_range(disk, offset.0, length.map(|length| length.0))?;
                let blocks = change::migrate_disk(cache, vms, disk, pool, *offset, *length)?;
                return Ok(json!({ "blocks": blocks }));
            }
            ControlRequest::RescanDisk { disk } => self.rescan(disk)?,
            ControlRequest::GrowDisk { disk, size } => self.grow(disk, size.0)?,
            ControlRequest::AddVm { vm } => self.add_vm_by_request(vm)?,
            ControlRequest::RemoveVm { vm } => self.remove_vm_by_request(vm)?,
            ControlRequest::AddDisk { vm, disk } => self.add_disk_by_request(vm, disk)?,
            ControlRequest::RemoveDisk { disk } => self.remove_disk_by_request(disk)?,
            ControlRequest::SetVm { vm, weight, policy } => {
                change::set_vm(cache, vms.lock().vm(vm)?, *weight, *policy)?;
            }
            ControlRequest::UncacheVm { vm } => change::uncache_vm(cache, vms, vm)?,
            ControlRequest::SetPool { .. } => change::change_pool(cache, vms, request)?,
            ControlRequest::DestroyPool { vm, pool } => {
                change::destroy_pool(cache, vms, vm, pool)?;
            }
            // Drops the blocks without a lock: it may take long.
            ControlRequest::UncacheDisk { disk } => {
                cache.remove_disk(change::cached_disk(cache, disk)?.0)?;
            }
            // Shrinking evicts, which may take long. It needs no lock, since no names change.
            ControlRequest::SetStore { store, size } => cache.resize(*store, size.0)?,
            ControlRequest::RemoveSsd => self.remove_ssd()?,
            ControlRequest::ReplaceSsd {
                path,
                size,
                overwrite,
            } => self.replace_ssd(SsdConfig {
                path: path.clone(),
                bytes: size.0,
                overwrite: *overwrite,
            })?,
        }
        Ok(Value::Null)
    }
}

fn json(value: impl Serialize) -> Result<Value, ServeError> {
    serde_json::to_value(value).map_err(|e| ServeError::Refused(e.to_string()))
}
