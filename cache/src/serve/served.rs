//! The configuration to serve: the configuration file's, and the changes by requests.

use super::config::{Config, DiskConfig, Size, VmConfig, default_policy};
use super::error::ServeError;
use super::paths::{PathUse, collisions};
use crate::config::{CacheConfig, SsdConfig};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The configuration to serve.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Served {
    /// The configuration file as last read. Values that need a restart to change are the running ones.
    pub(super) file: Config,
    /// The served VMs and disks, as they were when they were added.
    pub(super) config: Config,
}

impl Served {
    /// The configuration of a daemon whose file is `file`, and whose predecessor has served `left`.
    pub(super) fn next(left: Option<Self>, file: &Config) -> Self {
        let of_file = || Self {
            file: file.clone(),
            config: file.clone(),
        };
        let Some(left) = left else { return of_file() };
        let config = left.merged(file, false);
        if let Err(e) = check_paths(&config) {
            tracing::error!("changes by requests are lost: they do not fit the configuration: {e}");
            return of_file();
        }
        let changed = differences(file, &config);
        if !changed.is_empty() {
            tracing::info!(
                "as requests have set it, not as configured: {}",
                changed.join("; ")
            );
        }
        let place = |of: &Config| of.cache.ssd.as_ref().map(|ssd| ssd.path.clone());
        if let Some(old) = place(&left.config).filter(|old| place(&config).as_ref() != Some(old)) {
            tracing::warn!(
                "{} was the SSD store, and is not used any more: remove it by hand",
                old.display()
            );
        }
        Self {
            config,
            ..of_file()
        }
    }

    /// The configuration to serve when the file becomes `file`. A value follows the file if the file has changed it, else it
    /// stays as requests have set it. VMs and disks that requests have removed and the file still names come back if
    /// `comes_back`.
    pub(super) fn merged(&self, file: &Config, comes_back: bool) -> Config {
        let (was, now) = (&self.file.cache, &self.config.cache);
        let cache = CacheConfig {
            memory_bytes: newer(
                &was.memory_bytes,
                &now.memory_bytes,
                &file.cache.memory_bytes,
            ),
            memory_limit: newer(
                &was.memory_limit,
                &now.memory_limit,
                &file.cache.memory_limit,
            ),
            ssd: newer(&was.ssd, &now.ssd, &file.cache.ssd),
        };
        let vms = [&self.file.vms, &self.config.vms, &file.vms];
        let mut vms = merged(
            vms,
            comes_back,
            |vm| &vm.name,
            |was, now, file| {
                let pools = [&was.pools, &now.pools, &file.pools];
                let disks = [&was.disks, &now.disks, &file.disks];
                VmConfig {
                    name: file.name.clone(),
                    weight: newer(&was.weight, &now.weight, &file.weight),
                    policy: newer(&was.policy, &now.policy, &file.policy),
                    socket: newer(&was.socket, &now.socket, &file.socket),
                    clients: newer(&was.clients, &now.clients, &file.clients),
                    pools: merged(pools, false, |pool| &pool.name, newer),
                    disks: merged(disks, comes_back, |disk| &disk.name, newer),
                    port: newer(&was.port, &now.port, &file.port),
                }
            },
        );
        // If a request and the file give the same name to two disks, the file's wins.
        let named: BTreeSet<_> = names(file).collect();
        for vm in &mut vms {
            let of_file = file.vms.iter().find(|of| of.name == vm.name);
            vm.disks.retain(|disk| {
                let is_here = |of: &VmConfig| of.disks.iter().any(|of| of.name == disk.name);
                !named.contains(disk.name.as_str()) || of_file.is_some_and(is_here)
            });
        }
        Config {
            cache,
            vms,
            ..file.clone()
        }
    }

    /// A VM by its name.
    pub(super) fn vm(&self, name: &str) -> Option<&VmConfig> {
        self.config.vms.iter().find(|vm| vm.name == name)
    }

    /// A disk by its name, and its VM.
    pub(super) fn disk(&self, name: &str) -> Option<(&VmConfig, &DiskConfig)> {
        let mut vms = self.config.vms.iter();
        vms.find_map(|vm| {
            let disk = vm.disks.iter().find(|disk| disk.name == name)?;
            Some((vm, disk))
        })
    }
}

/// The file's value if it has changed, else the running one.
fn newer<T: Clone + PartialEq>(was: &T, now: &T, file: &T) -> T {
    if was == file { now } else { file }.clone()
}

/// Merges three lists by name. An entry in the file is combined by `each` from its values in the old file, now and in the new
/// file. An entry that was never in the file stays. An entry in both files that was removed since comes back if `comes_back`.
fn merged<T: Clone>(
    [was, now, file]: [&Vec<T>; 3],
    comes_back: bool,
    name: impl Fn(&T) -> &String,
    each: impl Fn(&T, &T, &T) -> T,
) -> Vec<T> {
    let find = |all: &'_ [T], of: &T| all.iter().position(|one| name(one) == name(of));
    let mut merged = Vec::new();
    for of_file in file {
        let before = find(was, of_file).and_then(|at| was.get(at));
        match find(now, of_file).and_then(|at| now.get(at)) {
            Some(now) => merged.push(each(before.unwrap_or(now), now, of_file)),
            None if comes_back || before.is_none() => merged.push(of_file.clone()),
            None => {}
        }
    }
    let added = now.iter().filter(|of| find(was, of).is_none());
    let added = added.filter(|of| find(file, of).is_none());
    merged.extend(added.cloned());
    merged
}

/// Tells whether a VM or disk is served.
pub(super) struct IsServed<'a> {
    pub(super) vm: &'a dyn Fn(&str) -> bool,
    pub(super) disk: &'a dyn Fn(&str) -> bool,
}

impl Served {
    /// Takes back the changes of `next` that need a restart, and logs them. Their old values also become the base for
    /// comparison with the next file, so they are logged again then. Weights, policies, pools and sizes of `next` stay.
    pub(super) fn hold(&self, next: &mut Served, is_served: &IsServed) {
        let (now, base) = (&self.config, &mut next.file);
        let next = &mut next.config;
        let mut held = hold(
            &now.cache.memory_limit,
            &mut next.cache.memory_limit,
            &mut base.cache.memory_limit,
        );
        let place =
            |ssd: &Option<SsdConfig>| ssd.as_ref().map(|ssd| (ssd.path.clone(), ssd.overwrite));
        if place(&now.cache.ssd) != place(&next.cache.ssd) {
            held |= hold(&now.cache.ssd, &mut next.cache.ssd, &mut base.cache.ssd);
        }
        if held {
            tracing::warn!(
                "the limit of memory, or the SSD store's place, has changed in the configuration: they stay as they are until a restart; `justitia cache set ssd` changes the place now"
            );
        }
        let mut held = hold(
            &now.listen.unix,
            &mut next.listen.unix,
            &mut base.listen.unix,
        );
        held |= hold(&now.listen.tcp, &mut next.listen.tcp, &mut base.listen.tcp);
        held |= hold(
            &now.listen.insecure,
            &mut next.listen.insecure,
            &mut base.listen.insecure,
        );
        held |= hold(&now.tls, &mut next.tls, &mut base.tls);
        held |= hold(&now.metrics, &mut next.metrics, &mut base.metrics);
        held |= hold(&now.control, &mut next.control, &mut base.control);
        if held {
            tracing::warn!(
                "an address of [listen], [tls], `metrics` or `control` has changed in the configuration: they stay as they are until a restart"
            );
        }
        for vm in &mut next.vms {
            let now = self.vm(&vm.name).filter(|_| (is_served.vm)(&vm.name));
            if let Some(now) = now {
                let mut unnamed = now.clone();
                let base = base.vms.iter_mut().find(|of| of.name == vm.name);
                hold_vm(now, vm, base.unwrap_or(&mut unnamed), is_served);
            }
        }
    }
}

/// As [`Served::hold`], for one VM.
fn hold_vm(now: &VmConfig, vm: &mut VmConfig, base: &mut VmConfig, is_served: &IsServed) {
    let mut held = hold(&now.socket, &mut vm.socket, &mut base.socket);
    held |= hold(&now.clients, &mut vm.clients, &mut base.clients);
    held |= hold(&now.port, &mut vm.port, &mut base.port);
    if held {
        tracing::warn!(
            vm = vm.name,
            "the socket, the clients or the port of the VM have changed in the configuration: they stay as they are until a restart, or until it is removed and added again"
        );
    }
    let follows = vm.policy != now.policy && vm.policy == default_policy(&vm.disks);
    for disk in &mut vm.disks {
        let known = now.disks.iter().find(|known| known.name == disk.name);
        let Some(known) = known.filter(|_| (is_served.disk)(&disk.name)) else {
            continue;
        };
        let mut unnamed = known.clone();
        let base = base.disks.iter_mut().find(|of| of.name == disk.name);
        if hold(known, disk, base.unwrap_or(&mut unnamed)) {
            tracing::warn!(
                vm = vm.name,
                disk = disk.name,
                "the configuration of the disk has changed: it is served as before until a restart, or until it is removed and added again"
            );
        }
    }
    // A policy that follows from the modes of disks waits for them.
    let of_served = default_policy(&vm.disks);
    if follows && vm.policy != of_served {
        (vm.policy, base.policy) = (now.policy, of_served);
    }
}

/// Returns whether `next` differs from `now`; if so, sets `next` and `base` to `now`.
fn hold<T: Clone + PartialEq>(now: &T, next: &mut T, base: &mut T) -> bool {
    let differs = now != next;
    if differs {
        next.clone_from(now);
        base.clone_from(now);
    }
    differs
}

/// The differences of two configurations that take effect without a restart, in words.
pub(super) fn differences(now: &Config, next: &Config) -> Vec<String> {
    let mut found = Vec::new();
    if now.cache.memory_bytes != next.cache.memory_bytes {
        found.push(format!("memory: {}", Size(next.cache.memory_bytes)));
    }
    if now.cache.ssd != next.cache.ssd {
        let size = next
            .cache
            .ssd
            .as_ref()
            .map(|ssd| Size(ssd.bytes).to_string());
        found.push(format!("SSD: {}", size.unwrap_or_else(|| "none".into())));
    }
    if now.listen.access != next.listen.access {
        found.push("mode and owner of sockets".into());
    }
    for next in &next.vms {
        let Some(now) = now.vms.iter().find(|now| now.name == next.name) else {
            continue;
        };
        let vm = &next.name;
        if now.weight != next.weight {
            found.push(format!("VM {vm:?}: weight {}", next.weight));
        }
        if now.policy != next.policy {
            found.push(format!("VM {vm:?}: policy {}", next.policy.name()));
        }
        let pools = now.pools.iter().chain(&next.pools);
        let pools = pools.filter(|pool| now.pools.contains(pool) != next.pools.contains(pool));
        let pools: BTreeSet<_> = pools.map(|pool| &pool.name).collect();
        found.extend(
            pools
                .into_iter()
                .map(|pool| format!("VM {vm:?}: pool {pool:?}")),
        );
    }
    found
}

/// The names of all exports: disks and ports.
pub(super) fn names(config: &Config) -> impl Iterator<Item = &str> {
    config.vms.iter().flat_map(|vm| {
        let disks = vm.disks.iter().map(|disk| disk.name.as_str());
        disks.chain(vm.port.iter().map(|port| port.name.as_str()))
    })
}

/// Checks that no two paths of a configuration lead to the same file or device.
pub(super) fn check_paths(config: &Config) -> Result<(), ServeError> {
    check_uses(&PathUse::of(config))
}

/// Checks that no two of these lead to the same file or device.
pub(super) fn check_uses(paths: &[PathUse]) -> Result<(), ServeError> {
    let found = collisions(paths);
    if found.is_empty() {
        return Ok(());
    }
    Err(ServeError::Refused(found.join("\n")))
}
