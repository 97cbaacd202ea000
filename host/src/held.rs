//! The memory of the host, and how much of it processes hold.

/// The most that is read of /proc/PID/smaps, bytes: some 700 a mapping, and QEMU has hundreds.
const MAX_SMAPS: u64 = 16 << 20;
/// The most that is read of /proc/PID/status, bytes: it lists the process's groups.
const MAX_STATUS: u64 = 1 << 20;

/// `MemTotal` without the hugepage pools, and `MemAvailable`, bytes.
pub(crate) fn memory() -> std::io::Result<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    memory_of(&text).ok_or_else(|| {
        std::io::Error::other("expected MemTotal and MemAvailable in kB, found neither")
    })
}

fn memory_of(meminfo: &str) -> Option<(u64, u64)> {
    let hugepages = amount(meminfo, "Hugetlb:").unwrap_or(0);
    let total = amount(meminfo, "MemTotal:")?.saturating_sub(hugepages);
    Some((total, amount(meminfo, "MemAvailable:")?))
}

/// The value of this field in a file of /proc, bytes.
fn amount(text: &str, name: &str) -> Option<u64> {
    in_bytes(text.lines().find_map(|line| line.strip_prefix(name))?)
}

/// Bytes of `  12 kB`.
fn in_bytes(kib: &str) -> Option<u64> {
    let kib: u64 = kib.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// The beginning of a file of /proc.
pub(crate) fn read_at_most(path: &str, most: u64) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut content = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(most).read_to_end(&mut content).ok()?;
    Some(content)
}

/// The memory of the host that a process holds, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Resident and swapped-out memory without hugepages: the guest has not given back swapped-out pages. The kernel does not
    /// count swapped-out pages of shared memory (`memory-backend-memfd`).
    pub resident: u64,
    /// Memory in hugepages, locked, or pinned for a device: the host gets none of it back. Some may count twice.
    pub pinned: u64,
}

impl Held {
    /// The memory that this process holds; `None` if it has ended.
    #[must_use]
    pub fn by(pid: u32) -> Option<Self> {
        let status = read_at_most(&format!("/proc/{pid}/status"), MAX_STATUS)?;
        Self::parse(&String::from_utf8_lossy(&status))
    }

    fn parse(status: &str) -> Option<Self> {
        let sum = |names: &[&str]| {
            let amounts = names.iter().filter_map(|name| amount(status, name));
            amounts.fold(0, u64::saturating_add)
        };
        Some(Self {
            resident: amount(status, "VmRSS:")?.saturating_add(sum(&["VmSwap:"])),
            // VFIO counts its pinned memory as locked; iommufd and vDPA count it as pinned.
            pinned: sum(&["HugetlbPages:", "VmLck:", "VmPin:"]),
        })
    }

    /// Whether most of a guest's `ram` bytes is pinned.
    #[must_use]
    pub const fn is_pinned(&self, ram: u64) -> bool {
        self.pinned > ram / 2
    }
}

/// The memory of a QEMU process besides its guest's `ram` bytes, bytes: device buffers, thread stacks, an emulator's
/// translated code. `None` if no mapping has that size (memory in several parts), or if /proc cannot be read.
///
/// The kernel walks the process's page tables for it: do not call it often.
#[must_use]
pub fn own(pid: u32, ram: u64) -> Option<u64> {
    let smaps = read_at_most(&format!("/proc/{pid}/smaps"), MAX_SMAPS)?;
    own_of(&String::from_utf8_lossy(&smaps), ram)
}

fn own_of(smaps: &str, ram: u64) -> Option<u64> {
    let (mut own, mut is_ram, mut found) = (0_u64, false, false);
    for line in smaps.lines() {
        if let Some(size) = mapping(line) {
            is_ram = size == ram;
            found |= is_ram;
        } else if let Some(part) = ["Rss:", "Swap:"]
            .iter()
            .find_map(|name| line.strip_prefix(name))
            && !is_ram
        {
            own = own.saturating_add(in_bytes(part)?);
        }
    }
    found.then_some(own)
}

/// The size of a mapping, from the first line of its entry in /proc/PID/smaps: `7f00-7f40 rw-p ...`.
fn mapping(line: &str) -> Option<u64> {
    let (begin, end) = line.split(' ').next()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    address(end)?.checked_sub(address(begin)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_aside_for_hugepages_is_no_memory_to_divide() {
        let text = "MemTotal:  1000 kB\nMemFree:  9 kB\nMemAvailable:  150 kB\n";
        assert_eq!(memory_of(text), Some((1000 << 10, 150 << 10)));
        let text = format!("{text}HugePages_Total:  3\nHugetlb:  800 kB\n");
        assert_eq!(memory_of(&text), Some((200 << 10, 150 << 10)));
        assert_eq!(memory_of("MemTotal:  1000 kB\n"), None);
    }

    #[test]
    fn what_is_swapped_out_is_held() {
        let status = "Name:\tqemu\nVmHWM:\t  900 kB\nVmRSS:\t  300 kB\nRssAnon:\t  300 kB\nVmSwap:\t  500 kB\n";
        let held = Held::parse(status).unwrap();
        assert_eq!((held.resident, held.pinned), (800 << 10, 0));
        // It has ended and has no memory any more.
        assert_eq!(Held::parse("Name:\tqemu\nState:\tZ (zombie)\n"), None);
        assert!(Held::by(std::process::id()).unwrap().resident > 0);
    }

    #[test]
    fn hugepages_and_what_is_locked_or_pinned_is_not_given_back() {
        for name in ["VmLck", "VmPin", "HugetlbPages"] {
            // A little memory is locked or pinned, for example for the rings of io_uring.
            for (kib, expected) in [(1 << 20, true), (8 << 10, false)] {
                let status = format!("VmRSS:\t 900 kB\n{name}:\t {kib} kB\n");
                let held = Held::parse(&status).unwrap();
                assert_eq!(held.is_pinned(1 << 30), expected, "{status}");
                assert_eq!(held.resident, 900 << 10);
            }
        }
    }

    #[test]
    fn what_is_not_the_guests_memory_is_qemus_own() {
        let smaps = "55d0-55e0 r-xp 00000000 08:01 7 /usr/bin/qemu-system-x86_64\nSize: 1 kB\nRss:  12 kB\n\
                     7f0000000000-7f0040000000 rw-p 00000000 00:00 0 \nRss:            1000000 kB\nPss: 9 kB\n\
                     Swap: 7 kB\n\
                     7f0050000000-7f0060000000 rwxp 00000000 00:00 0 \nRss:             200000 kB\nSwap: 8 kB\nSwapPss: 8 kB\n";
        assert_eq!(own_of(smaps, 1 << 30), Some(200_020 << 10));
        // No mapping has the size of its memory.
        assert_eq!(own_of(smaps, 2 << 30), None);
        assert_eq!(
            own_of("7f0000000000-7f0040000000 x\nRss: much kB\na-0 \n", 1 << 30),
            Some(0)
        );
        assert!(own(std::process::id(), 1).is_none());
    }
}
