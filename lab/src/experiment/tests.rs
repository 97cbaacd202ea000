//! Definitions: the shipped ones, and what is refused.

use justitia_common::toml_file::Size;

use super::shipped::{EXPERIMENTS, ORDINARY};
use super::*;

#[test]
fn shipped_experiments_parse_and_every_configuration_exists() {
    let all = Experiment::shipped().unwrap();
    assert_eq!(all.len(), EXPERIMENTS.len() + ORDINARY.len());
    for experiment in all {
        assert!(!experiment.metrics().is_empty(), "{}", experiment.name);
        assert!(
            !experiment.described_tenants().is_empty(),
            "{}",
            experiment.name
        );
        // The guest receives what was written.
        let message = serde_json::to_string(&experiment).unwrap();
        assert_eq!(
            serde_json::from_str::<Experiment>(&message).unwrap(),
            experiment
        );
    }
}

const GOOD: &str = r#"title = "T"
question = "Q"
configurations = ["conventional"]
metric = ["bandwidth"]

[[tenant]]
name = "a"
weight = 100

[workload.w]
sh = "sleep {seconds}"

[[phase]]
do = "run"
workload = "w"
seconds = 3
"#;

fn error(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    let text = GOOD.replacen(from, to, 1);
    Experiment::parse("t", "t.toml", &text)
        .unwrap_err()
        .to_string()
}

#[test]
fn absent_keys_have_their_defaults() {
    let experiment = Experiment::parse("t", "t.toml", GOOD).unwrap();
    assert_eq!(experiment.name, "t");
    assert_eq!(experiment.repeat, 3);
    assert_eq!(experiment.machine.memory, Size(1 << 30));
    assert_eq!(experiment.disk.bytes_per_second, Size(60_000_000));
}

/// What of [`GOOD`] is replaced with what, the line of the error, and a part of it. `\n` is the end of a line.
const WRONG: &str = r#"
title = "T" | title = 3 | 1 | string
title = "T" | titel = "T" | 1 | titel
["conventional"] | ["cfq"] | 3 | expected a configuration
["conventional"] | [] | 3 | at least one configuration
["bandwidth"] | ["speed"] | 4 | expected a metric
name = "a" | name = "../a" | 6 | expected a name
name = "a" | name = "outsider" | 6 | expected a name
weight = 100 | weight = 0 | 6 | expected a weight from 1 to 10000, found 0
weight = 100 | weight = 100\n[[tenant]]\nname = "a"\nweight = 1 | 9 | found "a" again
weight = 100 | weight = 100\nbackground = "x" | 6 | expected a workload
workload = "w" | workload = "x" | 13 | expected a workload (w), found "x"
seconds = 3 |  | 13 | expected seconds
seconds = 3 | seconds = 3\nin = ["b"] | 13 | expected a tenant
seconds = 3 | secs = 3 | 13 | secs
do = "run" | do = "jump" | 14 | jump
sh = "sleep {seconds}" | perl = "" | 11 | perl
seconds = 3 | seconds = 3\nas = "bandwidth" | 13 | whose total is "whole"
do = "run"\nworkload = "w"\n | do = "sample"\nas = "settled"\n | 13 | whose total is "whole"
[[phase]] | [disk]\nsize = "1 parsec"\n[[phase]] | 14 | expected a size such as 64K
[[phase]] | [disk]\njournal = "1MiB"\n[[phase]] | 14 | 4MiB to half of the disk
[[phase]] | [disk]\nfilesystem = "xfs"\njournal = "64MiB"\n[[phase]] | 15 | expected ext4
"#;

/// The lines of a table of such cells.
fn cells<const N: usize>(table: &str) -> impl Iterator<Item = [String; N]> {
    let lines = table.lines().filter(|line| !line.is_empty());
    lines.map(|line| {
        let cells = line.split(" | ").map(|cell| cell.replace(r"\n", "\n"));
        let cells: Vec<String> = cells.collect();
        <[String; N]>::try_from(cells).unwrap()
    })
}

#[test]
fn errors_say_file_and_line() {
    for [from, to, line, what] in cells::<4>(WRONG) {
        let error = error(&from, &to);
        assert!(error.contains(&format!("t.toml:{line}:")), "{to}: {error}");
        assert!(error.contains(&what), "{to}: {error}");
    }
}

#[test]
fn an_unknown_name_lists_what_there_is() {
    let error = Experiment::find("rereed").unwrap_err().to_string();
    assert!(
        error.contains("reread-x4") && error.contains("rereed"),
        "{error}"
    );
    // One of the cache, which this command does not run.
    let error = Experiment::texts("settings").unwrap_err().to_string();
    let hint = "those of the cache: `justitia-lab cache experiment --list`";
    assert!(error.ends_with(hint), "{error}");
}

#[test]
fn files_are_shipped_or_lie_beside_the_definition() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.toml");
    let own = format!("{GOOD}\n[files]\nmine = \"my.csv\"\nshipped = \"traces/web.msr\"\n");
    std::fs::write(&path, &own).unwrap();
    let name = path.to_str().unwrap();
    let error = format!("{:#}", Experiment::find(name).unwrap_err());
    assert!(
        error.contains("own.toml") && error.contains("my.csv"),
        "{error}"
    );
    std::fs::write(dir.path().join("my.csv"), "1,2,3\n").unwrap();
    let experiment = Experiment::find(name).unwrap();
    let contents = experiment.contents().unwrap();
    assert_eq!(contents.len(), 2);
    assert_eq!(contents[0], ("mine", b"1,2,3\n".as_slice().into()));
    assert!(contents[1].1.len() > 50_000);
    let odd = own.replace("mine =", "\"../mine\" =");
    let error = Experiment::parse("t", "t.toml", &odd)
        .unwrap_err()
        .to_string();
    assert!(error.contains("expected a name"), "{error}");
}

#[test]
fn devices_and_pipes_are_refused_as_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink("/dev/zero", path("device.toml")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe.toml"), 0o600.into()).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("trace")).unwrap();
    let files = "metric = [\"bandwidth\"]\nfiles = { t = \"trace\" }";
    let text = GOOD.replacen("metric = [\"bandwidth\"]", files, 1);
    std::fs::write(path("files.toml"), text).unwrap();
    for (name, found) in [
        ("device.toml", "found a character device"),
        ("pipe.toml", "found a pipe"),
        ("files.toml", "found a character device"),
    ] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let name = path(name).display().to_string();
        std::thread::spawn(move || {
            let refused = Experiment::find(&name).map(|_| ());
            sender.send(refused.map_err(|e| format!("{e:#}")))
        });
        let refused = receiver.recv_timeout(std::time::Duration::from_secs(20));
        let error = refused.expect("an answer").unwrap_err();
        assert!(error.contains(found), "{error}");
    }
}

/// Writes definitions into a directory, and finds one of them.
fn find_among(files: &[(&str, &str)], name: &str) -> Result<Experiment, String> {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let path = dir.path().join(name);
    let prefix = format!("{}/", dir.path().display());
    Experiment::find(path.to_str().unwrap()).map_err(|e| format!("{e:#}").replace(&prefix, ""))
}

#[test]
fn a_definition_takes_from_its_base_what_it_does_not_say() {
    let own = "base = \"good.toml\"\ntitle = \"Own\"\n[workload.more]\nsh = \"true\"\n[disk]\nsize = \"1GiB\"\n";
    let grandchild =
        "base = \"own.toml\"\n[disk]\nfilesystem = \"xfs\"\n[workload.w]\nsh = \"false\"\n";
    let files = [
        ("good.toml", GOOD),
        ("own.toml", own),
        ("grand.toml", grandchild),
    ];
    let good = find_among(&files, "good.toml").unwrap();
    let experiment = find_among(&files, "grand.toml").unwrap();
    assert_eq!((&*experiment.name, &*experiment.title), ("grand", "Own"));
    assert_eq!(experiment.question, good.question);
    assert_eq!(
        (&experiment.tenant, &experiment.phase),
        (&good.tenant, &good.phase)
    );
    // Of tables single keys are replaced, by the nearest definition.
    assert_eq!(experiment.disk.size, Size(1 << 30));
    assert_eq!(experiment.disk.filesystem, crate::spec::Filesystem::Xfs);
    let texts: Vec<_> = experiment.workload.into_values().collect();
    assert_eq!(
        texts,
        [Workload::Sh("true".into()), Workload::Sh("false".into())]
    );
}

#[test]
fn an_array_replaces_the_whole_array_of_the_base() {
    let own = "base = \"good.toml\"\n[[phase]]\ndo = \"wait\"\nseconds = 1\n";
    let files = [("good.toml", GOOD), ("own.toml", own)];
    let experiment = find_among(&files, "own.toml").unwrap();
    assert_eq!(experiment.phase, [Phase::Wait(WaitPhase { seconds: 1 })]);
}

#[test]
fn errors_with_a_base_say_file_and_line() {
    // What is replaced of the base, with what, what its heir says, and the error.
    for [from, to, own, error] in cells::<4>(
        r#"
"T" | "T" | [[tenant]]\nname = "b"\nweight = 0\n | own.toml:2: expected a weight
"T" | "T" | \n[disk]\njournal = "1MiB"\n | own.toml:4: expected ext4, and 4MiB
"T" | "T" | titel = "T"\n | own.toml:2: expected one of `name`, `title`
seconds = 3 | secs = 3 |  | good.toml:13: expected one of `workload`
weight = 100 | weight = 0 |  | good.toml:6: expected a weight
weight = 100 | weight = |  | good.toml:8:
"#,
    ) {
        let own = format!("base = \"good.toml\"\n{own}");
        assert_refused(&GOOD.replace(&from, &to), &own, &error);
    }
}

/// Finds `own`, whose base is `base`, in vain.
fn assert_refused(base: &str, own: &str, error: &str) {
    let files = [("good.toml", base), ("own.toml", own)];
    let found = find_among(&files, "own.toml").unwrap_err();
    let (place, what) = error.split_once(':').unwrap();
    let (line, what) = what.split_once(':').unwrap();
    // The key stands between them.
    assert!(
        found.starts_with(&format!("{place}:{line}:")) && found.contains(what),
        "{error}: {found}"
    );
}

#[test]
fn wrong_bases_and_cycles_are_refused_with_file_and_line() {
    let cycle = format!("base = \"own.toml\"\n{GOOD}");
    let error = "good.toml:1: expected a base that does not build on this experiment";
    assert_refused(&cycle, "base = \"good.toml\"", error);
    for [own, error] in cells::<2>(
        r#"
base = "own.toml" | own.toml:1: expected a base that does not
\nbase = "none.toml" | own.toml:2: none.toml: expected a TOML file that can be read, found none
base = "../good.toml" | own.toml:1: expected a file in the same
base = "rereed" | own.toml:1: expected the path of a .toml file, or an experiment (
base = 3 | own.toml:1: expected the name of an experiment
"#,
    ) {
        assert_refused(GOOD, &own, &error);
    }
}

#[test]
fn an_experiment_says_how_long_a_run_takes_and_shows_its_bases() {
    for experiment in Experiment::shipped().unwrap() {
        assert!(experiment.seconds() > 0, "{}", experiment.name);
    }
    let experiment = Experiment::parse("t", "t.toml", GOOD).unwrap();
    assert_eq!(experiment.seconds(), 3);
    let texts = Experiment::texts("database").unwrap();
    let files = texts.iter().map(|text| text.file().display().to_string());
    assert_eq!(
        files.collect::<Vec<_>>(),
        ["lab/experiments/database.toml", "lab/experiments/slab.toml"]
    );
    assert!(
        Experiment::texts("databse")
            .unwrap_err()
            .to_string()
            .contains("did you mean `database`?")
    );
}
