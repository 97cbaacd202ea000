//! A reload: reads the configuration file again, removes and adds VMs and disks accordingly, and changes weights and sizes.

use super::api::Table;
use super::change;
use super::config::{Config, DiskConfig, Listen, PoolConfig, VmConfig};
use super::daemon::Daemon;
use super::disks::{Added, Failed};
use super::error::ServeError;
use super::remove::Gone;
use super::served::{IsServed, Served, check_paths, differences, names};
use crate::config::{CacheConfig, StoreKind};
use crate::frontend::SocketAccess;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Refuses a configuration that would remove all VMs.
const NO_VMS: &str = "expected at least one [[vm]], found none: nothing is removed; to end all disks, stop the daemon";

/// The changes of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Names of disks that were added.
    pub added: Vec<String>,
    /// Names of disks that were removed.
    pub removed: Vec<String>,
    /// Changed weights, policies, pools and sizes, in words.
    pub changed: Vec<String>,
}

impl Daemon {
    /// The running configuration, with all changes by requests.
    pub(super) fn running(&self, served: &Served) -> Served {
        let mut config = served.config.clone();
        config.cache = self.cache.config();
        let cached = self.cache.disks();
        let volumes = self.volumes.lock();
        let is_uncached = |name: &str| {
            let is_served = volumes.iter().any(|volume| volume.name() == name);
            is_served && cached.iter().all(|(cached, ..)| cached != name)
        };
        for disk in config.vms.iter_mut().flat_map(|vm| &mut vm.disks) {
            disk.mode = disk.mode.filter(|_| !is_uncached(&disk.name));
        }
        drop(volumes);
        let vms = self.vms.lock();
        for vm in &mut config.vms {
            let Ok(of) = vms.vm(&vm.name) else { continue };
            if let Ok((weight, policy)) = self.cache.vm_settings(of.id) {
                (vm.weight, vm.policy) = (weight, policy);
            }
            let pools = of.pools.lock();
            let pools = pools.iter().filter(|(_, pool)| !pool.created_over_port);
            let pools = pools.map(|(_, of_vm)| PoolConfig {
                name: of_vm.pool.name.clone(),
                spec: of_vm.pool.spec(),
                tag: of.tags.of(of_vm.pool.id),
            });
            let default = PoolConfig::default();
            vm.pools = pools.filter(|pool| *pool != default).collect();
        }
        Served {
            file: served.file.clone(),
            config,
        }
    }
}

impl Daemon {
    /// Serves the VMs and disks of a configuration and those that requests have added. A VM or disk that fails is logged; the
    /// others are still changed.
    pub(super) fn reload(&self, file: &Config) -> Result<Reloaded, ServeError> {
        let mut served = self.served.lock();
        let volumes = self.volumes.lock();
        let disks: BTreeSet<_> = volumes.iter().map(|v| v.name().to_owned()).collect();
        drop(volumes);
        let now = self.running(&served);
        let mut next = Served {
            config: now.merged(file, true),
            file: file.clone(),
        };
        let is_served = IsServed {
            vm: &|name| self.vms.lock().knows(name),
            disk: &|name| disks.contains(name),
        };
        now.hold(&mut next, &is_served);
        let Served { config: now, .. } = now;
        if next.config.vms.is_empty() && !now.vms.is_empty() {
            return Err(ServeError::Refused(NO_VMS.into()));
        }
        check_paths(&next.config)?;
        self.resize_stores(&now.cache, &next.config.cache)?;
        // First what is gone: its images and sockets may have new names.
        let gone = self.remove_gone(&now, &next.config);
        let mut reloaded = Reloaded {
            removed: gone
                .disks()
                .filter(|disk| disks.contains(*disk))
                .map(str::to_owned)
                .collect(),
            changed: differences(&now, &next.config),
            ..Reloaded::default()
        };
        *served = next;
        let Served { config, .. } = &*served;
        for vm in &config.vms {
            if let Some(now) = now.vms.iter().find(|now| now.name == vm.name)
                && let Err(why) = change::configure(&self.cache, &self.vms, now, vm)
            {
                tracing::error!(vm = vm.name, "cannot change the VM as configured: {why}");
            }
            let new = vm.disks.iter().map(|disk| &disk.name);
            match self.serve_vm(vm, file.listen.access) {
                Ok((added, failed)) => {
                    reloaded.added.extend(added);
                    for Failed { disk, why } in failed {
                        self.cannot_serve(&vm.name, &disk, &why);
                    }
                }
                Err(why) => {
                    let new = new.filter(|disk| !disks.contains(*disk));
                    new.for_each(|disk| self.cannot_serve(&vm.name, disk, &why));
                    tracing::error!(
                        vm = vm.name,
                        "cannot serve the VM, or what is new of it: {why}"
                    );
                }
            }
        }
        Ok(reloaded)
    }

    /// Removes what the next configuration has no more. The sockets that stay are for those who may connect by it.
    fn remove_gone(&self, now: &Config, next: &Config) -> Gone {
        let gone = Gone::between(now, next);
        for problem in self.remove(&gone) {
            tracing::error!("removed, but: {problem}");
        }
        let access = next.listen.access;
        if access != now.listen.access {
            self.all.reopen_to(access);
            let of_vms = self.of_vms.lock();
            of_vms.values().for_each(|server| server.reopen_to(access));
            drop(of_vms);
            let vhost = self.vhost_servers.lock();
            vhost.iter().for_each(|server| server.reopen_to(access));
        }
        gone
    }

    /// Gives the stores other sizes, both or none.
    fn resize_stores(&self, now: &CacheConfig, next: &CacheConfig) -> Result<(), ServeError> {
        let resize = |store, now: u64, next: u64| match now == next {
            true => Ok(()),
            false => self.cache.resize(store, next),
        };
        resize(StoreKind::Memory, now.memory_bytes, next.memory_bytes)?;
        let ssd = |of: &CacheConfig| of.ssd.as_ref().map_or(0, |ssd| ssd.bytes);
        resize(StoreKind::Ssd, ssd(now), ssd(next)).inspect_err(|_| {
            let _ = resize(StoreKind::Memory, next.memory_bytes, now.memory_bytes);
        })?;
        Ok(())
    }

    /// Serves the added disks of a VM at the start. A disk without its socket is left out. If the VM's own socket fails, all
    /// its disks are left out. Returns the first error.
    pub(super) fn listen_or_leave_out(
        &self,
        vm: &VmConfig,
        added: Added,
        access: SocketAccess,
    ) -> Option<ServeError> {
        match self.listen(added, access) {
            Ok((_, failed)) => {
                let disks = failed.iter().map(|failed| failed.disk.as_str());
                self.remove(&Gone::of_disks(&vm.name, disks));
                for Failed { disk, why } in &failed {
                    self.cannot_serve(&vm.name, disk, why);
                }
                failed.into_iter().next().map(|failed| failed.why)
            }
            Err(why) => {
                self.remove(&Gone::of_vm(vm));
                for disk in &vm.disks {
                    self.cannot_serve(&vm.name, &disk.name, &why);
                }
                tracing::error!(vm = vm.name, "cannot serve the VM: {why}");
                Some(why)
            }
        }
    }

    /// Adds and serves the disks of a VM that are not served yet. Returns the disks that are served now, and those that fail.
    ///
    /// # Errors
    /// When the VM cannot be added; nothing is changed then.
    fn serve_vm(
        &self,
        vm: &VmConfig,
        access: SocketAccess,
    ) -> Result<(Vec<String>, Vec<Failed>), ServeError> {
        let is_new = !self.vms.lock().knows(&vm.name);
        let volumes = self.volumes.lock();
        let before: BTreeSet<_> = volumes.iter().map(|v| v.name().to_owned()).collect();
        drop(volumes);
        let done = self.add_vm(vm).and_then(|mut added| {
            let mut failed = std::mem::take(&mut added.failed);
            let (served, more) = self.listen(added, access)?;
            failed.extend(more);
            Ok((served, failed))
        });
        // Undo additions that failed half-way.
        let gone = match &done {
            Ok((_, failed)) => Gone::of_disks(&vm.name, failed.iter().map(|f| f.disk.as_str())),
            Err(_) if is_new => Gone::of_vm(vm),
            Err(_) => {
                let disks = vm.disks.iter().map(|disk| disk.name.as_str());
                Gone::of_disks(&vm.name, disks.filter(|disk| !before.contains(*disk)))
            }
        };
        self.remove(&gone);
        done
    }
}

// VMs and disks that requests add and remove.

impl Daemon {
    /// Serves another VM, all of it or nothing.
    pub(super) fn add_vm_by_request(&self, vm: &Table) -> Result<(), ServeError> {
        let served = &mut *self.served.lock();
        // Look for the name first: an existing VM needs no further check.
        let name = vm.get("name").and_then(Value::as_str).unwrap_or_default();
        if served.vm(name).is_some() || self.vms.lock().knows(name) {
            return Err(exists("VM", name));
        }
        let vm = parse(&served.config.listen, vm)?;
        let new = Config {
            vms: vec![vm.clone()],
            ..Config::default()
        };
        names(&new).try_for_each(|name| check_is_new(served, name))?;
        let mut config = served.config.clone();
        config.vms.push(vm.clone());
        check_paths(&config)?;
        let (_, failed) = self.serve_vm(&vm, config.listen.access)?;
        if let Some(failed) = failed.into_iter().next() {
            self.remove(&Gone::of_vm(&vm));
            return Err(failed.why);
        }
        served.config = config;
        Ok(())
    }

    /// Serves another disk of a VM.
    pub(super) fn add_disk_by_request(&self, vm: &str, disk: &Table) -> Result<(), ServeError> {
        let served = &mut *self.served.lock();
        // The VM must be known and cached.
        self.vms.lock().vm(vm)?;
        let mut config = served.config.clone();
        let mut vms = config.vms.iter_mut();
        let of = vms.find(|known| known.name == vm);
        let of = of.ok_or_else(|| no_vm(served, vm))?;
        let disk = parse_disk(&served.config.listen, of, disk)?;
        check_is_new(served, &disk.name)?;
        let same = |known: &&DiskConfig| known.mode.is_some() && known.serial == disk.serial;
        let has_serial = of.port.is_some() && disk.mode.is_some();
        if let Some(other) = of.disks.iter().find(same).filter(|_| has_serial) {
            return Err(ServeError::Refused(format!(
                "expected a serial that no other disk of VM {vm:?} has, found that of {:?}: give another one",
                other.name
            )));
        }
        let alone = VmConfig {
            disks: vec![disk.clone()],
            ..of.clone()
        };
        of.disks.push(disk.clone());
        check_paths(&config)?;
        let (_, failed) = self.serve_vm(&alone, config.listen.access)?;
        if let Some(failed) = failed.into_iter().next() {
            return Err(failed.why);
        }
        served.config = config;
        Ok(())
    }

    pub(super) fn remove_vm_by_request(&self, name: &str) -> Result<(), ServeError> {
        let served = &mut *self.served.lock();
        let vm = served.vm(name).ok_or_else(|| no_vm(served, name))?;
        let gone = Gone::of_vm(vm);
        let problems = self.remove(&gone);
        served.config.vms.retain(|vm| vm.name != name);
        removed(problems)
    }

    pub(super) fn remove_disk_by_request(&self, name: &str) -> Result<(), ServeError> {
        let served = &mut *self.served.lock();
        let disk = served.disk(name);
        let (vm, _) = disk.ok_or_else(|| {
            let vms = served.config.vms.iter();
            let disks = vms.flat_map(|vm| &vm.disks).map(|disk| disk.name.as_str());
            ServeError::unknown("disk that is served", name, disks)
        })?;
        let problems = self.remove(&Gone::of_disks(&vm.name, [name].into_iter()));
        for vm in &mut served.config.vms {
            vm.disks.retain(|disk| disk.name != name);
        }
        removed(problems)
    }
}

fn no_vm(served: &Served, found: &str) -> ServeError {
    let known = served.config.vms.iter().map(|vm| vm.name.as_str());
    ServeError::unknown("VM that is served", found, known)
}

fn removed(problems: Vec<String>) -> Result<(), ServeError> {
    if problems.is_empty() {
        return Ok(());
    }
    let problems = problems.join("; ");
    Err(ServeError::Refused(format!(
        "removed, with errors: {problems}"
    )))
}

fn exists(what: &str, name: &str) -> ServeError {
    ServeError::Refused(format!(
        "expected a new name for a {what}, found {name:?}, which exists"
    ))
}

fn check_is_new(served: &Served, name: &str) -> Result<(), ServeError> {
    if names(&served.config).any(|known| known == name) {
        return Err(exists("disk", name));
    }
    Ok(())
}

/// Parses a disk as the configuration parser does, in a table of a VM with the same socket and port.
fn parse_disk(listen: &Listen, vm: &VmConfig, disk: &Table) -> Result<DiskConfig, ServeError> {
    let mut table = Table::new();
    table.insert("name".into(), json!(vm.name));
    if let Some(socket) = &vm.socket {
        table.insert("socket".into(), json!(socket));
    }
    if vm.port.is_some() {
        table.insert("port".into(), json!({}));
    }
    table.insert("disk".into(), json!([disk]));
    let mut disks = parse(listen, &table)?.disks;
    disks.pop().ok_or(ServeError::Refused(String::new()))
}

/// Parses a VM as the configuration parser does. `listen` has the sockets of all disks.
fn parse(listen: &Listen, vm: &Table) -> Result<VmConfig, ServeError> {
    let all = listen.unix.is_some() || listen.tcp.is_some();
    let mut file = Table::new();
    if all {
        // The VM only needs some socket for all disks, so the path does not matter.
        file.insert("listen".into(), json!({ "unix": "/" }));
    }
    file.insert("vm".into(), json!([vm]));
    let text = toml::to_string(&file).map_err(|e| ServeError::Refused(e.to_string()))?;
    let mut parsed = Config::parse(Path::new("request"), &text).map_err(|errors| {
        let errors: Vec<_> = errors.into_iter().map(|error| error.what).collect();
        ServeError::Refused(errors.join("; "))
    })?;
    parsed.vms.pop().ok_or(ServeError::Refused(String::new()))
}
