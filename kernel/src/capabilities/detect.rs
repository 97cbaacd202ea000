//! The capabilities of a machine, and how each is found out.

use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::capability::{
    Capability, CapabilityId, Finding, Paths, State, any_of, no, not_applicable, readable, unknown,
    yes,
};
use crate::PAGE_SIZE;
use crate::block::bfq_disks;
use crate::buffer::read_path;
use crate::cgroup::{Cgroup, CgroupFs, Controllers};
use crate::error::{Error, Result};
use crate::io::io_cost_devices;
use crate::mount::CgroupMount;
use crate::proc::Meminfo;
use crate::psi::Psi;
use crate::release::{KernelVersion, release};
use crate::{lru_gen, parse};

/// The capabilities of this machine, one for each [`CapabilityId`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(Vec<Capability>);

impl Capabilities {
    /// Detects them. It only reads. What cannot be read is [`State::Unknown`] with the reason, so there is no error to
    /// return.
    #[must_use]
    pub fn detect(paths: &Paths) -> Self {
        Self(all(paths))
    }

    /// All of them, in the order of [`CapabilityId::ALL`].
    #[must_use]
    pub fn all(&self) -> &[Capability] {
        &self.0
    }

    /// One of them; `None` only in a value that was deserialised from elsewhere.
    #[must_use]
    pub fn get(&self, id: CapabilityId) -> Option<&Capability> {
        self.0.iter().find(|capability| capability.id == id)
    }

    /// Whether the machine has it, [`State::Unknown`] if nothing is known.
    #[must_use]
    pub fn state(&self, id: CapabilityId) -> State {
        self.get(id)
            .map_or(State::Unknown, |capability| capability.state)
    }

    /// Whether the machine is known to have it.
    #[must_use]
    pub fn has(&self, id: CapabilityId) -> bool {
        self.state(id) == State::Yes
    }
}

// The detector of each capability.

/// The release that brought `swappiness=`. To ask the kernel itself takes a write, and detection only reads.
const RECLAIM_SWAPPINESS: KernelVersion = KernelVersion::new(6, 9);
/// The release that brought `cachestat`.
const CACHESTAT: KernelVersion = KernelVersion::new(6, 5);

/// Every capability, in the order of [`CapabilityId::ALL`].
pub(super) fn all(paths: &Paths) -> Vec<Capability> {
    let release = release(&paths.proc);
    let hierarchy = Hierarchy::find(paths);
    CapabilityId::ALL
        .into_iter()
        .map(|id| {
            let (state, reason) = detect(id, paths, &release, hierarchy.as_ref());
            Capability { id, state, reason }
        })
        .collect()
}

fn detect(id: CapabilityId, paths: &Paths, release: &Result<String>, found: Found<'_>) -> Finding {
    use CapabilityId as Id;
    match id {
        Id::RootPrivileges => root_privileges(&paths.proc),
        Id::KernelRelease => match release {
            Ok(release) => yes(release),
            Err(error) => unknown(error),
        },
        Id::PageSize => page_size(&paths.proc),
        Id::Cgroup2 => match found {
            Ok(found) => yes(format!("mounted at {:?}", found.mount.path)),
            Err(error) => no(error.to_string()),
        },
        Id::Cgroup2Writable => writable(found),
        Id::MemoryController => available(found, "memory"),
        Id::MemoryEnabled => enabled(found, "memory"),
        Id::IoController => available(found, "io"),
        Id::IoEnabled => enabled(found, "io"),
        Id::CpuController => available(found, "cpu"),
        Id::CpuEnabled => enabled(found, "cpu"),
        Id::MemoryReclaim => if_mounted(found, |here| memory_reclaim(here.fs.root())),
        Id::ReclaimSwappiness => reclaim_swappiness(release, found),
        Id::Mglru => mglru(&paths.sys),
        Id::MglruDebug => mglru_debug(&paths.sys),
        Id::RecursiveProtection => recursive_protection(found),
        Id::Swap => swap(&paths.proc),
        Id::Psi => psi(&paths.proc),
        Id::Bfq => bfq(&paths.sys),
        Id::IoCost => io_cost(found),
        Id::Numa => readable(
            &paths.sys.join("devices/system/node"),
            "the kernel is built without CONFIG_NUMA",
        ),
        Id::Btf => readable(
            &paths.sys.join("kernel/btf/vmlinux"),
            "the kernel is built without CONFIG_DEBUG_INFO_BTF, so no probes can be attached",
        ),
        Id::Cachestat => since(
            release,
            CACHESTAT,
            ": before, what is dirty of a file cannot be told; take a newer kernel",
        ),
        Id::RechargeableFiles => rechargeable(&paths.proc),
    }
}

fn reclaim_swappiness(release: &Result<String>, found: Found<'_>) -> Finding {
    match found.map(|here| memory_reclaim(here.fs.root()).0) {
        Ok(State::No) => not_applicable("there is no memory.reclaim"),
        Err(_) => not_applicable(UNMOUNTED),
        Ok(_) => since(release, RECLAIM_SWAPPINESS, ""),
    }
}

/// Whether the kernel is at least of version `first`, which brought it; `hint` says what its absence means.
fn since(release: &Result<String>, first: KernelVersion, hint: &str) -> Finding {
    let release = match release {
        Ok(release) => release,
        Err(error) => return unknown(error),
    };
    match KernelVersion::parse(release) {
        Some(found) if found >= first => {
            yes(format!("Linux {first} brought it, this is {release}"))
        }
        Some(_) => no(format!("Linux {first} brought it, this is {release}{hint}")),
        None => (
            State::Unknown,
            format!("expected a release such as 6.12.0, found {release:?}"),
        ),
    }
}

/// The size of pages, from the auxiliary vector (`AT_PAGESZ`, elf.h): pairs of a key and a value, each a machine word.
fn page_size(proc: &Path) -> Finding {
    const AT_PAGESZ: u64 = 6;
    let found = read_path(&proc.join("self/auxv"), |vector| {
        let mut words = vector.chunks_exact(8).map(|word| {
            let word = word.try_into().unwrap_or_default();
            u64::from_ne_bytes(word)
        });
        std::iter::from_fn(|| Some((words.next()?, words.next()?)))
            .find_map(|(key, value)| (key == AT_PAGESZ).then_some(value))
    });
    match found {
        Ok(Some(PAGE_SIZE)) => yes(format!("{PAGE_SIZE} bytes")),
        Ok(Some(size)) => no(format!(
            "the page size is {size} bytes, expected {PAGE_SIZE}: the kernel would round what the agent writes to other \
             values, and every counter of pages would be misread; boot a kernel with pages of {PAGE_SIZE} bytes"
        )),
        Ok(None) => (
            State::Unknown,
            "expected AT_PAGESZ in self/auxv, found none".to_owned(),
        ),
        Err(error) => unknown(&error),
    }
}

fn root_privileges(proc: &Path) -> Finding {
    const EXPECTED: &str = "a line `Uid: REAL EFFECTIVE SAVED FS` in self/status";
    let uid = read_path(&proc.join("self/status"), |text| {
        parse::lines(text).find_map(|(_, line)| {
            let mut words = parse::words(line);
            (words.next()? == b"Uid:").then(|| words.nth(1).and_then(parse::number))?
        })
    });
    match uid {
        Ok(Some(0)) => yes("the effective user is root"),
        Ok(Some(uid)) => no(format!("the effective user is {uid}: run as root")),
        Ok(None) => (State::Unknown, format!("expected {EXPECTED}, found none")),
        Err(error) => unknown(&error),
    }
}

// The cgroup v2 mount and its controllers.

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
            CgroupFs::open_fixture(&mount.path)?
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
            "not in the root's cgroup.controllers: cgroup v1 has it (boot with systemd.unified_cgroup_hierarchy=1; \
             without systemd cgroup_no_v1=all), or it is disabled (boot without cgroup_disable={controller})"
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

// Reclaim, the LRU, swap and pressure.

pub(super) fn memory_reclaim(root: &Cgroup) -> Finding {
    match root.open("memory.reclaim", rustix::fs::OFlags::PATH) {
        Ok(_) => yes("the root has the file"),
        Err(error) if error.is_missing() => {
            no("the root lacks the file: needs Linux 5.19 and the memory controller in cgroup v2")
        }
        Err(error) => unknown(&error),
    }
}

pub(super) fn mglru(sys: &Path) -> Finding {
    let path = sys.join("kernel/mm/lru_gen/enabled");
    match lru_gen::enabled(sys) {
        Ok(Some(bits)) if bits & 1 == 1 => yes(format!("{path:?} says {bits:#06x}")),
        Ok(Some(bits)) => no(format!(
            "{path:?} says {bits:#06x}: the classic LRU is in use"
        )),
        Ok(None) => (
            State::Unknown,
            format!("{path:?}: expected a number such as 0x0007"),
        ),
        Err(error) if error.is_missing() => {
            no("the kernel is built without CONFIG_LRU_GEN: the classic LRU is in use")
        }
        Err(error) => unknown(&error),
    }
}

pub(super) fn mglru_debug(sys: &Path) -> Finding {
    if !sys.join("kernel/mm/lru_gen").exists() {
        return not_applicable("the kernel is built without CONFIG_LRU_GEN");
    }
    readable(&sys.join("kernel/debug/lru_gen"), "mount debugfs, as root")
}

pub(super) fn swap(proc: &Path) -> Finding {
    let path = proc.join("meminfo");
    match read_path(&path, Meminfo::parse) {
        Ok(Ok(info)) if info.swap_total > 0 => {
            yes(format!("{} MiB of swap", info.swap_total >> 20))
        }
        Ok(Ok(_)) => no("no swap is on"),
        Ok(Err(source)) => unknown(&Error::Parse { path, source }),
        Err(error) => unknown(&error),
    }
}

pub(super) fn psi(proc: &Path) -> Finding {
    const BOOT: &str = "needs CONFIG_PSI, and psi=1 on the kernel command line \
                        where it is off by default";
    let path = proc.join("pressure/memory");
    match read_path(&path, Psi::parse) {
        Ok(Ok(_)) => yes(format!("{path:?} can be read")),
        Ok(Err(source)) => unknown(&Error::Parse { path, source }),
        Err(error) if error.is_missing() || error.errno() == Some(Errno::OPNOTSUPP) => {
            no(format!("{error}: {BOOT}"))
        }
        Err(error) => unknown(&error),
    }
}

// Schedulers, io.cost, and file systems whose files' pages can be recharged.

/// The disks that BFQ schedules.
pub(super) fn bfq(sys: &Path) -> Finding {
    let path = sys.join("block");
    let Ok(names) = bfq_disks(&path) else {
        return (State::Unknown, format!("list {path:?}: cannot be read"));
    };
    any_of(
        &names,
        "no disk's scheduler is bfq: io.bfq.weight divides none by itself",
    )
}

/// The devices on which io.cost is enabled.
pub(super) fn io_cost(found: Found<'_>) -> Finding {
    if_mounted(found, |hierarchy| {
        if available(found, "io").0 == State::No {
            return not_applicable("cgroup v2 does not have the io controller");
        }
        let devices = hierarchy
            .fs
            .root()
            .read("io.cost.qos", |text| Ok(io_cost_devices(text)));
        match devices {
            Ok(devices) => {
                let names: Vec<_> = devices.iter().map(ToString::to_string).collect();
                any_of(
                    &names,
                    "no device in io.cost.qos has enable=1: io.weight divides none by itself; with [io] the agent enables it while tenants contend",
                )
            }
            Err(error) if error.is_missing() => no(
                "the root lacks io.cost.qos: CONFIG_BLK_CGROUP_IOCOST or the io controller is absent",
            ),
            Err(error) => unknown(&error),
        }
    })
}

/// Files are opened by inode number, and what a file holds must not depend on the reader: only ext4 and XFS qualify.
pub(super) fn rechargeable(proc: &Path) -> Finding {
    let mounted = read_path(&proc.join("self/mountinfo"), |text| {
        let types: Vec<_> = parse::lines(text)
            .filter_map(|(_, line)| {
                let mut after = parse::words(line).skip_while(|word| *word != b"-");
                after.nth(1)
            })
            .collect();
        [("ext4", &b"ext4"[..]), ("xfs", b"xfs")]
            .into_iter()
            .filter(|(_, name)| types.contains(name))
            .map(|(title, _)| title)
            .collect::<Vec<_>>()
    });
    match mounted {
        Ok(names) if names.is_empty() => no(
            "neither is mounted here, and pages of files of other file systems are not recharged",
        ),
        Ok(names) => yes(format!("mounted: {}", names.join(", "))),
        Err(error) => unknown(&error),
    }
}
