//! Every command that the guide gives for a platform is one that a test of the lab runs: its program and options stand in one.

use std::fs;
use std::path::Path;

/// The words of a command that say what it does: its program, its verb, its options. What follows is the reader's to choose.
fn said(command: &str) -> Vec<&str> {
    let words = command.split_whitespace().filter(|word| *word != "sudo");
    let words = words.map(|word| word.split('=').next().unwrap_or(word));
    let options = words.clone().skip(2).filter(|word| word.starts_with('-'));
    words.take(2).chain(options).collect()
}

#[test]
fn each_command_of_a_platform_is_run_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tests = fs::read_dir(root.join("lab/tests/guests")).unwrap();
    let tests: Vec<String> = tests
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("/runtimes"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let guide = fs::read_to_string(root.join("docs/guide/runtimes.md")).unwrap();
    let (_, platforms) = guide.split_once("## By platform").unwrap();
    let commands = platforms
        .lines()
        .filter(|line| line.starts_with("    sudo "));
    // Those of another page that are the platform's.
    let backup = fs::read_to_string(root.join("docs/guide/backup.md")).unwrap();
    let of_platform = ["docker update", "systemd-run", "systemctl set-property"];
    let given = |line: &&str| of_platform.iter().any(|command| line.contains(command));
    let others = backup.lines().filter(|line| line.starts_with("    "));
    let commands = commands.chain(others.filter(given));
    let mut count = 0;
    for command in commands {
        let words = said(command);
        let runs = |test: &&String| words.iter().all(|word| test.contains(word));
        assert!(
            tests.iter().any(|test| runs(&test)),
            "no test in lab/tests/guests/runtimes*.rs runs {command}: {words:?}"
        );
        count += 1;
    }
    assert!(count >= 10, "{count} commands");
}
