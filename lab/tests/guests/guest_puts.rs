//! A stock guest that puts: what its page cache evicts comes back from the host's memory, byte for byte.
//!
//! The host's daemon runs on this machine and serves an image and a port over NBD. In the guest `justitia guest` offers
//! what is evicted while files larger than the guest's memory are read.

mod puts_in_vain;

use std::path::Path;

use super::guest_host::{Host, boot, comes, end_agent, run, start_agent, status};
use super::retry::retry_after_a_crash;
use justitia_lab::vm::Vm;

/// The guest's memory, MiB: little, so that a working set of twice as much is read soon; half of it takes the lab's programs.
const MEMORY: u64 = 512;

/// A file that the guest's page cache cannot hold, MiB: the short test's.
const FILE: u64 = 512;

/// Bytes that a slow disk reads in a second.
const SLOW: u64 = 40 << 20;

/// And one so slow that puts are worth it on a busy machine, too.
const SLOWER: u64 = 20 << 20;

/// A host whose cache holds all, and a guest of that memory. The disks read `bytes_a_second`; `None`: they lie in the
/// host's memory.
fn machines(bytes_a_second: Option<u64>) -> (Host, Vm) {
    machines_with("6.12", 2 * MEMORY, bytes_a_second)
}

/// Likewise, a guest with this kernel and a file of `file` MiB.
fn machines_with(kernel: &str, file: u64, bytes_a_second: Option<u64>) -> (Host, Vm) {
    let mut host = Host::new(file + 200, file, 2 * MEMORY, bytes_a_second);
    host.start();
    let vm = boot(&host, MEMORY << 20, kernel);
    (host, vm)
}

/// Reads the file once; returns its checksum.
fn read(vm: &Vm) -> String {
    run(vm, "md5sum </mnt/data | cut -d' ' -f1")
}

/// Not ignored: `make test` runs it wherever it can.
#[test]
fn what_a_guest_evicts_comes_back_from_the_host() {
    // nbdfuse's files are mounted.
    if rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() {
        comes_back("6.12");
    } else {
        eprintln!("not tested: a slow disk needs root, and /dev/fuse");
    }
}

#[test]
#[ignore = "a minute in a VM, and root: make test-guest"]
fn what_a_guest_of_an_old_kernel_evicts_comes_back_from_the_host() {
    comes_back("6.1");
}

/// A guest with this kernel reads a file twice that it cannot hold.
fn comes_back(kernel: &str) {
    retry_after_a_crash(|| {
        let (host, vm) = machines_with(kernel, FILE, Some(SLOWER));
        start_agent(&vm);
        assert_eq!(read(&vm), host.sum());
        // Puts of the first reading that are still on their way come on top.
        let put = host.verdict("accepted");
        let first = host.lookups();
        assert_eq!(read(&vm), host.sum());
        comes(&vm, "sleep 3");
        let both = host.lookups();
        let (gets, hits) = (both.0 - first.0, both.1 - first.1);
        println!(
            "kernel {}: {put} puts of the first reading, {gets} lookups of the second, {hits} hits; {}\n{:#}",
            vm.guest().kernel(),
            host.stats()["ports"],
            status(&vm)
        );
        // How much is put depends on the processor; that what was put is found does not.
        assert!(put > 100, "{put}");
        assert_eq!(host.verdict("mismatch"), 0);
        assert!(10 * hits > 9 * put, "{hits} of {put}");
        end_agent(&vm);
    });
}

/// Two containers that read the file's halves, with weights of 300 and 100.
const CONTAINERS: &str = r#"
mkdir -p /etc/justitia && printf '[guest]\nssd = true\n' >/etc/justitia/justitia.toml
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

/// Waits until the host has a pool of these weights in memory and on the SSD, into which at least `blocks` were put.
#[track_caller]
fn has_pool(host: &Host, vm: &Vm, name: &str, weights: [u64; 2], blocks: u64) {
    for _ in 0..60 {
        let found = host.pool(name);
        if found.is_some_and(|(of, puts)| of == weights && puts >= blocks) {
            return;
        }
        run(vm, "sleep 0.5");
    }
    panic!(
        "expected a pool {name} of weights {weights:?}: {:#}",
        host.stats()
    );
}

#[test]
#[ignore = "minutes in a VM, and root: make test-guest"]
fn containers_have_pools_and_the_host_may_come_and_go() {
    retry_after_a_crash(|| {
        let (mut host, vm) = machines(Some(SLOWER));
        run(&vm, CONTAINERS);
        start_agent(&vm);
        // The first pages make them known, the next ones go to their pools.
        for _ in 0..2 {
            run(&vm, HALVES);
        }
        // 300 and 100 at the top level, times 32: the largest is at most 10000. In both stores, as configured.
        has_pool(&host, &vm, "heavy", [9600, 9600], 1000);
        has_pool(&host, &vm, "light", [3200, 3200], 1000);

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
        // The next agent takes over the pools that it finds.
        start_agent(&vm);
        run(&vm, "mkdir /sys/fs/cgroup/light");
        run(&vm, HALVES);
        has_pool(&host, &vm, "heavy", [9600, 9600], 1);
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
#[ignore = "minutes in a VM, and root: make test-guest"]
fn an_encrypted_file_system_is_not_offered_for_long() {
    retry_after_a_crash(|| {
        let (host, vm) = machines(Some(SLOWER));
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

/// What reading the file once took, and how many blocks of it came from the image.
struct Pass {
    seconds: f64,
    backing: u64,
}

/// Reads the file twice, the first time with nothing cached anywhere.
fn passes(host: &mut Host, vm: &Vm) -> [Pass; 2] {
    run(vm, "sync; echo 3 >/proc/sys/vm/drop_caches");
    let mut before = host.lookups();
    [0, 1].map(|_| {
        let uptime = || {
            run(vm, "cut -d' ' -f1 /proc/uptime")
                .parse::<f64>()
                .unwrap()
        };
        let begun = uptime();
        run(vm, "cat /mnt/data >/dev/null");
        let seconds = uptime() - begun;
        let after = host.lookups();
        let backing = (after.0 - before.0) - (after.1 - before.1);
        before = after;
        Pass { seconds, backing }
    })
}

/// Seconds of processor time that the agent has taken.
fn agent_cpu(vm: &Vm) -> f64 {
    let ticks = run(
        vm,
        "awk '{print $14 + $15}' /proc/$(cat /run/guest.pid)/stat",
    );
    ticks.parse::<f64>().unwrap() / 100.0
}

/// Nanoseconds that the probe's programs have taken, while the kernel counts that.
fn probe_ns(vm: &Vm) -> u64 {
    let sum = "cat /proc/$(cat /run/guest.pid)/fdinfo/* | awk '$1 == \"run_time_ns:\" {n += $2} END {printf \"%d\", n}'";
    run(vm, sum).parse().unwrap()
}

fn blocks(pass: &Pass) -> f64 {
    f64::from(u32::try_from(pass.backing).unwrap())
}

fn median(mut of: Vec<f64>) -> String {
    of.sort_by(f64::total_cmp);
    let (first, last) = (of[0], of[of.len() - 1]);
    format!("{:.2} ({first:.2} to {last:.2})", of[of.len() / 2])
}

/// What both readings took, and what is left of it with puts.
fn print_rows(with: &[[Pass; 2]], without: &[[Pass; 2]]) {
    let ratio = |of: fn(&[Pass; 2]) -> f64| {
        let pairs = with.iter().zip(without);
        median(
            pairs
                .map(|(with, without)| of(with) / of(without))
                .collect(),
        )
    };
    let of = |passes: &[Pass; 2], name: &str| {
        let [first, second] = passes;
        println!(
            "{name}: {} + {} blocks, {:.1} + {:.1} s",
            first.backing, second.backing, first.seconds, second.seconds
        );
    };
    without.iter().for_each(|one| of(one, "without"));
    with.iter().for_each(|one| of(one, "with"));
    println!(
        "backing reads, both readings: {}",
        ratio(|[a, b]| blocks(a) + blocks(b))
    );
    println!(
        "backing reads, second reading: {}",
        ratio(|[_, b]| blocks(b))
    );
    println!(
        "speed of the first reading: {}",
        ratio(|[a, _]| 1.0 / a.seconds)
    );
    println!(
        "speed of the second reading: {}",
        ratio(|[_, b]| 1.0 / b.seconds)
    );
}

/// With the agent and without, in turn; each time with a host's daemon that has cached nothing.
#[test]
#[ignore = "ten minutes in a VM, and root: make test-guest"]
fn rows_with_puts_and_without_on_a_slow_disk() {
    retry_after_a_crash(|| {
        let (host, vm) = machines(Some(SLOW));
        rows(host, &vm);
    });
}

fn rows(mut host: Host, vm: &Vm) {
    let (mut with, mut without, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        host.kill();
        host.start();
        without.push(passes(&mut host, vm));
        host.kill();
        host.start();
        start_agent(vm);
        let begun = agent_cpu(vm);
        with.push(passes(&mut host, vm));
        let puts = host.verdict("accepted");
        cpu.push((agent_cpu(vm) - begun) * 1e6 / f64::from(u32::try_from(puts).unwrap()));
        assert_eq!(host.verdict("mismatch"), 0);
        println!("{}", status(vm));
        end_agent(vm);
    }
    start_agent(vm);
    run(vm, "echo 1 >/proc/sys/kernel/bpf_stats_enabled");
    let (copied, began) = (host.verdict("accepted"), probe_ns(vm));
    run(
        vm,
        "cat /mnt/data >/dev/null; sleep 3; echo 0 >/proc/sys/kernel/bpf_stats_enabled",
    );
    let puts = host.verdict("accepted") - copied;
    println!(
        "programs: {} ns a put of {puts}",
        (probe_ns(vm) - began) / puts.max(1)
    );
    println!("agent: {} us of processor time a put", median(cpu));
    println!("kernel {}, {:?}", vm.guest().kernel(), vm.accelerator());
    print_rows(&with, &without);
    // Of the first reading nothing can be in the cache.
    let second = |of: &[[Pass; 2]]| of.iter().map(|[_, pass]| pass.backing).sum::<u64>();
    assert!(2 * second(&with) <= second(&without));
}
