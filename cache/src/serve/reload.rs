//! The configuration file is read again: what is gone from it is removed, what is new in it is added.

use super::config::{Config, VmConfig};
use super::daemon::Daemon;
use super::disks::Failed;
use super::error::ServeError;
use super::remove::Gone;
use super::served::{IsServed, Served, check_paths};
use crate::frontend::SocketAccess;
use std::collections::BTreeSet;

/// What a reload has changed: names of disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Disks that are served now, too.
    pub added: Vec<String>,
    /// Disks that are served no more.
    pub removed: Vec<String>,
}

impl Daemon {
    /// Serves what a configuration names, and what requests have added. What cannot be had is said, and changes nothing else.
    pub(super) fn reload(&self, file: &Config) -> Result<Reloaded, ServeError> {
        let mut served = self.served.lock();
        let volumes = self.volumes.lock();
        let disks: BTreeSet<_> = volumes.iter().map(|v| v.name().to_owned()).collect();
        drop(volumes);
        let merged = served.merged(
            file,
            &IsServed {
                vm: &|name| self.vms.lock().knows(name),
                disk: &|name| disks.contains(name),
            },
        );
        if merged.vms.is_empty() && !served.config.vms.is_empty() {
            return Err(ServeError::NoVms);
        }
        check_paths(&merged)?;
        // First what is gone: its images and sockets may have new names.
        let gone = Gone::between(&served.config, &merged);
        for problem in self.remove(&gone) {
            tracing::error!("removed, but: {problem}");
        }
        let mut reloaded = Reloaded {
            removed: gone
                .disks()
                .filter(|disk| disks.contains(*disk))
                .map(str::to_owned)
                .collect(),
            ..Reloaded::default()
        };
        served.config = merged;
        served.settle(file);
        let Served { config, .. } = &*served;
        for vm in &config.vms {
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

    /// Adds and serves what of a VM is not served yet. Returns the disks that are served now, and those that cannot be.
    ///
    /// # Errors
    /// When the VM cannot be had; nothing is changed then.
    pub(super) fn serve_vm(
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
        // Nothing stays of what failed half-way.
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
