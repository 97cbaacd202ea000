//! Bytes and calls on every path.

use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use justitia_kernel::probes::{Counters, Io};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use rustix::pipe::{SpliceFlags, splice};

use super::io_calls::{Buffer, MIB, PIECE, SIZE, Tally, make, open};
use super::{Tenant, counted, drop_caches};

const CASES: [&str; 20] = [
    "read",
    "read cold",
    "pread",
    "pread direct",
    "readv",
    "preadv2",
    "preadv direct",
    "write",
    "pwrite",
    "pwrite direct",
    "writev",
    "pwritev2",
    "pwritev direct",
    "splice to pipe",
    "splice to pipe cold",
    "splice to file",
    "sendfile to socket",
    "sendfile to file",
    "copy_file_range",
    "what does not count",
];

/// fio's engines, which do what this program has no calls for.
const FIO: [(&str, &str); 7] = [
    ("io_uring", "--iodepth=8"),
    ("io_uring", "--iodepth=8 --direct=1 --fixedbufs"),
    ("io_uring", "--iodepth=4 --nonvectored=0 --force_async=2"),
    ("io_uring", "--iodepth=8 --direct=1 --sqthread_poll=1"),
    ("libaio", "--iodepth=8"),
    ("libaio", "--iodepth=8 --direct=1"),
    ("libaio", "--iodepth=16 --direct=1 --numjobs=2"),
];

pub(super) fn compare(directory: &Path) {
    for name in ["source", "target"] {
        make(&directory.join(name), SIZE);
    }
    let mut probes = super::open();
    let mut wrong = Vec::new();
    for case in CASES {
        if case.ends_with("cold") {
            drop_caches();
        }
        let tenant = Tenant::new(&format!("path {case}"));
        let truth = tenant.case(&format!("path/{case}"));
        let counters = counted(&mut probes, &tenant);
        let seen = numbers(&counters);
        // A splice takes steps whose number is the kernel's affair.
        let steps = case.contains("splice") || case.contains("sendfile") || case.contains("copy");
        check(case, &truth, &seen, steps, &mut wrong);
    }
    for (engine, options) in FIO {
        let tenant = Tenant::new(&format!("fio {engine}"));
        let truth = fio(&tenant, directory, engine, options);
        let seen = numbers(&counted(&mut probes, &tenant));
        check(
            &format!("{engine} {options}"),
            &truth,
            &seen,
            false,
            &mut wrong,
        );
    }
    faults(directory, &mut probes, &mut wrong);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(probes.sample().unwrap().dropped_events, 0);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Everything but zeroes.
fn numbers(counters: &Counters) -> HashMap<String, u64> {
    let kinds: [(&str, Io); 4] = [
        ("read", counters.read.buffered),
        ("read-direct", counters.read.direct),
        ("written", counters.written.buffered),
        ("written-direct", counters.written.direct),
    ];
    let both = kinds.into_iter().flat_map(|(name, io)| {
        [
            (name.to_owned(), io.bytes),
            (format!("{name}-operations"), io.operations),
        ]
    });
    both.filter(|(_, value)| *value > 0).collect()
}

fn check(
    case: &str,
    truth: &HashMap<String, u64>,
    seen: &HashMap<String, u64>,
    steps: bool,
    wrong: &mut Vec<String>,
) {
    let plain = |map: &HashMap<String, u64>| {
        let mut plain: Vec<_> = map
            .iter()
            .filter(|(name, value)| **value > 0 && !(steps && name.ends_with("operations")))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        plain.sort();
        plain.join(" ")
    };
    let (truth, seen) = (plain(truth), plain(seen));
    println!("{case}: {seen}");
    if truth != seen {
        wrong.push(format!("{case}: truth {truth}, counted {seen}"));
    }
}

/// Runs in the tenant's cgroup.
pub(super) fn run(case: &str, directory: &Path) {
    let direct = case.ends_with("direct");
    let flags = if direct {
        OFlags::DIRECT
    } else {
        OFlags::empty()
    };
    let path = |name: &str| directory.join(name);
    let source = || open(&path("source"), OFlags::RDONLY | flags);
    let target = || open(&path("target"), OFlags::WRONLY | flags);
    let plain = case.trim_end_matches(" direct").trim_end_matches(" cold");
    let mut read = Tally::default();
    let mut written = Tally::default();
    match plain {
        "read" | "pread" | "readv" | "preadv" | "preadv2" => reads(plain, &source(), &mut read),
        "write" | "pwrite" | "writev" | "pwritev" | "pwritev2" => {
            writes(plain, &target(), &mut written);
        }
        "splice to pipe" => splice_out(&source(), &mut read),
        "splice to file" => splice_in(&target(), &mut written),
        "sendfile to socket" => send(&source(), &mut read),
        "sendfile to file" => {
            let (from, to) = (source(), target());
            while read.bytes < SIZE {
                let moved = rustix::fs::sendfile(&to, &from, None, MIB).unwrap();
                read.add(moved);
                written.add(moved);
            }
        }
        "copy_file_range" => {
            let (from, to) = (source(), target());
            while read.bytes < SIZE {
                let left = SIZE - read.bytes;
                let moved =
                    rustix::fs::copy_file_range(&from, None, &to, None, left.min(MIB)).unwrap();
                read.add(moved);
                written.add(moved);
            }
            // Shared blocks: nothing was read or written.
            if directory.to_string_lossy().contains("xfs") {
                (read, written) = (Tally::default(), Tally::default());
            }
        }
        "what does not count" => noise(directory),
        other => panic!("no path {other}"),
    }
    let [read_as, written_as] = if direct {
        ["read-direct", "written-direct"]
    } else {
        ["read", "written"]
    };
    println!(
        "\ntruth {read_as}={} {read_as}-operations={} {written_as}={} {written_as}-operations={}",
        read.bytes, read.operations, written.bytes, written.operations
    );
}

fn reads(call: &str, mut file: &File, read: &mut Tally) {
    let mut buffer = Buffer::new(PIECE);
    while read.bytes < SIZE {
        let at = u64::try_from(read.bytes).unwrap();
        let piece = buffer.get(PIECE);
        let moved = match call {
            "read" => file.read(piece).unwrap(),
            "pread" => file.read_at(piece, at).unwrap(),
            _ => {
                let (a, b) = piece.split_at_mut(PIECE / 2);
                let mut both = [IoSliceMut::new(a), IoSliceMut::new(b)];
                match call {
                    "readv" => rustix::io::readv(file, &mut both).unwrap(),
                    "preadv" => rustix::io::preadv(file, &mut both, at).unwrap(),
                    _ => {
                        let flags = ReadWriteFlags::empty();
                        rustix::io::preadv2(file, &mut both, at, flags).unwrap()
                    }
                }
            }
        };
        read.add(moved);
    }
}

fn writes(call: &str, mut file: &File, written: &mut Tally) {
    let mut buffer = Buffer::new(PIECE);
    while written.bytes < SIZE {
        let at = u64::try_from(written.bytes).unwrap();
        let piece = &*buffer.get(PIECE);
        let (a, b) = piece.split_at(PIECE / 2);
        let both = [IoSlice::new(a), IoSlice::new(b)];
        let moved = match call {
            "write" => file.write(piece).unwrap(),
            "pwrite" => file.write_at(piece, at).unwrap(),
            "writev" => rustix::io::writev(file, &both).unwrap(),
            "pwritev" => rustix::io::pwritev(file, &both, at).unwrap(),
            _ => rustix::io::pwritev2(file, &both, at, ReadWriteFlags::empty()).unwrap(),
        };
        written.add(moved);
    }
}

fn splice_out(file: &File, read: &mut Tally) {
    let (out, into) = rustix::pipe::pipe().unwrap();
    let drain =
        std::thread::spawn(move || std::io::copy(&mut File::from(out), &mut std::io::sink()));
    while read.bytes < SIZE {
        let moved = splice(file, None, &into, None, PIECE, SpliceFlags::empty()).unwrap();
        read.add(moved);
    }
    drop(into);
    drain.join().unwrap().unwrap();
}

fn splice_in(file: &File, written: &mut Tally) {
    let (out, into) = rustix::pipe::pipe().unwrap();
    let fill = std::thread::spawn(move || {
        let mut into = File::from(into);
        for _ in 0..SIZE / PIECE {
            into.write_all(&[7; PIECE]).unwrap();
        }
    });
    while written.bytes < SIZE {
        let moved = splice(&out, None, file, None, PIECE, SpliceFlags::empty()).unwrap();
        written.add(moved);
    }
    fill.join().unwrap();
}

fn send(file: &File, read: &mut Tally) {
    let (to, mut from) = UnixStream::pair().unwrap();
    let drain = std::thread::spawn(move || std::io::copy(&mut from, &mut std::io::sink()));
    while read.bytes < SIZE {
        read.add(rustix::fs::sendfile(&to, file, None, MIB).unwrap());
    }
    drop(to);
    drain.join().unwrap().unwrap();
}

/// Pipes, devices, kernel files, memory's filesystem, directories, and what fails or ends.
fn noise(directory: &Path) {
    let mut buffer = vec![0; PIECE];
    let mut zero = File::open("/dev/zero").unwrap();
    let mut null = open(Path::new("/dev/null"), OFlags::WRONLY);
    let mut disk = File::open("/dev/vda").unwrap();
    for _ in 0..64 {
        zero.read_exact(&mut buffer).unwrap();
        null.write_all(&buffer).unwrap();
        disk.read_exact(&mut buffer).unwrap();
        std::fs::read("/proc/self/stat").unwrap();
        std::fs::read("/sys/fs/cgroup/memory.stat").unwrap();
    }
    std::fs::write("/run/noise", &buffer).unwrap();
    std::fs::read("/run/noise").unwrap();
    let (out, into) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&into, b"pipe").unwrap();
    rustix::io::read(&out, &mut buffer[..]).unwrap();
    let file = open(&directory.join("source"), OFlags::RDONLY);
    let end = u64::try_from(SIZE).unwrap();
    assert_eq!(file.read_at(&mut buffer, end).unwrap(), 0);
    assert!(file.write_at(&buffer, 0).is_err());
}

/// Half reads, half writes by one of fio's engines; what its report says.
fn fio(tenant: &Tenant, directory: &Path, engine: &str, options: &str) -> HashMap<String, u64> {
    let output = tenant.run(
        Command::new("fio")
            .args([
                "--name=x",
                "--rw=randrw",
                "--bs=16k",
                "--size=4m",
                "--output-format=json",
            ])
            .args(["--fallocate=none", "--overwrite=1", "--allow_file_create=0"])
            .arg(format!("--filename={}", directory.join("target").display()))
            .arg(format!("--ioengine={engine}"))
            .args(options.split(' ')),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let start = text.find('{').unwrap();
    let report: serde_json::Value = serde_json::from_str(&text[start..]).unwrap();
    let suffix = if options.contains("direct=1") {
        "-direct"
    } else {
        ""
    };
    let mut truth = HashMap::new();
    for job in report["jobs"].as_array().unwrap() {
        for (theirs, ours) in [("read", "read"), ("write", "written")] {
            let side = &job[theirs];
            let name = format!("{ours}{suffix}");
            *truth.entry(format!("{name}-operations")).or_default() +=
                side["total_ios"].as_u64().unwrap();
            *truth.entry(name).or_default() += side["io_bytes"].as_u64().unwrap();
        }
    }
    assert!(truth.values().all(|value| *value > 0), "{report}");
    truth
}

/// A mapped file, cold: each major fault that the kernel accounts to the process is counted.
fn faults(
    directory: &Path,
    probes: &mut justitia_kernel::probes::IoProbes,
    wrong: &mut Vec<String>,
) {
    drop_caches();
    let tenant = Tenant::new("path mapped");
    let output = tenant.run(
        Command::new("fio")
            .args([
                "--name=x",
                "--rw=randread",
                "--bs=4k",
                "--size=4m",
                "--ioengine=mmap",
            ])
            .args(["--output-format=json", "--allow_file_create=0"])
            .arg(format!("--filename={}", directory.join("source").display())),
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    let truth = report["jobs"][0]["majf"].as_u64().unwrap();
    let counters = counted(probes, &tenant);
    println!("mapped: {counters:?}, major faults in truth {truth}");
    if counters.major_faults != truth || truth == 0 || counters.faults < truth {
        wrong.push(format!(
            "mapped: truth {truth} major faults, counted {counters:?}"
        ));
    }
    if !numbers(&counters).is_empty() {
        wrong.push(format!("mapped: counted as reads: {counters:?}"));
    }
}
