//! The binary itself on real files: the mix of operations, the counters against the truth, the
//! balance of files, a full file system, the barrier and the signals.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn command(personality: &str, directory: &Path, options: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_justitia-load"));
    command
        .arg(personality)
        .arg("--dir")
        .arg(directory)
        .args(options.split_whitespace());
    command
}

fn lines(output: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn events<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|l| l["event"] == event).collect()
}

/// Runs to the end, without errors, and returns the lines.
fn run(personality: &str, directory: &Path, options: &str) -> Vec<Value> {
    let output = command(personality, directory, options).output().unwrap();
    assert!(
        output.status.success(),
        "{personality} {options}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    lines(&output)
}

fn last(lines: &[Value]) -> &Value {
    let last = lines.last().unwrap();
    assert_eq!(last["event"], "final");
    last
}

fn files_below(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.insert(path);
        }
    }
    found
}

/// Counts per loop must be those of the definition, up to the loops that the end cut off.
#[test]
fn the_mix_of_operations_is_that_of_the_definition() {
    type Mix = &'static [(&'static str, u64)];
    let cases: [(&str, &str, u64, Mix); 5] = [
        (
            "fileserver",
            "--files 60 --mean-size 8k --threads 3",
            3,
            &[
                ("create", 1),
                ("write_whole", 1),
                ("close", 3),
                ("open", 2),
                ("append", 1),
                ("read_whole", 1),
                ("delete", 1),
                ("stat", 1),
            ],
        ),
        (
            "webserver",
            "--files 60 --mean-size 4k --threads 4",
            4,
            &[
                ("open", 10),
                ("read_whole", 10),
                ("close", 10),
                ("append_log", 1),
            ],
        ),
        (
            "varmail",
            "--files 60 --mean-size 4k --threads 2",
            2,
            &[
                ("delete", 1),
                ("create", 1),
                ("append", 2),
                ("fsync", 2),
                ("close", 3),
                ("open", 2),
                ("read_whole", 2),
            ],
        ),
        (
            "webproxy",
            "--files 60 --mean-size 4k --threads 4",
            4,
            &[
                ("delete", 1),
                ("create", 1),
                ("append", 1),
                ("close", 6),
                ("open", 5),
                ("read_whole", 5),
            ],
        ),
        (
            "metadata",
            "--files 60 --threads 2 --replace-every 0.001",
            2,
            &[
                ("create", 1),
                ("append", 1),
                ("fsync", 1),
                ("close", 1),
                ("rename", 1),
                ("delete", 1),
                ("mkdir", 1),
                ("rmdir", 1),
            ],
        ),
    ];
    for (personality, options, threads, mix) in cases {
        let directory = tempfile::tempdir().unwrap();
        let lines = run(
            personality,
            directory.path(),
            &format!("{options} --duration 0.5 --interval 0.1"),
        );
        let last = last(&lines);
        let loops = last["loops"].as_u64().unwrap();
        assert!(loops > 0, "{personality}: {loops} loops");
        let by = last["by_operation"].as_object().unwrap();
        assert_eq!(by.len(), mix.len(), "{personality}: {:?}", by.keys());
        let mut sum = 0;
        for (name, per_loop) in mix {
            let count = by[*name]["count"].as_u64().unwrap();
            sum += count;
            let range = loops * per_loop..=(loops + threads) * per_loop;
            assert!(
                range.contains(&count),
                "{personality} {name}: {count}, {loops} loops"
            );
            let histogram = by[*name]["histogram_us"].as_array().unwrap();
            let counted: u64 = histogram.iter().map(|b| b[1].as_u64().unwrap()).sum();
            assert_eq!(counted, count, "{personality} {name}");
        }
        // Each worker may have been in one when the totals were read.
        let operations = last["operations"].as_u64().unwrap();
        assert!(operations <= sum, "{operations} {sum}");
        assert!(sum - operations <= 2 * threads, "{operations} {sum}");
    }
}

#[test]
fn intervals_add_up_to_the_totals() {
    let directory = tempfile::tempdir().unwrap();
    let lines = run(
        "fileserver",
        directory.path(),
        "--files 60 --mean-size 8k --threads 2 --duration 1 --interval 0.1",
    );
    let intervals = events(&lines, "interval");
    // A machine with other things to do skips some.
    assert!((2..=12).contains(&intervals.len()), "{}", intervals.len());
    let last = last(&lines);
    for key in ["operations", "read_bytes", "written_bytes"] {
        let sum: u64 = intervals.iter().map(|l| l[key].as_u64().unwrap()).sum();
        let total = last[key].as_u64().unwrap();
        assert_eq!(sum, total, "{key}");
    }
    let seconds = last["seconds"].as_f64().unwrap();
    assert!((1.0..4.0).contains(&seconds), "{seconds}");
}

#[test]
fn creation_and_deletion_keep_the_number_of_files() {
    for (personality, threads) in [
        ("fileserver", 5),
        ("varmail", 5),
        ("webproxy", 5),
        ("metadata", 5),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("--files 100 --preallocated 80 --mean-size 4k --threads {threads}");
        run(
            personality,
            directory.path(),
            &format!("{options} --phase prepare"),
        );
        let before = files_below(&directory.path().join("files"));
        assert_eq!(before.len(), 80);
        run(
            personality,
            directory.path(),
            &format!("{options} --phase run --duration 0.7"),
        );
        let after = files_below(&directory.path().join("files"));
        // A worker that was stopped between its two halves leaves one file more or less.
        assert!(
            after.len().abs_diff(before.len()) <= threads,
            "{personality}: {}",
            after.len()
        );
        assert_ne!(before, after, "{personality} replaced nothing");
        // Preparing again restores the start.
        run(
            personality,
            directory.path(),
            &format!("{options} --phase prepare"),
        );
        assert_eq!(files_below(&directory.path().join("files")), before);
    }
}

#[test]
fn reread_counts_each_byte_once() {
    let directory = tempfile::tempdir().unwrap();
    let set = "--files 3 --mean-size 1000003 --io-size 64k";
    run(
        "reread",
        directory.path(),
        &format!("{set} --phase prepare --sync"),
    );
    let truth: u64 = files_below(&directory.path().join("files"))
        .iter()
        .map(|path| fs::metadata(path).unwrap().len())
        .sum();
    assert_eq!(truth, 3_000_009);
    let output = run(
        "reread",
        directory.path(),
        &format!("{set} --phase warm,residency,run"),
    );
    let last = last(&output);
    assert_eq!(last["read_bytes"].as_u64(), Some(truth));
    assert_eq!(last["written_bytes"].as_u64(), Some(0));
    // 16 reads of 64 KiB a file, and the one that finds the end.
    assert_eq!(last["by_operation"]["read"]["count"].as_u64(), Some(3 * 17));
    let resident = events(&output, "residency")[0]["resident_bytes"].as_u64();
    assert_eq!(resident, Some(truth));
    let limited = run(
        "reread",
        directory.path(),
        &format!("{set} --phase run --limit 100k"),
    );
    assert_eq!(
        limited.last().unwrap()["read_bytes"].as_u64(),
        Some(3 * 102_400)
    );
}

#[test]
fn writes_are_what_the_files_hold() {
    let directory = tempfile::tempdir().unwrap();
    let lines = run(
        "webserver",
        directory.path(),
        "--files 40 --mean-size 4k --threads 3 --duration 0.4",
    );
    // Only the log is written to, and it is never truncated.
    let written = last(&lines)["written_bytes"].as_u64().unwrap();
    let log = fs::metadata(directory.path().join("log")).unwrap().len();
    assert!(
        log >= written && log - written <= 4 * 16_384,
        "{log} {written}"
    );
    let appends = last(&lines)["by_operation"]["append_log"]["count"]
        .as_u64()
        .unwrap();
    assert!(appends > 50, "{appends}");
    // Uniform below 16 KiB: mean 8 KiB; the standard error at 50 draws is 8 %.
    let mean = log / appends;
    assert!((5_500..11_000).contains(&mean), "{mean}");
}

#[test]
fn videos_are_read_at_the_rate_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let lines = run(
        "videoserver",
        directory.path(),
        "--files 4 --active-files 2 --mean-size 256k --io-size 64k --threads 3 --rate 2m \
         --replace-every 0.2 --duration 2",
    );
    let last = last(&lines);
    let rate = last["read_bytes"].as_f64().unwrap() / last["seconds"].as_f64().unwrap();
    let expected = 2.0 * 1024.0 * 1024.0;
    // Never above it; below only as far as a busy machine holds it up.
    assert!((0.6 * expected..1.1 * expected).contains(&rate), "{rate}");
    let replaced = last["by_operation"]["delete"]["count"].as_u64().unwrap();
    assert!((2..=11).contains(&replaced), "{replaced}");
    let created = last["by_operation"]["create"]["count"].as_u64().unwrap();
    assert!(replaced.abs_diff(created) <= 1);
}

/// A tmpfs that is too small, mounted for this test; `None` where that is not allowed.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(directory: &Path, size: &str) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
            .arg(directory)
            .stderr(Stdio::null())
            .status();
        mounted
            .is_ok_and(|s| s.success())
            .then(|| Self(directory.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_file_system_is_reported_and_survived() {
    let directory = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(directory.path(), "4m") else {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    };
    // 80 files of 32 KiB fit into 4 MiB; what the workload adds does not.
    let options = "--files 100 --mean-size 32k --threads 4 --append-size 1m";
    run("fileserver", &disk.0, &format!("{options} --phase prepare"));
    let output = command(
        "fileserver",
        &disk.0,
        &format!("{options} --phase run --duration 1"),
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let lines = lines(&output);
    let last = last(&lines);
    let errors = last["errors"].as_u64().unwrap();
    let failures = last["failures"].as_array().unwrap();
    assert!(errors > 0);
    assert!(
        failures.iter().any(|f| f["errno"] == "ENOSPC"),
        "{failures:?}"
    );
    let counted: u64 = failures.iter().map(|f| f["count"].as_u64().unwrap()).sum();
    assert!(counted >= errors && counted - errors <= 4);
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"));
    assert!(last["loops"].as_u64().unwrap() > 0, "it went on");
    let files = files_below(&disk.0.join("files")).len();
    assert!(
        files.abs_diff(80) <= 4,
        "failures kept the balance: {files}"
    );
    // A set that cannot be completed is no workload at all.
    let output = command(
        "fileserver",
        &disk.0,
        "--files 100 --mean-size 1m --phase prepare",
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("write "),
        "says which file"
    );
}

fn spawn(directory: &Path, options: &str) -> Child {
    command("reread", directory, options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn several_instances_start_at_the_same_time() {
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let children: Vec<_> = (0..3)
        .map(|i| {
            let tenant = directory.path().join(format!("tenant{i}"));
            let ready = directory.path().join(format!("ready{i}"));
            let child = spawn(
                &tenant,
                &format!(
                    "--mean-size 1m --ready {} --wait-for {}",
                    ready.display(),
                    go.display()
                ),
            );
            (child, ready)
        })
        .collect();
    let patience = Instant::now() + Duration::from_secs(20);
    while !children.iter().all(|(_, ready)| ready.exists()) {
        assert!(Instant::now() < patience);
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(&go, "").unwrap();
    let starts: Vec<u64> = children
        .into_iter()
        .map(|(child, _)| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            let lines = lines(&output);
            events(&lines, "start")[0]["monotonic_ns"].as_u64().unwrap()
        })
        .collect();
    let apart = starts.iter().max().unwrap() - starts.iter().min().unwrap();
    assert!(apart < 1_000_000_000, "{apart} ns apart");
}

#[test]
fn a_run_that_only_prepares_reports_ready_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    let options = format!(
        "--mean-size 64k --phase prepare --ready {}",
        ready.display()
    );
    assert_eq!(run("reread", directory.path(), &options).len(), 0);
    assert!(ready.exists());
    let empty = directory.path().join("empty");
    let nothing = command("webserver", &empty, "--phase run")
        .output()
        .unwrap();
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("do --phase prepare first"));
}

#[test]
fn sigterm_prints_the_totals() {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    // 1 KB/s: it would take hours.
    let options = format!(
        "--mean-size 8m --rate 1k --duration 9999 --ready {}",
        ready.display()
    );
    let child = spawn(directory.path(), &options);
    let patience = Instant::now() + Duration::from_secs(20);
    while !ready.exists() {
        assert!(Instant::now() < patience);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.status.signal()),
        (Some(0), None)
    );
    let lines = lines(&output);
    assert_eq!(last(&lines)["interrupted"], true);
    assert!(last(&lines)["seconds"].as_f64().unwrap() < 10.0);
}

#[test]
fn residency_is_sampled_during_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let lines = run(
        "webserver",
        directory.path(),
        "--files 20 --mean-size 4k --threads 2 --duration 0.6 --residency 0.2",
    );
    let samples = events(&lines, "residency");
    assert!((1..=3).contains(&samples.len()));
    for sample in samples {
        assert_eq!(sample["files"], 20);
        assert_eq!(sample["resident_bytes"], sample["size_bytes"]);
    }
}
