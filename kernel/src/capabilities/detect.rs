//! Which detector finds out each capability.

use std::path::Path;

use super::controllers::{self, Found, Hierarchy, UNMOUNTED, if_mounted};
use super::finding::{Finding, no, not_applicable, readable, unknown, yes};
use super::{Capability, CapabilityId, Paths, State, disks, memory};
use crate::PAGE_SIZE;
use crate::buffer::read_path;
use crate::error::Result;
use crate::parse;
use crate::release::{KernelVersion, release};

/// The release that brought `swappiness=`. To ask the kernel itself takes a write, and detection only reads.
const RECLAIM_SWAPPINESS: KernelVersion = KernelVersion::new(6, 9);
/// The oldest release on which `io.max` causes no priority inversion: a limited writer does not delay other cgroups'
/// metadata on a shared file system.
pub const IO_MAX_WITHOUT_INVERSION: KernelVersion = KernelVersion::new(6, 12);
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
        Id::Cgroup2Writable => controllers::writable(found),
        Id::MemoryController => controllers::available(found, "memory"),
        Id::MemoryEnabled => controllers::enabled(found, "memory"),
        Id::IoController => controllers::available(found, "io"),
        Id::IoEnabled => controllers::enabled(found, "io"),
        Id::CpuController => controllers::available(found, "cpu"),
        Id::CpuEnabled => controllers::enabled(found, "cpu"),
        Id::MemoryReclaim => if_mounted(found, |here| memory::memory_reclaim(here.fs.root())),
        Id::ReclaimSwappiness => reclaim_swappiness(release, found),
        Id::Mglru => memory::mglru(&paths.sys),
        Id::MglruDebug => memory::mglru_debug(&paths.sys),
        Id::RecursiveProtection => controllers::recursive_protection(found),
        Id::Swap => memory::swap(&paths.proc),
        Id::Psi => memory::psi(&paths.proc),
        Id::Bfq => disks::bfq(&paths.sys),
        Id::IoCost => disks::io_cost(found),
        Id::Numa => readable(
            &paths.sys.join("devices/system/node"),
            "the kernel is built without CONFIG_NUMA",
        ),
        Id::Btf => readable(
            &paths.sys.join("kernel/btf/vmlinux"),
            "the kernel is built without CONFIG_DEBUG_INFO_BTF, so no probes can be attached",
        ),
        Id::IoMaxWithoutInversion => since(
            release,
            IO_MAX_WITHOUT_INVERSION,
            ": before, metadata of others waits behind a limited writer's data on a shared file system; take a newer \
             kernel",
        ),
        Id::Cachestat => since(
            release,
            CACHESTAT,
            ": before, what is dirty of a file cannot be told; take a newer kernel",
        ),
        Id::RechargeableFiles => disks::rechargeable(&paths.proc),
    }
}

fn reclaim_swappiness(release: &Result<String>, found: Found<'_>) -> Finding {
    match found.map(|here| memory::memory_reclaim(here.fs.root()).0) {
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
