//! The cgroup v2 mount and its controllers.

use super::finding::{Finding, no, not_applicable, unknown, yes};
use super::{Paths, State};
use crate::cgroup::{CgroupFs, Controllers};
use crate::error::{Error, Result};
use crate::mount::CgroupMount;

/// The cgroup v2 mount and the controllers of its root.
pub(super) struct Hierarchy {
    pub(super) mount: CgroupMount,
    pub(super) fs: CgroupFs,
    available: Result<Controllers>,
    enabled: Result<Controllers>,
}

/// The hierarchy, or why there is none.
pub(super) type Found<'a> = std::result::Result<&'a Hierarchy, &'a Error>;

pub(super) const UNMOUNTED: &str = "cgroup v2 is not mounted";

impl Hierarchy {
    pub(super) fn find(paths: &Paths) -> Result<Self> {
        let mount = crate::cgroup::discover(&paths.proc)?;
        let fs = if paths.verify_cgroup2 {
            CgroupFs::open(&mount.path)?
        } else {
            CgroupFs::open_fixture(&mount.path, mount.recursiveprot)?
        };
        Ok(Self {
            available: fs.root().controllers(),
            enabled: fs.root().subtree_control(),
            mount,
            fs,
        })
    }
}

/// What `detect` finds where cgroup v2 is mounted.
pub(super) fn if_mounted(found: Found<'_>, detect: impl FnOnce(&Hierarchy) -> Finding) -> Finding {
    match found {
        Ok(hierarchy) => detect(hierarchy),
        Err(_) => not_applicable(UNMOUNTED),
    }
}

/// Whether cgroup v2 has the controller.
pub(super) fn available(found: Found<'_>, controller: &str) -> Finding {
    if_mounted(found, |hierarchy| match &hierarchy.available {
        Ok(list) if list.has(controller) => yes("listed in the root's cgroup.controllers"),
        Ok(_) => no(format!(
            "not in the root's cgroup.controllers: cgroup v1 has it, or it is disabled; \
             boot with cgroup_no_v1=all, without cgroup_disable={controller}"
        )),
        Err(error) => unknown(error),
    })
}

/// Whether the controller is enabled for the root's children.
pub(super) fn enabled(found: Found<'_>, controller: &str) -> Finding {
    if_mounted(found, |hierarchy| match &hierarchy.enabled {
        Ok(_) if available(Ok(hierarchy), controller).0 == State::No => {
            not_applicable("cgroup v2 does not have the controller")
        }
        Ok(list) if list.has(controller) => yes("listed in the root's cgroup.subtree_control"),
        Ok(_) => no(format!(
            "not in the root's cgroup.subtree_control: echo +{controller} to it"
        )),
        Err(error) => unknown(error),
    })
}

/// Whether the mount takes writes.
pub(super) fn writable(found: Found<'_>) -> Finding {
    if_mounted(found, |hierarchy| {
        if hierarchy.mount.read_only {
            no("mounted read-only, as in a container: run on the host, or remount it rw")
        } else {
            yes("mounted read-write")
        }
    })
}

/// Whether `memory.low` protects a subtree as a whole.
pub(super) fn recursive_protection(found: Found<'_>) -> Finding {
    if_mounted(found, |hierarchy| {
        if hierarchy.mount.recursiveprot {
            yes("a mount option of cgroup v2: memory.low protects a subtree as a whole")
        } else {
            no("not among cgroup v2's mount options: every level needs its own memory.low")
        }
    })
}
