//! What is served, or should be: the configuration file's, and what requests have added.

use super::api::{ControlRequest, Table};
use super::config::{Config, DiskConfig, VmConfig};
use super::error::ServeError;
use super::paths::{PathUse, collisions};
use std::collections::BTreeSet;

/// What is served, or should be.
#[derive(Default)]
pub(super) struct Served {
    /// As it is configured: of what is served, as it was when it was added.
    pub(super) config: Config,
    /// VMs of it that requests have added. A reload keeps them.
    pub(super) requested_vms: BTreeSet<String>,
    /// Disks of it that requests have added. A reload keeps them as long as their VMs.
    pub(super) requested_disks: BTreeSet<String>,
    pub(super) changes: Changes,
}

impl Served {
    /// What is to be served once the configuration file is `file`. Of the VMs and disks that are served, `is_served` tells
    /// by their names, all but which of them there are stays as it was.
    pub(super) fn merged(&self, file: &Config, is_served: &IsServed) -> Config {
        let mut merged = file.clone();
        if merged.cache != self.config.cache {
            tracing::warn!(
                "the configuration of the stores is another than theirs: they stay as they are until a restart; `justitia cache set store` and `set ssd` change them now"
            );
        }
        merged.cache.clone_from(&self.config.cache);
        for vm in &mut merged.vms {
            let Some(old) = self.vm(&vm.name).filter(|_| (is_served.vm)(&vm.name)) else {
                continue;
            };
            for disk in &mut vm.disks {
                let known = old.disks.iter().find(|known| known.name == disk.name);
                if let Some(known) = known.filter(|_| (is_served.disk)(&disk.name)) {
                    warn_of_change(&vm.name, known, disk);
                    *disk = known.clone();
                }
            }
            let disks = std::mem::take(&mut vm.disks);
            let without = VmConfig {
                disks: Vec::new(),
                ..old.clone()
            };
            if *vm != without {
                tracing::warn!(
                    vm = vm.name,
                    "the configuration of the VM has changed: it is served as before until a restart, or until it is removed and added again; `justitia cache set vm` and `set pool` change weights and the policy now"
                );
            }
            *vm = VmConfig { disks, ..without };
        }
        self.keep_requested(&mut merged);
        merged
    }

    /// Adds what requests have added, and the file has not.
    fn keep_requested(&self, merged: &mut Config) {
        let named: BTreeSet<_> = names(merged).map(str::to_owned).collect();
        for vm in &self.config.vms {
            let kept = vm.disks.iter().filter(|disk| {
                let disk = &disk.name;
                self.requested_disks.contains(disk) && !named.contains(disk)
            });
            let kept = kept.cloned();
            match merged.vms.iter_mut().find(|known| known.name == vm.name) {
                Some(known) => known.disks.extend(kept),
                None if self.requested_vms.contains(&vm.name) => merged.vms.push(VmConfig {
                    disks: kept.collect(),
                    ..vm.clone()
                }),
                None => {}
            }
        }
    }

    /// Forgets what of the requests' the configuration has by now, or has no more. `file` is the configuration file.
    pub(super) fn settle(&mut self, file: &Config) {
        self.requested_vms
            .retain(|name| file.vms.iter().all(|vm| vm.name != *name));
        let config = &self.config;
        self.requested_disks.retain(|name| {
            names(config).any(|known| known == name) && names(file).all(|known| known != name)
        });
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

/// Which of the VMs and disks are served.
pub(super) struct IsServed<'a> {
    pub(super) vm: &'a dyn Fn(&str) -> bool,
    pub(super) disk: &'a dyn Fn(&str) -> bool,
}

/// The names of all exports: disks and ports.
pub(super) fn names(config: &Config) -> impl Iterator<Item = &str> {
    config.vms.iter().flat_map(|vm| {
        let disks = vm.disks.iter().map(|disk| disk.name.as_str());
        disks.chain(vm.port.iter().map(|port| port.name.as_str()))
    })
}

/// No two paths of a configuration lead to the same file or device.
pub(super) fn check_paths(config: &Config) -> Result<(), ServeError> {
    let found = collisions(&PathUse::of(config));
    if found.is_empty() {
        return Ok(());
    }
    Err(ServeError::Paths(found))
}

fn warn_of_change(vm: &str, served: &DiskConfig, configured: &DiskConfig) {
    if served != configured {
        tracing::warn!(
            vm,
            disk = served.name,
            "the configuration of the disk has changed: it is served as before until a restart, or until it is removed and added again"
        );
    }
}

// What requests have added and removed, for the program that is executed next: it does it again.

/// Requests that are remembered: more than a host has VMs. Of more the first are forgotten.
const MAX_CHANGES: usize = 4096;

/// Requests that were done, in their order. What was added and removed again is not among them.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<ControlRequest>);

impl Changes {
    /// A request has added or removed a VM or a disk.
    pub(super) fn push(&mut self, request: ControlRequest) {
        let before = self.0.len();
        match &request {
            ControlRequest::RemoveDisk { disk: gone } => self.0.retain(
                |of| !matches!(of, ControlRequest::AddDisk { disk, .. } if is_named(disk, gone)),
            ),
            ControlRequest::RemoveVm { vm: gone } => {
                let added = |of: &ControlRequest| matches!(of, ControlRequest::AddVm { vm } if is_named(vm, gone));
                if self.0.iter().any(added) {
                    self.0.retain(|of| {
                        !added(of)
                            && !matches!(of, ControlRequest::AddDisk { vm, .. } if vm == gone)
                    });
                }
            }
            _ => {}
        }
        if self.0.len() < before {
            return;
        }
        self.0.push(request);
        if self.0.len() > MAX_CHANGES {
            self.0.remove(0);
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> &[ControlRequest] {
        &self.0
    }
}

fn is_named(table: &Table, name: &str) -> bool {
    table.get("name").is_some_and(|found| found == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table(name: &str) -> Table {
        json!({ "name": name }).as_object().unwrap().clone()
    }

    #[test]
    fn what_was_added_and_removed_again_is_forgotten() {
        let add = |vm: &str, disk: &str| ControlRequest::AddDisk {
            vm: vm.into(),
            disk: table(disk),
        };
        let add_vm = |name| ControlRequest::AddVm { vm: table(name) };
        let remove = |disk: &str| ControlRequest::RemoveDisk { disk: disk.into() };
        let remove_vm = |vm: &str| ControlRequest::RemoveVm { vm: vm.into() };
        let mut changes = Changes::default();
        for request in [
            add("old", "a"),
            add_vm("new"),
            add("new", "b"),
            remove("a"),
            remove("configured"),
            remove_vm("new"),
            add("old", "c"),
            remove_vm("configured"),
        ] {
            changes.push(request);
        }
        let expected = [
            remove("configured"),
            add("old", "c"),
            remove_vm("configured"),
        ];
        assert_eq!(changes.all(), expected);
        for n in 0..MAX_CHANGES {
            changes.push(add("old", &n.to_string()));
        }
        assert_eq!(changes.all().len(), MAX_CHANGES);
    }
}
