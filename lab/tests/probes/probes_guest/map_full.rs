//! What finds a map full is counted elsewhere and reported, never dropped in silence.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use justitia_kernel::probes::{Counters, IoProbes, Limits, ProbeSample};

use super::io_calls::{SIZE, make};
use super::{Tenant, drop_caches};

/// More than there is room for.
const TENANTS: u32 = 24;

pub(super) fn compare(directory: &Path) {
    make(&directory.join("source"), SIZE);
    make(&directory.join("target"), SIZE);
    let limits = Limits {
        max_cgroups: 16,
        max_inflight: 64,
        max_shared_files: 64,
        ..Limits::default()
    };
    let mut probes = cgroups_are_counted_while_the_probes_attach(directory, &limits);
    probes.trace_shared_inodes(true).unwrap();
    let before = probes.sample().unwrap();

    let tenants = cgroups_without_room(&mut probes, &before);
    shared_files_without_room(&mut probes, directory, &tenants);
    drop(probes);
    requests_without_room(directory, &limits, &tenants[2]);
}

fn cgroups_without_room(probes: &mut IoProbes, before: &ProbeSample) -> Vec<Tenant> {
    let tenants: Vec<_> = (0..TENANTS)
        .map(|number| {
            let tenant = Tenant::new(&format!("room {number}"));
            assert_eq!(
                tenant.case("path/pread")["read"],
                u64::try_from(SIZE).unwrap()
            );
            tenant
        })
        .collect();
    let sample = probes.sample().unwrap();
    let apart: u64 = tenants
        .iter()
        .filter_map(|tenant| Some(sample.cgroups.get(&tenant.id)?.read.buffered.bytes))
        .sum();
    let together = sample.overflow.read.buffered.bytes;
    let size = u64::try_from(SIZE).unwrap();
    println!(
        "cgroups: {apart} bytes apart, {together} together, no room {} times",
        sample.map_full
    );
    assert!(together > 0 && apart > 0);
    assert!(sample.map_full >= sample.overflow.read.buffered.operations);
    assert_eq!(sample.map_busy, 0);
    assert_eq!(apart + together, size * u64::from(TENANTS));
    assert_eq!(sample.dropped_events, before.dropped_events);
    tenants
}

/// Files used by several. Their pages are the first tenant's.
fn shared_files_without_room(probes: &mut IoProbes, directory: &Path, tenants: &[Tenant]) {
    for number in 0..80 {
        make(
            &directory.join(format!("shared-{number}")),
            super::io_calls::MIB,
        );
    }
    drop_caches();
    let read_all = |tenant: &Tenant| {
        let script = format!("cat {}/shared-* >/dev/null", directory.display());
        tenant.run(Command::new("sh").args(["-c", &script]));
    };
    read_all(&tenants[0]);
    read_all(&tenants[1]);
    let kept = probes.shared_inodes(1000).unwrap().len();
    let lost = probes.dropped_uses().unwrap();
    println!("shared files: {kept} kept, {lost} gave way");
    assert!(kept <= 64 && lost > 0);
    assert!(u64::try_from(kept).unwrap() + lost >= 80);
    probes.trace_shared_inodes(false).unwrap();
    assert_eq!(probes.dropped_uses().unwrap(), lost);
    probes.trace_shared_inodes(true).unwrap();
    assert_eq!(probes.dropped_uses().unwrap(), lost);
}

/// Asynchronous requests, in flight by the hundred because io.max lets few of them go.
fn requests_without_room(directory: &Path, limits: &Limits, tenant: &Tenant) {
    let device = std::fs::metadata(directory.join("target")).unwrap().dev();
    let limit = format!(
        "{}:{} riops=400",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    std::fs::write(tenant.path.join("io.max"), limit).unwrap();
    let mut probes = IoProbes::attach(limits).unwrap();
    let output = tenant.run(
        Command::new("fio")
            .args(["--name=x", "--rw=randread", "--bs=4k", "--size=4m"])
            .args(["--ioengine=libaio", "--direct=1", "--iodepth=256"])
            .args([
                "--iodepth_batch_submit=256",
                "--iodepth_batch_complete_min=256",
            ])
            .args(["--output-format=json", "--allow_file_create=0"])
            .arg(format!("--filename={}", directory.join("target").display())),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let truth = report["jobs"][0]["read"]["total_ios"].as_u64().unwrap();
    // What the kernel skipped is asked for once a second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let sample = probes.sample().unwrap();
    let seen = sample.cgroups[&tenant.id].read.direct.operations;
    println!(
        "requests: {seen} of {truth} counted, {} missed",
        sample.dropped_events
    );
    assert!(seen < truth, "{seen} of {truth}");
    // Those held back by io.max are missed as well.
    assert!(seen + sample.dropped_events >= truth, "{sample:?}");
}

const PERIODIC: &str = "/proc/sys/vm/dirty_writeback_centisecs";

/// Attaching the probes takes a while. A tenant that reads meanwhile has counters of its own, and so has one whose
/// throttled writeback is all that is counted.
fn cgroups_are_counted_while_the_probes_attach(directory: &Path, limits: &Limits) -> IoProbes {
    let (reader, writer) = (Tenant::new("early reader"), Tenant::new("early writer"));
    let written = directory.join("early");
    // Nothing is written back before it is asked for.
    std::fs::write(PERIODIC, "0").unwrap();
    let script = format!("head -c 4m /dev/zero >{}", written.display());
    writer.run(Command::new("sh").args(["-c", &script]));
    let device = std::fs::metadata(&written).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let limit = format!("{major}:{minor} wbps=2097152");
    std::fs::write(writer.path.join("io.max"), limit).unwrap();
    let mut reading = Command::new("sh")
        .arg("-c")
        .arg("echo 0 >$0/cgroup.procs && while :; do cat $1 >/dev/null; done")
        .args([&reader.path, &directory.join("source")])
        .spawn()
        .unwrap();

    let mut probes = IoProbes::attach(limits).unwrap();
    rustix::fs::sync();
    let sample = probes.sample().unwrap();
    std::fs::write(PERIODIC, "500").unwrap();
    reading.kill().unwrap();
    reading.wait().unwrap();
    let counters = |tenant: &Tenant| sample.cgroups.get(&tenant.id).copied().unwrap_or_default();
    let (read, held) = (
        counters(&reader).read.buffered,
        counters(&writer).throttled_bios,
    );
    println!(
        "at first: {} reads, {held} requests held back",
        read.operations
    );
    assert!(read.operations > 0 && held > 0, "{sample:?}");
    assert_eq!(sample.overflow, Counters::default(), "{sample:?}");
    assert_eq!((sample.map_full, sample.map_busy), (0, 0));
    std::fs::remove_file(&written).unwrap();
    probes
}
