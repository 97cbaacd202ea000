//! Warnings of `--check-config` about values that are probably mistakes or have no effect yet.

use super::config::{Config, Size};
use crate::block::BLOCK_BYTES;
use crate::cache::machine_memory;
use crate::config::StoreKind;
use justitia_common::regular_file::directory_of;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A smaller memory store is practically useless, bytes.
const LEAST_MEMORY: u64 = 256 * BLOCK_BYTES;

/// The warnings, in words.
#[must_use]
pub fn advice(config: &Config) -> Vec<String> {
    let mut found: Vec<String> = memory(config).into_iter().collect();
    if config.cache.ssd.is_none() {
        let pools = config.vms.iter().flat_map(|vm| {
            let of = vm.pools.iter();
            of.filter(|pool| pool.spec.weight(StoreKind::Ssd).is_some())
                .map(|pool| (&vm.name, &pool.name))
        });
        found.extend(pools.map(|(vm, pool)| {
            format!("expected an [ssd] table for pool {pool:?} of VM {vm:?}, found none: until there is an SSD store the pool uses memory")
        }));
    }
    found
}

fn memory(config: &Config) -> Option<String> {
    let (size, machine) = (config.cache.memory_bytes, machine_memory());
    let found = Size(size);
    if (1..LEAST_MEMORY).contains(&size) {
        return Some(format!(
            "memory.size: expected {} or more, found {found}: give a unit, such as \"4GiB\"",
            Size(LEAST_MEMORY)
        ));
    }
    (size > machine).then(|| {
        format!(
            "memory.size: expected at most the machine's memory, {}, found {found}: name a smaller one",
            Size(machine)
        )
    })
}

/// The sockets of disks.
pub(super) fn sockets(config: &Config) -> impl Iterator<Item = &PathBuf> {
    let of_vms = config.vms.iter().flat_map(|vm| {
        let vhost = vm.disks.iter().filter_map(|disk| disk.vhost.as_ref());
        vm.socket.iter().chain(vhost)
    });
    config.listen.unix.iter().chain(of_vms)
}

/// The directories of sockets that are not there, in words. systemd may make them before a start.
#[must_use]
pub fn missing_directories(config: &Config) -> Vec<String> {
    let directories: BTreeSet<&Path> = sockets(config).map(|path| directory_of(path)).collect();
    let missing = directories.into_iter().filter(|path| !path.is_dir());
    let told = missing.map(|path| {
        let path = path.display();
        format!("expected the directory {path} for sockets, found none: make it before the start (`install -d -m 0711 {path}`)")
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Config {
        Config::parse(Path::new("c"), text).unwrap()
    }

    #[test]
    fn what_is_hardly_meant_is_told() {
        for (text, told) in [
            ("[memory]\nsize = 32", "found 32 B: give a unit"),
            (
                "[memory]\nsize = \"100TiB\"",
                "found 100.0 TiB: name a smaller one",
            ),
            (
                "[[vm]]\nname = \"a\"\nsocket = \"/s\"\n[[vm.pool]]\nname = \"p\"\nstore = \"ssd\"",
                "an [ssd] table for pool \"p\" of VM \"a\"",
            ),
        ] {
            let found = advice(&of(text));
            assert!(found.len() == 1 && found[0].contains(told), "{found:?}");
        }
        for text in ["", "[memory]\nsize = 0", "[memory]\nsize = \"1MiB\""] {
            assert_eq!(advice(&of(text)), Vec::<String>::new());
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_told_once() {
        let text = "[listen]\nunix = \"/none/a\"\n[[vm]]\nname = \"a\"\nsocket = \"/none/b\"\n\
                    [[vm]]\nname = \"b\"\nsocket = \"/c\"\n";
        let found = missing_directories(&of(text));
        assert!(
            found.len() == 1 && found[0].contains("install -d -m 0711 /none"),
            "{found:?}"
        );
    }
}
