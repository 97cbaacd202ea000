//! What a guest loses by offering what is never read again: with the agent and without, in turn.

use justitia_lab::vm::Vm;
use serde_json::Value;

use super::{SLOW, machines, median};
use crate::guest_host::{Host, end_agent, run, start_agent, status};
use crate::retry::retry_after_a_crash;

/// Pairs of parts, with the agent and without.
const PAIRS: u64 = 3;

/// MiB that one part reads.
const PART: u64 = 2048;
/// MiB that are read at a time until the agent has learnt.
const STEP: u64 = 512;
/// Steps that it may take for that.
const MAX_STEPS: u64 = 20;

/// A disk that was never written, read from its beginning on, each block once.
struct Stream<'a> {
    vm: &'a Vm,
    at: u64,
}

impl Stream<'_> {
    /// Reads on; returns MiB a second.
    fn read(&mut self, mib: u64) -> f64 {
        let script = format!(
            ". /run/lib; s=$(cut -d' ' -f1 /proc/uptime)
            dd if=$(disk stream) of=/dev/null bs=1M skip={} count={mib} 2>/dev/null
            echo $s $(cut -d' ' -f1 /proc/uptime)",
            self.at
        );
        self.at += mib;
        let text = run(self.vm, &script);
        let (begun, ended) = text.split_once(' ').unwrap();
        let seconds = ended.parse::<f64>().unwrap() - begun.parse::<f64>().unwrap();
        f64::from(u32::try_from(mib).unwrap()) / seconds
    }
}

/// A file system of 4 GiB at the beginning of that disk.
const FILES: &str = "
. /run/lib
mkfs.ext4 -q -F -E nodiscard $(disk stream) 4G >&2
mkdir -p /srv && mount $(disk stream) /srv
justitia-load fileserver --dir /srv/files --files 4000 --phase prepare >/dev/null; sync
";

/// Operations a second of Filebench's fileserver, on a file set that is larger than the page cache.
fn serve(vm: &Vm, seconds: u64) -> f64 {
    let text = run(
        vm,
        &format!(
            "justitia-load fileserver --dir /srv/files --files 4000 --threads 8 --ramp 2 --duration {seconds} | tail -n 1"
        ),
    );
    let last: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(last["errors"], 0, "{last}");
    last["operations"].as_f64().unwrap() / last["seconds"].as_f64().unwrap()
}

/// What was done with the agent, while it learns and after that, and without.
#[derive(Default)]
struct Speeds {
    learning: Vec<f64>,
    with: Vec<f64>,
    without: Vec<f64>,
}

impl Speeds {
    fn print(&self, what: &str) {
        println!(
            "{what}: {:?} learning, {:?} with, {:?} without",
            self.learning, self.with, self.without
        );
        let ratio = |of: &[f64]| median(of.iter().zip(&self.without).map(|(a, b)| a / b).collect());
        println!("{what}, while it learns: {}", ratio(&self.learning));
        println!("{what}, then: {}", ratio(&self.with));
    }
}

/// A stream: its blocks are never read again.
fn stream(vm: &Vm) -> Speeds {
    let mut stream = Stream { vm, at: 5000 };
    let mut speeds = Speeds::default();
    for _ in 0..PAIRS {
        start_agent(vm);
        speeds.learning.push(stream.read(STEP));
        let mut steps = 1;
        while status(vm)["detached"] != true {
            assert!(steps < MAX_STEPS, "{:#}", status(vm));
            stream.read(STEP);
            steps += 1;
        }
        println!("{} MiB until it has learnt; {}", steps * STEP, status(vm));
        speeds.with.push(stream.read(PART));
        println!("{}", status(vm));
        end_agent(vm);
        speeds.without.push(stream.read(PART));
    }
    speeds
}

fn fileserver(vm: &Vm) -> Speeds {
    run(vm, FILES);
    serve(vm, 10);
    let mut speeds = Speeds::default();
    for _ in 0..PAIRS {
        start_agent(vm);
        speeds.learning.push(serve(vm, 15));
        speeds.with.push(serve(vm, 15));
        println!("{}", status(vm));
        end_agent(vm);
        speeds.without.push(serve(vm, 15));
    }
    run(vm, "umount /srv");
    speeds
}

/// Runs it, and prints what came of it at the host.
fn counted(host: &Host, run: impl FnOnce() -> Speeds) -> Speeds {
    let (before, puts) = (host.lookups(), host.verdict("accepted"));
    let speeds = run();
    let after = host.lookups();
    println!(
        "{} blocks looked up, {} hit, {} put",
        after.0 - before.0,
        after.1 - before.1,
        host.verdict("accepted") - puts
    );
    println!("{}", host.stats()["ports"]);
    speeds
}

/// A file server beside a disk, where hits save much.
#[test]
#[ignore = "minutes in a VM, and root: make test-guest"]
fn a_file_server_on_a_slow_disk() {
    retry_after_a_crash(|| {
        let (host, vm) = machines(Some(SLOW));
        let served = counted(&host, || fileserver(&vm));
        served.print("fileserver on a slow disk");
        println!("kernel {}, {:?}", vm.guest().kernel(), vm.accelerator());
        let (_, hits) = host.lookups();
        assert!(hits > 10_000, "{hits}");
    });
}

#[test]
#[ignore = "minutes in a VM: make test-guest"]
fn what_is_never_read_again_costs_little() {
    retry_after_a_crash(|| {
        let (host, vm) = machines(None);
        let streamed = stream(&vm);
        println!("{}", host.stats()["ports"]);
        let served = counted(&host, || fileserver(&vm));
        streamed.print("stream");
        served.print("fileserver");
        println!("kernel {}, {:?}", vm.guest().kernel(), vm.accelerator());
        // Far below what was measured: this fails when it learns nothing.
        let total = |of: &[f64]| of.iter().sum::<f64>();
        assert!(total(&streamed.with) > 0.8 * total(&streamed.without));
    });
}
