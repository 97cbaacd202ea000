//! Removes VMs and disks while the daemon runs.

use super::change::cached_disk;
use super::config::{Config, VmConfig};
use super::daemon::Daemon;
use crate::error::CacheError;
use crate::frontend::{Volume, flush_each};
use crate::nbd::Server;
use crate::vhost::VhostServer;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The time limit of a removal: requests in flight have three quarters of it, clients that are cut off an eighth, flushes the
/// rest.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The interval of polling for requests in flight.
const POLL: Duration = Duration::from_millis(2);

/// VMs and disks to remove.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gone {
    vms: Vec<String>,
    /// Disks and ports, each with the name of its VM.
    exports: Vec<(String, String)>,
}

/// Volumes and servers that new clients cannot find, and that connected ones may still use.
struct Withdrawn {
    volumes: Vec<Arc<Volume>>,
    vhost: Vec<VhostServer>,
    /// Servers of VMs with sockets of their own.
    servers: Vec<Server>,
}

impl Gone {
    /// A VM with all that it has.
    pub(super) fn of_vm(vm: &VmConfig) -> Self {
        let disks = vm.disks.iter().map(|disk| &disk.name);
        let names = disks.chain(vm.port.iter().map(|port| &port.name));
        Self {
            vms: vec![vm.name.clone()],
            exports: names.map(|name| (vm.name.clone(), name.clone())).collect(),
        }
    }

    /// Disks of a VM that stays.
    pub(super) fn of_disks<'a>(vm: &str, disks: impl Iterator<Item = &'a str>) -> Self {
        Self {
            vms: Vec::new(),
            exports: disks.map(|disk| (vm.to_owned(), disk.to_owned())).collect(),
        }
    }

    /// The VMs and disks of `old` that `new` has not.
    pub(super) fn between(old: &Config, new: &Config) -> Self {
        let mut gone = Self::default();
        for vm in &old.vms {
            let of_vm = match new.vms.iter().find(|kept| kept.name == vm.name) {
                None => Self::of_vm(vm),
                Some(kept) => {
                    let stays = |disk: &&str| kept.disks.iter().any(|kept| kept.name == **disk);
                    let disks = vm.disks.iter().map(|disk| disk.name.as_str());
                    Self::of_disks(&vm.name, disks.filter(|disk| !stays(disk)))
                }
            };
            gone.vms.extend(of_vm.vms);
            gone.exports.extend(of_vm.exports);
        }
        gone
    }

    /// The names of the disks, and of ports.
    pub(super) fn disks(&self) -> impl Iterator<Item = &str> {
        self.exports.iter().map(|(_, name)| name.as_str())
    }

    fn has(&self, volume: &Volume) -> bool {
        self.disks().any(|name| name == volume.name())
    }
}

impl Daemon {
    /// Removes VMs and disks: hides them from new clients, answers requests in flight, disconnects clients, flushes disks,
    /// drops their blocks from the cache and unlocks images. Returns the steps that failed within [`TIMEOUT`], in words.
    pub(super) fn remove(&self, gone: &Gone) -> Vec<String> {
        self.remove_within(gone, TIMEOUT)
    }

    pub(super) fn remove_within(&self, gone: &Gone, timeout: Duration) -> Vec<String> {
        if *gone == Gone::default() {
            return Vec::new();
        }
        let end = Instant::now() + timeout;
        let Withdrawn {
            volumes,
            vhost,
            servers,
        } = self.withdraw(gone);
        end_clients(
            &volumes,
            vhost,
            &servers,
            [end - timeout / 4, end - timeout / 8],
        );
        drop(servers);
        let failed = flush_each(&volumes, end).into_iter();
        let mut problems: Vec<_> = failed
            .map(|(name, why)| format!("disk {name:?}: {why}"))
            .collect();
        let forgotten = self.forget(gone);
        problems.extend(forgotten.err().iter().map(ToString::to_string));
        let names: Vec<_> = volumes.iter().map(|v| v.name().to_owned()).collect();
        let weak: Vec<_> = volumes.iter().map(Arc::downgrade).collect();
        drop(volumes);
        let in_use = |volume: &Weak<Volume>| volume.strong_count() > 0;
        wait_while(|| weak.iter().any(in_use), end);
        let held = names.iter().zip(&weak).filter(|(_, volume)| in_use(volume));
        problems.extend(held.map(|(name, _)| {
            format!("disk {name:?}: requests are still in flight: its image stays locked until its storage has answered them")
        }));
        problems
    }

    /// Hides removed volumes from new clients.
    fn withdraw(&self, gone: &Gone) -> Withdrawn {
        let mut volumes: Vec<_> = {
            let mut all = self.volumes.lock();
            all.extract_if(.., |volume| gone.has(volume)).collect()
        };
        let ports = self.all.volumes().into_iter();
        let ports = ports.filter(|port| gone.has(port));
        for port in ports {
            if !volumes.iter().any(|known| Arc::ptr_eq(known, &port)) {
                volumes.push(port);
            }
        }
        let mut of_vms = self.of_vms.lock();
        for volume in &volumes {
            let servers = of_vms.values().chain([&self.all]);
            servers.for_each(|server| server.remove(volume));
        }
        let servers = gone.vms.iter().filter_map(|vm| of_vms.remove(vm)).collect();
        drop(of_vms);
        let ours = |server: &mut VhostServer| {
            let served = server.volume();
            volumes.iter().any(|volume| Arc::ptr_eq(volume, served))
        };
        let vhost = self.vhost_servers.lock().extract_if(.., ours).collect();
        Withdrawn {
            volumes,
            vhost,
            servers,
        }
    }

    /// Drops the blocks from the cache, and frees the names.
    fn forget(&self, gone: &Gone) -> Result<(), CacheError> {
        for (vm, name) in &gone.exports {
            self.unserved.lock().remove(name);
            // Removing the VM below also removes its disks.
            if gone.vms.contains(vm) {
                continue;
            }
            if let Ok((disk, _)) = cached_disk(&self.cache, name) {
                self.images.lock().remove(&disk);
                self.cache.remove_disk(disk)?;
            }
        }
        for vm in &gone.vms {
            self.ports.lock().retain(|port| port.vm_name() != vm);
            let id = self.vms.lock().remove(vm);
            id.map_or(Ok(()), |id| self.cache.remove_vm(id))?;
        }
        Ok(())
    }
}

/// Ends the clients of volumes. No further request is taken; requests in flight are answered until `answered`. A client that
/// has not taken its replies by then is cut off, and has until `left` to leave.
fn end_clients(
    volumes: &[Arc<Volume>],
    vhost: Vec<VhostServer>,
    servers: &[Server],
    [answered, left]: [Instant; 2],
) {
    vhost.iter().for_each(|server| server.close(false));
    servers.iter().for_each(Server::close);
    volumes.iter().for_each(|volume| volume.gates.close());
    for server in &vhost {
        server.wait(answered);
    }
    for server in servers {
        server.wait(answered);
    }
    wait_while(|| is_used(volumes, &vhost), answered);
    servers.iter().for_each(Server::cut_off);
    volumes.iter().for_each(|volume| volume.gates.cut_off());
    // Close again: a front end may have been accepted meanwhile.
    vhost.iter().for_each(|server| server.close(false));
    for server in &vhost {
        server.wait(left);
    }
    drop(vhost);
    for server in servers {
        server.wait(left);
    }
    wait_while(|| is_used(volumes, &[]), left);
}

/// Is a volume referenced by more than `volumes` and the vhost-user servers that serve it?
fn is_used(volumes: &[Arc<Volume>], vhost: &[VhostServer]) -> bool {
    volumes.iter().any(|volume| {
        let servers = vhost.iter().map(VhostServer::volume);
        let servers = servers.filter(|served| Arc::ptr_eq(served, volume));
        Arc::strong_count(volume) > 1 + servers.count()
    })
}

/// Waits while `is_so` holds, until `deadline`.
fn wait_while(is_so: impl Fn() -> bool, deadline: Instant) {
    while is_so() && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
}
