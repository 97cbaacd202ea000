//! `justitia-load block` itself: traces replayed against the clock and against the truth, random requests,
//! what is refused.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn block(directory: &Path, options: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_justitia-load"))
        .arg("block")
        .arg("--dir")
        .arg(directory)
        .args(["--size", "4m", "--buffered"])
        .args(options.split_whitespace())
        .output()
        .unwrap()
}

fn last(output: &Output) -> Value {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "final");
    last
}

#[test]
fn a_trace_is_replayed_at_its_times_and_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    // A write of 8 KiB and a read of 1000 bytes (two sectors) every 100 ms; offsets far beyond the file.
    std::fs::write(
        &trace,
        "0,99999999,8192,W,10.0\n0,5,1000,R,10.05\n0,99999999,8192,W,10.1\n0,5,1000,R,10.15\n",
    )
    .unwrap();
    let timed = format!(
        "--trace {} --format spc --speed 1 --duration 1.02 --depth 3",
        trace.display()
    );
    let last = last(&block(directory.path(), &timed));
    // 21 moments in 1.02 s; a machine that is busy may be late with the last one.
    let operations = last["operations"].as_u64().unwrap();
    assert!((19..=21).contains(&operations), "{operations}");
    let (read, written) = (
        last["read_bytes"].as_u64().unwrap(),
        last["written_bytes"].as_u64().unwrap(),
    );
    let by = &last["by_operation"];
    assert_eq!(read, 1024 * by["read"]["count"].as_u64().unwrap());
    assert_eq!(written, 8192 * by["write"]["count"].as_u64().unwrap());
    assert!(by["read"]["count"].as_u64().unwrap() >= 9);
}

#[test]
fn a_late_request_counts_latency_from_its_due_time() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    // Everything at once, and one worker: on average half the run passes before a request's turn.
    std::fs::write(&trace, "0,0,4096,R,1.0\n".repeat(1000)).unwrap();
    let options = format!(
        "--trace {} --format spc --speed 1 --duration 0.4 --depth 1",
        trace.display()
    );
    let last = last(&block(directory.path(), &options));
    let read = &last["by_operation"]["read"];
    let each = 4e5 / read["count"].as_f64().unwrap();
    let mean = read["mean_us"].as_f64().unwrap();
    assert!(mean > 1e5 && mean > 50.0 * each, "{mean} {each}");
}

#[test]
fn without_a_speed_the_next_request_comes_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    std::fs::write(
        &trace,
        "1,h,0,Write,0,4096,0\n900000001,h,0,Read,0,4096,0\n",
    )
    .unwrap();
    let hurried = format!(
        "--trace {} --format msr --duration 0.3 --depth 2",
        trace.display()
    );
    let last = last(&block(directory.path(), &hurried));
    let (read, written) = (
        last["read_bytes"].as_u64().unwrap(),
        last["written_bytes"].as_u64().unwrap(),
    );
    assert!(read > 100 * 4096, "{read}");
    assert!(read.abs_diff(written) <= 2 * 4096, "{read} {written}");
}

#[test]
fn random_requests_have_the_requested_mix() {
    let directory = tempfile::tempdir().unwrap();
    let last = last(&block(
        directory.path(),
        "--random 25 --io-size 4k --duration 0.3 --depth 2",
    ));
    let count = |operation: &str| last["by_operation"][operation]["count"].as_f64().unwrap();
    let part = count("read") / (count("read") + count("write"));
    assert!((0.2..0.3).contains(&part), "{part}");
}

#[test]
fn impossible_arguments_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace");
    std::fs::write(&trace, "0,1,512,R,1\nnonsense\n").unwrap();
    let bad = format!("--trace {} --format spc", trace.display());
    for (options, expected) in [
        (bad.as_str(), "line 2: expected a first 512-byte block"),
        ("--random 50 --phase run", "do --phase prepare first"),
        (
            "--random 50 --io-size 1000",
            "--io-size: expected 512 bytes",
        ),
        ("--random 101", "101"),
        ("--random 50 --speed 2", "--trace"),
        ("--trace /nonexistent --format msr", "/nonexistent"),
        ("--trace /nonexistent", "--format"),
        ("--trace x --format msr --speed 0", "how many times as fast"),
    ] {
        let fresh = tempfile::tempdir().unwrap();
        let output = block(fresh.path(), options);
        assert!(!output.status.success(), "{options}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(expected), "{options}: {error}");
    }
}
