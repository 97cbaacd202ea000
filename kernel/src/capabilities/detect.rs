//! Where each fact comes from.

use std::path::Path;

use rustix::io::Errno;

use super::{Fact, FactName, Paths, State};
use crate::buffer::read_path;
use crate::cgroup::{Cgroup, CgroupFs, Controllers};
use crate::error::{Error, Result};
use crate::mount::CgroupMount;
use crate::parse;
use crate::proc::Meminfo;
use crate::psi::Psi;

/// What a finder returns: the state and the reason.
type Finding = (State, String);

fn yes(reason: impl Into<String>) -> Finding {
    (State::Yes, reason.into())
}

fn no(reason: impl Into<String>) -> Finding {
    (State::No, reason.into())
}

fn not_applicable(reason: impl Into<String>) -> Finding {
    (State::NotApplicable, reason.into())
}

fn unknown(error: &Error) -> Finding {
    (State::Unknown, error.to_string())
}

/// The cgroup v2 mount and what was found there, or why there is none.
struct Found {
    mount: CgroupMount,
    fs: CgroupFs,
    available: Result<Controllers>,
    enabled: Result<Controllers>,
}

/// Every fact, in the order of [`FactName::ALL`].
pub(super) fn facts(paths: &Paths) -> Vec<Fact> {
    let release = release(&paths.proc);
    let found = find_cgroup2(paths);
    FactName::ALL
        .into_iter()
        .map(|name| {
            let (state, reason) = finding(name, paths, &release, found.as_ref());
            Fact {
                name,
                state,
                reason,
            }
        })
        .collect()
}

fn finding(
    name: FactName,
    paths: &Paths,
    release: &Result<String>,
    found: std::result::Result<&Found, &Error>,
) -> Finding {
    match name {
        FactName::RootPrivileges => root_privileges(&paths.proc),
        FactName::KernelRelease => match release {
            Ok(release) => yes(release),
            Err(error) => unknown(error),
        },
        FactName::Cgroup2 => match found {
            Ok(found) => yes(format!("mounted at {:?}", found.mount.path)),
            Err(error) => no(error.to_string()),
        },
        FactName::Cgroup2Writable => at_mount(found, |found| {
            if found.mount.read_only {
                no("mounted read-only, as in a container: run on the host, or remount it rw")
            } else {
                yes("mounted read-write")
            }
        }),
        FactName::MemoryController => available(found, "memory"),
        FactName::MemoryEnabled => enabled(found, "memory"),
        FactName::IoController => available(found, "io"),
        FactName::IoEnabled => enabled(found, "io"),
        FactName::CpuController => available(found, "cpu"),
        FactName::CpuEnabled => enabled(found, "cpu"),
        FactName::MemoryReclaim => at_mount(found, |found| memory_reclaim(found.fs.root())),
        FactName::ReclaimSwappiness => match found.map(|found| memory_reclaim(found.fs.root()).0) {
            Ok(State::No) => not_applicable("there is no memory.reclaim"),
            Err(_) => not_applicable(UNMOUNTED),
            Ok(_) => since(release, RECLAIM_SWAPPINESS, ""),
        },
        FactName::Mglru => mglru(&paths.sys),
        FactName::MglruDebug if !paths.sys.join("kernel/mm/lru_gen").exists() => {
            not_applicable("the kernel is built without CONFIG_LRU_GEN")
        }
        FactName::MglruDebug => exists(
            &paths.sys.join("kernel/debug/lru_gen"),
            "mount debugfs, as root",
        ),
        FactName::RecursiveProtection => at_mount(found, |found| {
            if found.mount.recursiveprot {
                yes("a mount option of cgroup v2: memory.low protects a subtree as a whole")
            } else {
                no("not among cgroup v2's mount options: every level needs its own memory.low")
            }
        }),
        FactName::Swap => swap(&paths.proc),
        FactName::Psi => psi(&paths.proc),
        FactName::Bfq => bfq(&paths.sys),
        FactName::IoCost => at_mount(found, |here| match available(found, "io").0 {
            State::No => not_applicable("cgroup v2 does not have the io controller"),
            _ => io_cost(here.fs.root()),
        }),
        FactName::Numa => exists(
            &paths.sys.join("devices/system/node"),
            "the kernel is built without CONFIG_NUMA",
        ),
        FactName::Btf => exists(
            &paths.sys.join("kernel/btf/vmlinux"),
            "the kernel is built without CONFIG_DEBUG_INFO_BTF, so what applications get is not seen",
        ),
        FactName::SafeLimits => since(
            release,
            SAFE_LIMITS,
            ": before, metadata of others waits behind a limited writer's data on a shared file system; take a newer \
             kernel",
        ),
        FactName::Cachestat => since(
            release,
            CACHESTAT,
            ": before, what is dirty of a file cannot be told; take a newer kernel",
        ),
        FactName::OwnableFiles => ownable(&paths.proc),
    }
}

fn find_cgroup2(paths: &Paths) -> Result<Found> {
    let mount = crate::cgroup::discover(&paths.proc)?;
    let fs = if paths.verify_cgroup2 {
        CgroupFs::open(&mount.path)?
    } else {
        CgroupFs::open_fixture(&mount.path, mount.recursiveprot)?
    };
    Ok(Found {
        available: fs.root().controllers(),
        enabled: fs.root().subtree_control(),
        mount,
        fs,
    })
}

fn at_mount(
    found: std::result::Result<&Found, &Error>,
    finding: impl FnOnce(&Found) -> Finding,
) -> Finding {
    match found {
        Ok(found) => finding(found),
        Err(_) => not_applicable(UNMOUNTED),
    }
}

const UNMOUNTED: &str = "cgroup v2 is not mounted";

fn available(found: std::result::Result<&Found, &Error>, controller: &str) -> Finding {
    at_mount(found, |found| match &found.available {
        Ok(list) if list.has(controller) => yes("listed in the root's cgroup.controllers"),
        Ok(_) => no(format!(
            "not in the root's cgroup.controllers: cgroup v1 has it, or it is disabled; \
             boot with cgroup_no_v1=all, without cgroup_disable={controller}"
        )),
        Err(error) => unknown(error),
    })
}

fn enabled(found: std::result::Result<&Found, &Error>, controller: &str) -> Finding {
    at_mount(found, |found| match &found.enabled {
        Ok(_) if available(Ok(found), controller).0 == State::No => {
            not_applicable("cgroup v2 does not have the controller")
        }
        Ok(list) if list.has(controller) => yes("listed in the root's cgroup.subtree_control"),
        Ok(_) => no(format!(
            "not in the root's cgroup.subtree_control: echo +{controller} to it"
        )),
        Err(error) => unknown(error),
    })
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

fn release(proc: &Path) -> Result<String> {
    read_path(&proc.join("sys/kernel/osrelease"), |text| {
        let text = text.get(..128).unwrap_or(text).trim_ascii();
        text.escape_ascii().to_string()
    })
}

/// Major and minor of a release such as `6.12.117+deb12-cloud-amd64`; `None` where it does not begin with two numbers.
#[must_use]
pub fn version(release: &str) -> Option<(u64, u64)> {
    let mut parts = release.as_bytes().split(|byte| !byte.is_ascii_digit());
    Some((parse::number(parts.next()?)?, parse::number(parts.next()?)?))
}

fn memory_reclaim(root: &Cgroup) -> Finding {
    match root.open("memory.reclaim", rustix::fs::OFlags::PATH) {
        Ok(_) => yes("the root has the file"),
        Err(error) if error.is_missing() => {
            no("the root lacks the file: needs Linux 5.19 and the memory controller in cgroup v2")
        }
        Err(error) => unknown(&error),
    }
}

/// The release that brought `swappiness=`. To ask the kernel is to write, and this only reads:
/// [`has_reclaim_swappiness`] asks.
const RECLAIM_SWAPPINESS: (u64, u64) = (6, 9);
/// The oldest release, major and minor, on which limits on writes hold up nobody else's metadata on a
/// shared file system.
pub const SAFE_LIMITS: (u64, u64) = (6, 12);
/// The release that brought `cachestat`.
const CACHESTAT: (u64, u64) = (6, 5);

/// By the release that brought it; `otherwise` is what its absence means.
fn since(release: &Result<String>, first: (u64, u64), otherwise: &str) -> Finding {
    let (major, minor) = first;
    match release {
        Ok(release) => match version(release) {
            Some(found) if found >= first => yes(format!(
                "Linux {major}.{minor} brought it, this is {release}"
            )),
            Some(_) => no(format!(
                "Linux {major}.{minor} brought it, this is {release}{otherwise}"
            )),
            None => (
                State::Unknown,
                format!("expected a release such as 6.12.0, found {release:?}"),
            ),
        },
        Err(error) => unknown(error),
    }
}

/// Asks the kernel whether the cgroup's `memory.reclaim` takes `swappiness=`, by a request for 0
/// bytes: it reclaims nothing, and a kernel that does not know the argument answers `EINVAL`
/// (before 6.9 the whole text had to be a number). Unlike [`KernelSupport::detect`] this writes,
/// so it is not for a mode that promises to write nothing.
///
/// [`KernelSupport::detect`]: super::KernelSupport::detect
#[must_use]
pub fn has_reclaim_swappiness(cgroup: &Cgroup) -> Fact {
    let (state, reason) = match cgroup.reclaim(0, Some(0)) {
        Ok(_) => yes("the kernel took a request for 0 bytes with swappiness=0"),
        Err(error) if error.errno() == Some(Errno::INVAL) => {
            no("the kernel refused swappiness=0 (EINVAL)")
        }
        Err(error) => unknown(&error),
    };
    Fact {
        name: FactName::ReclaimSwappiness,
        state,
        reason,
    }
}

/// Files are opened by their number, and what a file holds must not depend on who reads it.
fn ownable(proc: &Path) -> Finding {
    let kinds = read_path(&proc.join("self/mountinfo"), |text| {
        let kinds = parse::lines(text).filter_map(|(_, line)| {
            let mut after = parse::words(line).skip_while(|word| *word != b"-");
            after.nth(1)
        });
        let kinds: Vec<_> = kinds.collect();
        let known = [("ext4", &b"ext4"[..]), ("xfs", b"xfs")];
        known.map(|(name, kind)| kinds.contains(&kind).then_some(name))
    });
    match kinds.map(|kinds| kinds.into_iter().flatten().collect::<Vec<_>>()) {
        Ok(kinds) if kinds.is_empty() => {
            no("neither is mounted here, and files of other file systems are not handed over")
        }
        Ok(kinds) => yes(format!("mounted: {}", kinds.join(", "))),
        Err(error) => unknown(&error),
    }
}

fn mglru(sys: &Path) -> Finding {
    let path = sys.join("kernel/mm/lru_gen/enabled");
    let bits = read_path(&path, |text| {
        let text = text.trim_ascii();
        let digits = str::from_utf8(text.strip_prefix(b"0x")?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    });
    match bits {
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

fn exists(path: &Path, otherwise: &str) -> Finding {
    match rustix::fs::access(path, rustix::fs::Access::READ_OK) {
        Ok(()) => yes(format!("{path:?} can be read")),
        Err(Errno::NOENT) => no(format!("{path:?} does not exist: {otherwise}")),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => no(format!("{path:?}: {errno}: {otherwise}")),
        Err(errno) => (State::Unknown, format!("{path:?}: {errno}")),
    }
}

fn swap(proc: &Path) -> Finding {
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

fn psi(proc: &Path) -> Finding {
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

/// How many names of disks a reason lists.
const SHOWN: usize = 8;

fn bfq(sys: &Path) -> Finding {
    let path = sys.join("block");
    let Ok(disks) = std::fs::read_dir(&path) else {
        return (State::Unknown, format!("list {path:?}: cannot be read"));
    };
    let mut names: Vec<_> = disks
        .flatten()
        .filter(|disk| {
            read_path(&disk.path().join("queue/scheduler"), |text| {
                parse::words(text.trim_ascii()).any(|word| word == b"[bfq]")
            })
            .unwrap_or(false)
        })
        .map(|disk| disk.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    listed(
        &names,
        "no disk's scheduler is bfq: io.bfq.weight divides none by itself",
    )
}

/// `254:0 enable=1 ctrl=auto …` in the root's `io.cost.qos`.
fn io_cost(root: &Cgroup) -> Finding {
    let devices = root.read("io.cost.qos", |text| {
        let on = |line: &[u8]| parse::words(line).any(|word| word == b"enable=1");
        Ok(parse::lines(text)
            .filter(|(_, line)| on(line))
            .filter_map(|(_, line)| parse::words(line).next())
            .map(|word| word.escape_ascii().to_string())
            .collect::<Vec<_>>())
    });
    match devices {
        Ok(devices) => listed(
            &devices,
            "no device in io.cost.qos has enable=1: io.weight divides none by itself",
        ),
        Err(error) if error.is_missing() => no(
            "the root lacks io.cost.qos: CONFIG_BLK_CGROUP_IOCOST or the io controller is absent",
        ),
        Err(error) => unknown(&error),
    }
}

fn listed(names: &[String], none: &str) -> Finding {
    if names.is_empty() {
        return no(none);
    }
    let shown = names.get(..SHOWN).unwrap_or(names).join(", ");
    let more = names.len().saturating_sub(SHOWN);
    if more == 0 {
        yes(shown)
    } else {
        yes(format!("{shown} and {more} more"))
    }
}
