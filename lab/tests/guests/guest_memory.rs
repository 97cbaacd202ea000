//! A guest that gives memory back: its host asks over virtio-serial, the guest reclaims cache that is not worth having, and
//! free page reporting returns it to the host. No balloon is inflated.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use justitia_guest_protocol::memory::{
    Answer, BLOCK, Body, Lines, Reclaimed, Request, State, encode,
};
use justitia_lab::vm::{DiskSpec, Vm, VmSpec};

use super::guest_host::{comes, run};
use super::retry::retry_after_a_crash;

const MIB: u64 = 1 << 20;

/// A set that is mapped, and one that was read six times, MiB each. The multi-gen LRU protects what was read five times.
const SET: u64 = 48;

/// How long an answer may take: an emulated guest on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// The host's end of the port.
struct Host {
    stream: UnixStream,
    lines: Lines,
    answers: VecDeque<Answer>,
    id: u64,
}

impl Host {
    /// Its requests have ids from this one on.
    fn connect(vm: &Vm, id: u64) -> Self {
        let stream = UnixStream::connect(vm.memory_channel()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        Self {
            stream,
            lines: Lines::new(),
            answers: VecDeque::new(),
            id,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next answer.
    fn answer(&mut self) -> Answer {
        while self.answers.is_empty() {
            let mut buffer = [0; 4096];
            let read = self.stream.read(&mut buffer).expect("an answer");
            assert!(read > 0, "the port is closed");
            // Of an answer to a host before there may be the end only.
            let lines = self.lines.push(&buffer[..read]).into_iter().flatten();
            let answers = lines.filter_map(|line| Answer::decode(&line).ok());
            self.answers.extend(answers);
        }
        self.answers.pop_front().unwrap()
    }

    /// What is answered to a request. Answers to requests of a host before are passed over.
    fn ask(&mut self, request: impl FnOnce(u64) -> Request) -> Body {
        self.id += 1;
        let request = request(self.id);
        self.send(&encode(&request));
        loop {
            let answer = self.answer();
            if answer.id == self.id {
                return answer.body;
            }
        }
    }

    fn state(&mut self) -> State {
        match self.ask(|id| Request::State { id }) {
            Body::State(state) => state,
            other => panic!("expected a state, found {other:?}"),
        }
    }

    fn reclaim(&mut self, bytes: u64, within_ms: u32) -> Reclaimed {
        let reclaimed = self.ask(|id| Request::Reclaim {
            id,
            bytes,
            within_ms,
        });
        match reclaimed {
            Body::Reclaimed(reclaimed) => reclaimed,
            other => panic!("expected what was reclaimed, found {other:?}"),
        }
    }
}

/// A guest of `memory` bytes with its disk mounted, and the balloon's driver.
fn boot(memory: u64, kernel: &str) -> Vm {
    let _turn = crate::agent_guest::turn();
    let Ok(kernel) = kernel.parse();
    let vm = Vm::boot(&VmSpec {
        kernel,
        memory: memory * MIB,
        vcpus: 2,
        disks: vec![DiskSpec::ext4(3 << 30)],
        gives_memory: true,
        ..VmSpec::default()
    })
    .unwrap();
    run(
        &vm,
        "mkdir -p /mnt && mount /dev/vda /mnt && modprobe virtio_balloon",
    );
    vm
}

/// Starts the guest agent, which has no configuration, and waits until it listens.
fn start_agent(vm: &Vm) {
    run(
        vm,
        "justitia guest >/run/guest.log 2>&1 & echo $! >/run/guest.pid",
    );
    comes(vm, "grep -q 'questions about memory' /run/guest.log");
}

/// Fills `mib` MiB of cache with a file that is written, and never read.
fn fill(vm: &Vm, mib: u64) {
    run(
        vm,
        &format!("dd if=/dev/zero of=/mnt/cold bs=1M count={mib} 2>/dev/null && sync"),
    );
}

/// A set that a process has mapped and reads slowly, and one that was read six times.
fn use_sets(vm: &Vm) {
    run(
        vm,
        &format!(
            "for name in mapped active; do dd if=/dev/zero of=/mnt/$name bs=1M count={SET} 2>/dev/null; done
             sync; echo 1 >/proc/sys/vm/drop_caches
             for i in 1 2 3 4 5 6; do cat /mnt/active >/dev/null; done
             fio --name=m --filename=/mnt/mapped --size={SET}m --ioengine=mmap --rw=read --bs=4k --invalidate=0 \\
                 --fadvise_hint=0 --thinktime=50000 --thinktime_blocks=1024 --time_based --runtime=600 --output=/run/fio.log >/dev/null 2>&1 &
             echo $! >/run/fio.pid"
        ),
    );
    let whole = SET * 1024 * 9 / 10;
    comes(
        vm,
        &format!("[ $(awk '/^Mapped:/ {{ print $2 }}' /proc/meminfo) -gt {whole} ]"),
    );
}

/// Reads the set that was read six times; bytes that came from the disk.
fn lost_of_active(vm: &Vm) -> u64 {
    let pgpgin = "awk '/^pgpgin/ { print $2 }' /proc/vmstat";
    let text = run(
        vm,
        &format!("before=$({pgpgin}); cat /mnt/active >/dev/null; echo $(($({pgpgin}) - before))"),
    );
    text.parse::<u64>().unwrap() << 10
}

/// Waits until QEMU has at most `to` bytes of memory; what it has then, or after a minute, and how long that took. The
/// kernel reports free memory every two seconds.
fn falls(vm: &Vm, to: u64) -> (u64, Duration) {
    let begun = Instant::now();
    loop {
        let resident = vm.resident().unwrap();
        if resident <= to || begun.elapsed() > PATIENCE {
            return (resident, begun.elapsed());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Not ignored: `make test` runs it.
#[test]
fn cache_that_a_host_asks_for_is_the_hosts_again() {
    gives_back("6.12");
}

#[test]
#[ignore = "a minute in a VM: make test-vms"]
fn a_guest_with_an_old_kernel_gives_back() {
    gives_back("6.1");
}

fn gives_back(kernel: &str) {
    retry_after_a_crash(|| {
        const ASKED: u64 = 400 * MIB;
        let vm = boot(1024, kernel);
        use_sets(&vm);
        start_agent(&vm);
        fill(&vm, 500);
        let mut host = Host::connect(&vm, 0);
        tells_what_is_cached(&mut host);
        let before = host.state();
        let (peak, begun) = (vm.resident().unwrap(), Instant::now());
        let done = host.reclaim(ASKED, 10_000);
        let answered = begun.elapsed();
        let at_once = vm.resident().unwrap();
        let (resident, after) = falls(&vm, peak - ASKED * 8 / 10);
        let back = peak.saturating_sub(resident);
        std::thread::sleep(Duration::from_secs(1));
        let state = host.state();
        let lost_mapped = before.mapped.saturating_sub(state.mapped);
        let lost_active = lost_of_active(&vm);
        let mib = |bytes: u64| bytes / MIB;
        println!(
            "kernel {}: asked for {} MiB, {} taken, answered after {answered:?}; QEMU had {} MiB, {} at the answer, {} after \
             {after:?} more: {} came back; of {SET} MiB each, {} of the mapped and {} of the active set were lost\n{before:?}\n{state:?}",
            vm.guest().kernel(),
            mib(ASKED),
            mib(done.bytes),
            mib(peak),
            mib(at_once),
            mib(resident),
            mib(back),
            mib(lost_mapped),
            mib(lost_active),
        );
        assert_eq!(before.reporting_order, Some(9));
        assert!(done.bytes >= ASKED * 9 / 10, "{done:?}");
        assert!(10 * back >= 8 * ASKED, "{} MiB came back", mib(back));
        assert!(lost_mapped <= SET * MIB / 10, "{} MiB", mib(lost_mapped));
        assert!(lost_active <= SET * MIB / 10, "{} MiB", mib(lost_active));
        tells_its_tenants(&vm, &mut host);
        hostile(&vm, host);
    });
}

/// What the guest caches are mostly files of its disk, and their blocks are told, those of a sample.
fn tells_what_is_cached(host: &mut Host) {
    let cached = match host.ask(|id| Request::Cached { id, seed: 7 }) {
        Body::Cached(cached) => cached,
        other => panic!("expected what is cached, found {other:?}"),
    };
    let [disk] = cached.disks() else {
        panic!("expected one disk, found {cached:?}")
    };
    let (file, told) = (cached.file(), disk.bytes);
    let blocks = disk.blocks().count();
    let sampled = u64::try_from(blocks << cached.shift()).unwrap() * BLOCK;
    println!(
        "of {file} bytes of files {told} are told, by {blocks} blocks, which stand for {sampled}"
    );
    assert!(cached.is_whole() && told <= file * 11 / 10 && told >= file * 8 / 10);
    assert!(sampled.abs_diff(told) < told / 4);
}

/// A unit of the guest is told with its name, weight and pages.
fn tells_its_tenants(vm: &Vm, host: &mut Host) {
    const HELD: u64 = 32;
    run(
        vm,
        &format!(
            "cd /sys/fs/cgroup && echo '+memory +io' >cgroup.subtree_control && mkdir web.slice && echo 300 >web.slice/io.weight
             sh -c 'echo $$ >/sys/fs/cgroup/web.slice/cgroup.procs; dd if=/dev/zero of=/mnt/web bs=1M count={HELD}' 2>/dev/null"
        ),
    );
    let tenants = match host.ask(|id| Request::Tenants { id }) {
        Body::Tenants(tenants) => tenants,
        other => panic!("expected tenants, found {other:?}"),
    };
    println!("{tenants:?}");
    let web = tenants
        .list()
        .iter()
        .find(|of| of.name.as_str() == "web.slice");
    let web = web.expect("web.slice");
    assert_eq!(web.weight, 300);
    assert!(web.file.abs_diff(HELD * MIB) <= HELD * MIB / 8, "{web:?}");
}

/// A host that asks for everything and says nonsense does no harm.
fn hostile(vm: &Vm, mut host: Host) {
    host.send(&vec![b'x'; 100_000]);
    host.send(b"\nnonsense\n{\"request\":\"shrink\",\"id\":77}\n");
    let answer = host.answer();
    let is_error = matches!(answer.body, Body::Error(_));
    assert!(answer.id == 77 && is_error, "{answer:?}");
    let before = host.state();
    let taken: u64 = (0..20).map(|_| host.reclaim(u64::MAX, 2000).bytes).sum();
    std::thread::sleep(Duration::from_secs(1));
    let after = host.state();
    println!(
        "a host that asks for everything: {} MiB taken\n{before:?}\n{after:?}",
        taken / MIB
    );
    assert_eq!(after.oom_kills, before.oom_kills);
    let lost = before.mapped.saturating_sub(after.mapped);
    assert!(lost <= SET * MIB / 10, "{} MiB of mapped files", lost / MIB);
    run(vm, "kill $(cat /run/guest.pid)");
    comes(vm, "! [ -d /proc/$(cat /run/guest.pid) ]");
    assert!(run(vm, "cat /run/guest.log").contains("stopping"));
}

#[test]
#[ignore = "a minute in a VM: make test-vms"]
fn a_host_that_reads_no_answers_does_not_silence_the_guest() {
    retry_after_a_crash(|| {
        let vm = boot(512, "6.12");
        start_agent(&vm);
        let mut host = Host::connect(&vm, 0);
        let before = host.state();
        for id in 1000..5000 {
            let request = encode(&Request::State { id });
            if host.stream.write_all(&request).is_err() {
                break;
            }
        }
        drop(host);
        let state = next_host(&vm);
        assert!(state.uptime_ms >= before.uptime_ms);
    });
}

/// The state that the next host is told. QEMU may go on holding back what the guest writes when a host goes that has not
/// read it (7.2: the port stays throttled), and until that host goes, too.
fn next_host(vm: &Vm) -> State {
    for attempt in 1..=4 {
        let mut next = Host::connect(vm, attempt * 10_000);
        let patience = Some(Duration::from_secs(10));
        next.stream.set_read_timeout(patience).unwrap();
        if let Ok(state) = catch_unwind(AssertUnwindSafe(|| next.state())) {
            println!("host {attempt} after the one that read nothing has an answer");
            return state;
        }
    }
    let why = "cat /run/guest.log; cat /sys/kernel/debug/virtio-ports/*";
    panic!("the next hosts have no answer: {}", run(vm, why));
}

/// What a guest with nothing to do keeps, of what it had.
#[test]
#[ignore = "minutes in a VM: make test-vms"]
fn a_guest_with_nothing_to_do_keeps_little() {
    retry_after_a_crash(|| {
        let vm = boot(1536, "6.12");
        use_sets(&vm);
        start_agent(&vm);
        fill(&vm, 1000);
        // Read once more: all of it was used twice.
        run(&vm, "for i in 1 2; do cat /mnt/cold >/dev/null; done");
        let peak = vm.resident().unwrap();
        let mut host = Host::connect(&vm, 0);
        let busy = host.state();
        run(&vm, "kill $(cat /run/fio.pid)");
        // Its host is in need, and takes what is not worth having.
        let mut log = Vec::new();
        let begun = Instant::now();
        let resident = loop {
            let state = host.state();
            let spare = state.file.saturating_sub(state.worth);
            let taken = host.reclaim(spare.min(64 * MIB), 5000).bytes;
            let resident = vm.resident().unwrap();
            log.push((
                begun.elapsed().as_secs(),
                state.worth / MIB,
                taken / MIB,
                resident / MIB,
            ));
            let is_over = 10 * resident <= 4 * peak || begun.elapsed() > Duration::from_secs(300);
            if is_over {
                break resident;
            }
            std::thread::sleep(Duration::from_secs(3));
        };
        println!(
            "QEMU had {} MiB, {} after {:?}: {} %; seconds, worth, taken and resident in MiB: {log:?}\n{busy:?}\n{:?}",
            peak / MIB,
            resident / MIB,
            begun.elapsed(),
            100 * resident / peak,
            host.state(),
        );
        assert!(10 * resident <= 4 * peak);
    });
}

/// A working set that is read all the time is left alone, whatever a host asks for.
#[test]
#[ignore = "a minute in a VM: make test-vms"]
fn a_set_that_is_read_all_the_time_is_kept() {
    retry_after_a_crash(|| {
        let vm = boot(1024, "6.12");
        start_agent(&vm);
        fill(&vm, 300);
        run(
            &vm,
            "dd if=/dev/zero of=/mnt/set bs=1M count=200 2>/dev/null; sync
             while true; do cat /mnt/set >/dev/null; sleep 0.1; done >/dev/null 2>&1 & echo $! >/run/reader.pid
             sleep 10",
        );
        let mut host = Host::connect(&vm, 0);
        let before = host.state();
        let begun = Instant::now();
        let mut taken = 0;
        while begun.elapsed() < Duration::from_secs(30) {
            taken += host.reclaim(64 * MIB, 2000).bytes;
            std::thread::sleep(Duration::from_millis(500));
        }
        let after = host.state();
        let refaulted = (after.refaults - before.refaults) * 4096;
        println!(
            "{} MiB taken, {} MiB read again\n{before:?}\n{after:?}",
            taken / MIB,
            refaulted / MIB
        );
        assert!(
            taken >= 200 * MIB,
            "{} MiB taken of what is not used",
            taken / MIB
        );
        assert!(refaulted <= 50 * MIB, "{} MiB read again", refaulted / MIB);
    });
}

/// Two cgroups with 200 MiB of cache each, of which one is protected.
const CGROUPS: &str = r#"
cd /sys/fs/cgroup
for name in kept open; do
    mkdir -p $name
    sh -c 'echo $$ >$0/cgroup.procs; exec dd if=/dev/zero of=/mnt/$0 bs=1M count=200 2>/dev/null' $name
done
echo 220M >kept/memory.low
sync
"#;

/// Bytes of files of a cgroup.
fn files_of(vm: &Vm, cgroup: &str) -> u64 {
    let stat = format!("awk '/^file / {{ print $2 }}' /sys/fs/cgroup/{cgroup}/memory.stat");
    run(vm, &stat).parse().unwrap()
}

#[test]
#[ignore = "minutes in a VM: make test-vms"]
fn what_is_protected_is_kept_whichever_lru_runs() {
    for multi_gen in [true, false] {
        retry_after_a_crash(|| {
            let vm = boot(1024, "6.12");
            if !multi_gen {
                run(&vm, "echo 0 >/sys/kernel/mm/lru_gen/enabled");
            }
            run(&vm, CGROUPS);
            start_agent(&vm);
            let mut host = Host::connect(&vm, 0);
            let before = files_of(&vm, "kept");
            // As much as both have, in one request and in several.
            let taken: u64 = (0..4).map(|_| host.reclaim(100 * MIB, 5000).bytes).sum();
            let (kept, open) = (files_of(&vm, "kept"), files_of(&vm, "open"));
            println!(
                "multi-gen LRU {multi_gen}: {} MiB taken; of the protected cgroup {} of {} MiB are left, of the other {}",
                taken / MIB,
                kept / MIB,
                before / MIB,
                open / MIB
            );
            assert!(
                10 * kept >= 9 * before,
                "{} of {}",
                kept / MIB,
                before / MIB
            );
            assert!(open <= 20 * MIB, "{}", open / MIB);
        });
    }
}

/// A cgroup that reads its set all the time, and one that has read its own once and rests.
const READER_AND_REST: &str = r#"
justitia run >/run/agent.log 2>&1 &
for i in $(seq 300); do justitia status >/dev/null 2>&1 && break; sleep 0.2; done
cd /sys/fs/cgroup
mkdir -p kept open
for name in kept open; do dd if=/dev/zero of=/mnt/$name bs=1M count=150 2>/dev/null; done
sync; echo 1 >/proc/sys/vm/drop_caches
sh -c 'echo $$ >kept/cgroup.procs; while true; do cat /mnt/kept >/dev/null; sleep 0.5; done' >/dev/null 2>&1 &
sh -c 'echo $$ >open/cgroup.procs; cat /mnt/open >/dev/null; exec sleep 1000' >/dev/null 2>&1 &
sleep 45
"#;

#[test]
#[ignore = "minutes in a VM: make test-vms"]
fn beside_the_agent_what_its_tenants_do_not_use_is_given() {
    retry_after_a_crash(|| {
        let vm = boot(1024, "6.12");
        run(&vm, READER_AND_REST);
        start_agent(&vm);
        let mut host = Host::connect(&vm, 0);
        let state = host.state();
        let before = ["kept", "open"].map(|name| files_of(&vm, name) / MIB);
        let taken: u64 = (0..4).map(|_| host.reclaim(100 * MIB, 5000).bytes).sum();
        let after = ["kept", "open"].map(|name| files_of(&vm, name) / MIB);
        println!(
            "{} MiB taken; the reader has {} of {} MiB, the one that rests {} of {}\n{state:?}\n{}",
            taken / MIB,
            after[0],
            before[0],
            after[1],
            before[1],
            run(&vm, "justitia status")
        );
        assert!(10 * after[0] >= 9 * before[0]);
        assert!(10 * after[1] <= 2 * before[1]);
    });
}
