//! What `--check-config` finds out about this machine, before anything is started or changed.

use super::config::Config;
use super::disks::options;
use super::paths::{PathUse, collisions};
use crate::backing::RawDisk;
use crate::store::{Foreign, check_place};

/// What of a configuration could not be served, here and now, in words; nothing is changed.
#[must_use]
pub fn preflight(config: &Config) -> Vec<String> {
    let mut found = collisions(&PathUse::of(config));
    // Of a path that is used twice, more need not be said.
    if let (Some(ssd), true) = (&config.cache.ssd, found.is_empty())
        && let Err(e) = check_place(&ssd.path, Foreign::of(ssd))
    {
        found.push(format!(
            "cannot use {} as SSD store: {e}",
            ssd.path.display()
        ));
    }
    for disk in config.vms.iter().flat_map(|vm| &vm.disks) {
        if let Err(e) = RawDisk::check(&disk.image, options(disk)) {
            found.push(format!("disk {:?}: {e}", disk.name));
        }
    }
    if let Some(tls) = &config.tls {
        found.extend(tls.faults());
    }
    found
}
