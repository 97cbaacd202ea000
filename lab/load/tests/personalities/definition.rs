//! Personalities do what their definitions say.

use super::*;

/// Personalities, their options, how many threads these give them, and how often their definitions say that a loop does what.
const LOOPS: [(&str, &str, u64, &str); 4] = [
    (
        "fileserver",
        "--files 60 --mean-size 8k --threads 3",
        3,
        "create 1, write_whole 1, close 3, open 2, append 1, read_whole 1, delete 1, stat 1",
    ),
    (
        "webserver",
        "--files 60 --mean-size 4k --threads 4",
        4,
        "open 10, read_whole 10, close 10, append_log 1",
    ),
    (
        "webproxy",
        "--files 60 --mean-size 4k --threads 4",
        4,
        "delete 1, create 1, append 1, close 6, open 5, read_whole 5",
    ),
    (
        "metadata",
        "--files 60 --threads 2",
        2,
        "create 1, append 1, fsync 1, close 1, rename 1, delete 1, mkdir 1, rmdir 1",
    ),
];

/// Counts per loop must be those of the definition, up to the loops that the end cut off.
#[test]
fn the_mix_of_operations_is_that_of_the_definition() {
    for (personality, options, threads, mix) in LOOPS {
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
        let mix: Vec<&str> = mix.split(", ").collect();
        assert_eq!(by.len(), mix.len(), "{personality}: {:?}", by.keys());
        let mut sum = 0;
        for operation in mix {
            let (name, per_loop) = operation.split_once(' ').unwrap();
            let per_loop: u64 = per_loop.parse().unwrap();
            let count = by[name]["count"].as_u64().unwrap();
            sum += count;
            let range = loops * per_loop..=(loops + threads) * per_loop;
            assert!(
                range.contains(&count),
                "{personality} {name}: {count}, {loops} loops"
            );
        }
        // Each worker may have been in one when the totals were read.
        let operations = last["operations"].as_u64().unwrap();
        assert!(operations <= sum, "{operations} {sum}");
        assert!(sum - operations <= 2 * threads, "{operations} {sum}");
    }
}

#[test]
fn creation_and_deletion_keep_the_number_of_files() {
    let threads = 5;
    for personality in ["fileserver", "webproxy", "metadata"] {
        let directory = tempfile::tempdir().unwrap();
        let phase = |phase: &str| {
            let options = "--files 100 --preallocated 80 --mean-size 4k --threads";
            let options = format!("{options} {threads} --phase {phase}");
            run(personality, directory.path(), &options);
        };
        phase("prepare");
        let before = files_below(&directory.path().join("files"));
        assert_eq!(before.len(), 80);
        phase("run --duration 0.7");
        let after = files_below(&directory.path().join("files"));
        // A worker that was stopped between its two halves leaves one file more or less.
        assert!(
            after.len().abs_diff(before.len()) <= threads,
            "{personality}: {}",
            after.len()
        );
        assert_ne!(before, after, "{personality} replaced nothing");
        // Preparing again restores the start.
        phase("prepare");
        assert_eq!(files_below(&directory.path().join("files")), before);
    }
}

#[test]
fn reread_counts_each_byte_once() {
    let directory = tempfile::tempdir().unwrap();
    let phases = |phases: &str| {
        let options = format!("--files 3 --mean-size 1000003 --io-size 64k --phase {phases}");
        run("reread", directory.path(), &options)
    };
    phases("prepare");
    let truth: u64 = files_below(&directory.path().join("files"))
        .iter()
        .map(|path| fs::metadata(path).unwrap().len())
        .sum();
    assert_eq!(truth, 3_000_009);
    let output = phases("warm,run");
    let last = last(&output);
    assert_eq!(last["read_bytes"].as_u64(), Some(truth));
    assert_eq!(last["written_bytes"].as_u64(), Some(0));
    // 16 reads of 64 KiB a file, and the one that finds the end.
    assert_eq!(last["by_operation"]["read"]["count"].as_u64(), Some(3 * 17));
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
