//! What `justitia host duplicates` shows.

use justitia_api::escape::plain_lines;
use justitia_api::units::bytes;
use justitia_host::duplicates::{DiskDuplicates, Duplicates, VmDuplicates};
use justitia_view::table::{known, table};

/// A table, and what is missing in it.
pub(super) fn text(found: &Duplicates) -> String {
    let columns = "VM|IMAGE|>HOST|>GUEST|>BOTH|>SHARE";
    let disks = || {
        let vms = found.vms.iter();
        vms.flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk)))
    };
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let rows = disks().map(|(vm, disk)| {
        vec![
            vm.name.clone(),
            disk.image.clone(),
            known(disk.host),
            known(disk.guest),
            known(disk.both),
            disk.share.map_or_else(|| "-".to_owned(), percent),
        ]
    });
    let notes: String = found
        .vms
        .iter()
        .flat_map(of_vm)
        .chain(disks().filter_map(|(vm, disk)| of_disk(vm, disk)))
        .map(|note| note + "\n")
        .collect();
    let gap = if notes.is_empty() { "" } else { "\n" };
    plain_lines(&format!("{}{gap}{notes}", table(columns, rows)))
}

/// What is not known of a VM, or what its guest caches beyond the table.
fn of_vm(vm: &VmDuplicates) -> Option<String> {
    if let Some(why) = &vm.why {
        return Some(format!("{}: {why}", vm.name));
    }
    let file = vm.guest_file?;
    let told = vm.disks.iter().filter_map(|disk| disk.guest);
    let told = told.fold(0, u64::saturating_add);
    let rest = file.saturating_sub(told);
    if !vm.guest_is_whole {
        return Some(format!(
            "{}: its guest's agent could not look at all: of {} of files it found {} on disks",
            vm.name,
            bytes(file),
            bytes(told)
        ));
    }
    (rest > file / 8).then(|| {
        format!(
            "{}: {} of the {} of files that its guest caches are not told: deleted files, other file systems, or names that its \
             kernel does not cache",
            vm.name,
            bytes(rest),
            bytes(file)
        )
    })
}

fn of_disk(vm: &VmDuplicates, disk: &DiskDuplicates) -> Option<String> {
    let name = &vm.name;
    if let Some(why) = &disk.why {
        return Some(format!("{name}, {}: {why}", disk.image));
    }
    (disk.looked_at < disk.size).then(|| {
        format!(
            "{name}, {}: {} of {} were looked at within 2 s",
            disk.image,
            bytes(disk.looked_at),
            bytes(disk.size)
        )
    })
}
