//! A fake `/proc`, `/sys` and cgroup tree.

use std::path::Path;

use tempfile::TempDir;

use crate::capabilities::{Capabilities, CapabilityId, Paths, State};

/// A machine on which everything works; tests take things away.
pub(super) struct Machine(TempDir);

impl Machine {
    pub(super) fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.write("proc/self/status", "Name:\tx\nUid:\t1000\t0\t0\t0\n");
        machine.write("proc/self/auxv", auxv(4096));
        machine.write("proc/sys/kernel/osrelease", "6.12.117+deb12-cloud-amd64\n");
        machine.write(
            "proc/meminfo",
            "MemTotal: 8 kB\nMemFree: 1 kB\nMemAvailable: 1 kB\n",
        );
        machine.write(
            "proc/pressure/memory",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        );
        machine.mount("rw", "rw,memory_recursiveprot");
        machine.write("cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
        machine.write("cgroup/cgroup.subtree_control", "cpu io memory\n");
        machine.write("cgroup/memory.reclaim", "");
        machine.write(
            "cgroup/io.cost.qos",
            "8:0 enable=1 ctrl=auto\n8:16 enable=0 ctrl=auto\n",
        );
        machine.write("sys/kernel/mm/lru_gen/enabled", "0x0000\n");
        machine.write("sys/kernel/debug/lru_gen", "memcg 1 /\n");
        machine.write("sys/devices/system/node/online", "0\n");
        machine.write("sys/kernel/btf/vmlinux", "x");
        machine.write("sys/block/vda/queue/scheduler", "none mq-deadline [bfq]\n");
        machine.write("sys/block/vdb/queue/scheduler", "[none] mq-deadline bfq\n");
        machine
    }

    /// One on which files are written (`write FILE TEXT`) and removed (`remove FILE`), cgroups mounted (`mount OPTIONS
    /// SUPERBLOCK`), and pages have another size (`pages BYTES`).
    pub(super) fn changed(changes: &str) -> Self {
        let machine = Self::new();
        for change in changes.split("; ") {
            let (verb, what) = change.split_once(' ').unwrap();
            let (first, second) = what.split_once(' ').unwrap_or((what, ""));
            match verb {
                "write" => {
                    let text = second.replace(r"\n", "\n").replace(r"\t", "\t");
                    machine.write(first, text);
                }
                "remove" => machine.remove(first),
                "mount" => machine.mount(first, second),
                _ => machine.write("proc/self/auxv", auxv(first.parse().unwrap())),
            }
        }
        machine
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(super) fn remove(&self, file: &str) {
        let path = self.path().join(file);
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }

    pub(super) fn mount(&self, options: &str, superblock: &str) {
        let path = self.path().join("cgroup");
        let path = path.to_str().unwrap();
        let root = "25 1 8:1 / / rw,noatime shared:1 - ext4 /dev/sda1 rw\n";
        let line = format!("31 25 0:27 / {path} {options} - cgroup2 cgroup2 {superblock}\n");
        self.write("proc/self/mountinfo", format!("{root}{line}"));
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        Capabilities::detect(&Paths {
            proc: self.path().join("proc"),
            sys: self.path().join("sys"),
            verify_cgroup2: false,
        })
    }

    /// The state of a capability, and its reason when it must contain `word`.
    pub(super) fn expect(&self, name: CapabilityId, state: State, word: &str) {
        let found = self.capabilities();
        let capability = found.get(name).unwrap();
        assert_eq!(capability.state, state, "{capability:?}");
        assert!(
            capability.reason.contains(word),
            "{capability:?} lacks {word:?}"
        );
    }
}

/// The auxiliary vector of a process on a kernel with pages of this size: `AT_PAGESZ` after another entry.
fn auxv(page_size: u64) -> Vec<u8> {
    let words = [16, 0xbfeb_fbff, 6, page_size, 0, 0];
    words.into_iter().flat_map(u64::to_ne_bytes).collect()
}
