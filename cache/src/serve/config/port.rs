//! The port of a VM, and the serials by which its guest names its disks.

use super::error::Checker;
use super::name::is_name;
use super::tables::{DiskMode, DiskTable, PortTable};
use super::types::PortConfig;
use justitia_link::Serial;
use std::collections::BTreeSet;
use toml::Spanned;

/// The largest residency table: of a guest that holds 4 TiB.
const MAX_RESIDENCY: u64 = 16 << 30;

pub(super) fn check_port(
    port: PortTable,
    vm: &Spanned<String>,
    exports: &mut BTreeSet<String>,
    checker: &mut Checker<'_>,
) -> PortConfig {
    let bytes = port.residency.get_ref().0;
    if !(64..=MAX_RESIDENCY).contains(&bytes) {
        checker.error(
            Some(port.residency.span().start),
            format!("expected a residency table of 64 bytes to 16 GiB, found {bytes} bytes"),
        );
    }
    let name = match port.name {
        Some(name) => {
            checker.unique(exports, "disk or port", &name);
            name.into_inner()
        }
        // No disk's name has a slash.
        None => format!("{}/port", vm.get_ref()),
    };
    PortConfig {
        name,
        residency_bytes: bytes,
        ssd: port.ssd,
    }
}

/// The serial of a disk: its own, or its name where that is one.
pub(super) fn serial(disk: &DiskTable) -> Option<Serial> {
    let name = disk.serial.as_ref().unwrap_or(&disk.name);
    Serial::new(name.get_ref())
}

/// A serial is one, and of the disks of a VM with a port each that is cached has one that no other has.
pub(super) fn check_serials(disks: &[DiskTable], port: bool, checker: &mut Checker<'_>) {
    let mut seen = BTreeSet::new();
    for disk in disks {
        let named = disk.serial.as_ref().unwrap_or(&disk.name);
        let cached = !matches!(disk.mode, DiskMode::Uncached);
        let at = Some(named.span().start);
        let found = named.get_ref();
        match serial(disk) {
            None if disk.serial.is_some() => checker.error(
                at,
                format!("expected a serial of 1 to 20 printable ASCII characters, found {found:?}"),
            ),
            // The name is checked elsewhere.
            None if port && cached && is_name(found) => checker.error(
                at,
                format!(
                    "expected a serial for disk {found:?} of a VM with a port, as its name is none (1 to 20 printable ASCII characters): add `serial = \"...\"`"
                ),
            ),
            Some(serial) if port && cached && !seen.insert(serial) => checker.error(
                at,
                format!("expected every serial once among the disks of a VM, found {found:?} again"),
            ),
            _ => {}
        }
    }
}
