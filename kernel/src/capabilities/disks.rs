//! Schedulers, io.cost, and file systems whose files' pages can be recharged.

use std::path::Path;

use super::State;
use super::controllers::{Found, available, if_mounted};
use super::finding::{Finding, any_of, no, not_applicable, unknown, yes};
use crate::block::bfq_disks;
use crate::buffer::read_path;
use crate::io::io_cost_devices;
use crate::parse;

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
                    "no device in io.cost.qos has enable=1: io.weight divides none by itself",
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
