//! A stock guest that puts: what its page cache evicts comes back from the host's memory, byte for byte.
//!
//! The host's daemon runs on this machine and serves an image and a port over NBD. In the guest `justitia guest` offers
//! what is evicted while files of twice the guest's memory are read.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests are tests"
)]

mod guest_host;
mod retry;

use guest_host::{Host, boot, comes, end_agent, run, start_agent, status};
use justitia_lab::vm::Vm;
use retry::retry_after_a_crash;

/// The guest's memory, MiB: little, so that a working set of twice as much is read soon; half of it takes the lab's programs.
const MEMORY: u64 = 512;

/// A host whose cache holds all, and a guest of that memory.
fn machines() -> (Host, Vm) {
    let mut host = Host::new(2 * MEMORY + 200, 2 * MEMORY, 2 * MEMORY);
    host.start();
    let vm = boot(&host, MEMORY << 20);
    (host, vm)
}

/// Reads the file once; returns its checksum.
fn read(vm: &Vm) -> String {
    run(vm, "md5sum </mnt/data | cut -d' ' -f1")
}

#[test]
fn what_a_guest_evicts_comes_back_from_the_host() {
    retry_after_a_crash(|| {
        let (host, vm) = machines();
        start_agent(&vm);
        run(&vm, "cat /mnt/data >/dev/null");
        assert_eq!(read(&vm), host.sum());
        comes(&vm, "sleep 3");
        let (gets, hits) = host.lookups();
        println!(
            "{gets} lookups, {hits} hits; {}\n{:#}",
            host.stats()["ports"],
            status(&vm)
        );
        assert!(host.verdict("accepted") > 20_000);
        assert_eq!(host.verdict("mismatch"), 0);
        assert!(hits > 10_000, "{hits} of {gets}");
        end_agent(&vm);
    });
}

/// Two containers that read the file's halves, with weights of 300 and 100, and hints for their threads.
const CONTAINERS: &str = r#"
mkdir -p /etc/justitia && printf '[guest]\nioprio_hints = true\n' >/etc/justitia/justitia.toml
cd /sys/fs/cgroup && echo '+memory +io' >cgroup.subtree_control
for name in heavy light; do
    mkdir -p $name
    sh -c 'echo $$ >$0/cgroup.procs; exec sleep 100000' $name >/dev/null 2>&1 &
    echo $! >/run/$name.pid
done
echo 300 >heavy/io.weight
"#;

/// Each reads its half: more than there is memory for both.
const HALVES: &str = r#"
half=$(($(stat -c %s /mnt/data) / 2097152))
for name in heavy light; do
    [ $name = heavy ] && skip=0 || skip=$half
    sh -c 'echo $$ >/sys/fs/cgroup/$0/cgroup.procs; exec dd if=/mnt/data of=/dev/null bs=1M skip=$1 count=$2 2>/dev/null' \
        $name $skip $half
done
"#;

/// Waits until the host has a pool of this weight, into which so many blocks were put at least.
#[track_caller]
fn has_pool(host: &Host, vm: &Vm, name: &str, weight: u64, blocks: u64) {
    for _ in 0..60 {
        let found = host.pool(name);
        if found.is_some_and(|(of, puts)| of == weight && puts >= blocks) {
            return;
        }
        run(vm, "sleep 0.5");
    }
    panic!(
        "expected a pool {name} of weight {weight}: {:#}",
        host.stats()
    );
}

#[test]
#[ignore = "two minutes in a VM: make test-guest"]
fn containers_have_pools_and_the_host_may_come_and_go() {
    retry_after_a_crash(|| {
        let (mut host, vm) = machines();
        run(&vm, CONTAINERS);
        start_agent(&vm);
        // The first pages make them known, the next ones go to their pools.
        for _ in 0..2 {
            run(&vm, HALVES);
        }
        // 300 and 100 at the top level, times 32: the largest is at most 10000.
        has_pool(&host, &vm, "heavy", 9600, 1000);
        has_pool(&host, &vm, "light", 3200, 1000);
        // Best effort, the pool's number above the level of three bits.
        let priority = run(&vm, "ionice -p $(cat /run/heavy.pid)");
        let hinted = |text: &str| text.rsplit(' ').next().unwrap().parse::<u32>().unwrap_or(0) >= 8;
        assert!(hinted(&priority), "{priority}");

        // A container ends.
        run(
            &vm,
            "kill -9 $(cat /run/light.pid); sleep 1; rmdir /sys/fs/cgroup/light",
        );
        for _ in 0..60 {
            if host.pool("light").is_none() {
                break;
            }
            run(&vm, "sleep 0.5");
        }
        assert_eq!(host.pool("light"), None);

        // The host's daemon is killed, and the next one knows nothing.
        host.kill();
        host.start();
        comes(&vm, "grep -q 'started anew' /run/guest.log");
        assert_eq!(read(&vm), host.sum());
        assert_eq!(read(&vm), host.sum());
        assert!(host.verdict("accepted") > 1000);
        assert_eq!(host.verdict("mismatch"), 0);

        end_agent(&vm);
        let priority = run(&vm, "ionice -p $(cat /run/heavy.pid)");
        assert!(!hinted(&priority), "{priority}");
        // The next agent takes over the pools that it finds.
        start_agent(&vm);
        run(&vm, "mkdir /sys/fs/cgroup/light");
        run(&vm, HALVES);
        has_pool(&host, &vm, "heavy", 9600, 1);
        end_agent(&vm);
    });
}

/// A file system on dm-crypt, with a file that is larger than memory.
const ENCRYPTED: &str = r#"
. /run/lib
modprobe dm_crypt; modprobe xts; modprobe ecb; set -e
secret=$(disk secret)
key=$(printf '%064d' 7)$(printf '%064d' 9)
dmsetup create crypt --table "0 $(cat /sys/block/${secret#/dev/}/size) crypt aes-xts-plain64 $key 0 $secret 0"
mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0 /dev/dm-0 >&2
mkdir -p /secret && mount /dev/dm-0 /secret
dd if=/dev/urandom of=/secret/data bs=1M count=300 2>/dev/null
sync
"#;

#[test]
#[ignore = "two minutes in a VM: make test-guest"]
fn an_encrypted_file_system_is_not_offered_for_long() {
    retry_after_a_crash(|| {
        let (host, vm) = machines();
        start_agent(&vm);
        run(&vm, ENCRYPTED);
        for _ in 0..4 {
            run(
                &vm,
                "md5sum /secret/data >>/run/sums; echo 3 >/proc/sys/vm/drop_caches; sleep 2",
            );
        }
        comes(&vm, "grep -q 'not offered for a while' /run/guest.log");
        println!("{}\n{:#}", host.stats()["ports"], status(&vm));
        assert!(host.verdict("mismatch") > 64);
        // 300 MiB are 76,800 blocks each time.
        assert!(host.verdict("mismatch") < 2 * 76_800);
        assert_eq!(run(&vm, "sort -u /run/sums | wc -l"), "1");
        // The other disk is offered as before.
        let before = host.verdict("accepted");
        assert_eq!(read(&vm), host.sum());
        assert_eq!(read(&vm), host.sum());
        assert!(host.verdict("accepted") > before + 1000);
        end_agent(&vm);
    });
}
