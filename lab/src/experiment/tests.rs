//! Definitions: the shipped ones, and what is refused.

use super::*;

#[test]
fn shipped_experiments_parse_and_every_configuration_exists() {
    let all = Experiment::shipped().unwrap();
    assert_eq!(all.len(), SHIPPED.len());
    for experiment in all {
        assert!(!experiment.metrics().is_empty(), "{}", experiment.name);
        assert!(
            !experiment.described_tenants().is_empty(),
            "{}",
            experiment.name
        );
        // What the guest receives is what was written.
        let wire = serde_json::to_string(&experiment).unwrap();
        assert_eq!(
            serde_json::from_str::<Experiment>(&wire).unwrap(),
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
fn the_sample_is_good() {
    let experiment = Experiment::parse("t", "t.toml", GOOD).unwrap();
    assert_eq!(experiment.name, "t");
    assert_eq!(experiment.repeat, 3);
}

#[test]
fn errors_say_file_and_line() {
    for (from, to, line, what) in [
        ("title = \"T\"", "title = 3", 1, "string"),
        ("title = \"T\"", "titel = \"T\"", 1, "titel"),
        (
            "[\"conventional\"]",
            "[\"cfq\"]",
            3,
            "expected a configuration",
        ),
        ("[\"conventional\"]", "[]", 3, "at least one configuration"),
        ("[\"bandwidth\"]", "[\"speed\"]", 4, "expected a metric"),
        ("name = \"a\"", "name = \"../a\"", 6, "expected a name"),
        ("name = \"a\"", "name = \"outsider\"", 6, "expected a name"),
        (
            "weight = 100",
            "weight = 0",
            6,
            "expected a weight from 1 to 10000, found 0",
        ),
        (
            "weight = 100",
            "weight = 100\n[[tenant]]\nname = \"a\"\nweight = 1",
            9,
            "found \"a\" again",
        ),
        (
            "weight = 100",
            "weight = 100\nbeside = \"x\"",
            6,
            "expected a workload",
        ),
        (
            "workload = \"w\"",
            "workload = \"x\"",
            13,
            "expected a workload ([\"w\"]), found \"x\"",
        ),
        ("seconds = 3", "", 13, "expected seconds"),
        (
            "seconds = 3",
            "seconds = 3\nin = [\"b\"]",
            13,
            "expected a tenant",
        ),
        ("seconds = 3", "secs = 3", 13, "secs"),
        ("do = \"run\"", "do = \"jump\"", 14, "jump"),
        ("sh = \"sleep {seconds}\"", "perl = \"\"", 11, "perl"),
        (
            "seconds = 3",
            "seconds = 3\nas = \"bandwidth\"",
            13,
            "whose total is \"whole\"",
        ),
        (
            "do = \"run\"\nworkload = \"w\"\n",
            "do = \"watch\"\nas = \"settled\"\n",
            13,
            "whose total is \"whole\"",
        ),
        (
            "[[phase]]",
            "[disk]\nsize = \"1 parsec\"\n[[phase]]",
            14,
            "expected bytes",
        ),
        (
            "[[phase]]",
            "[disk]\njournal = \"1MiB\"\n[[phase]]",
            14,
            "4MiB to half of the disk",
        ),
        (
            "[[phase]]",
            "[disk]\nfilesystem = \"xfs\"\njournal = \"64MiB\"\n[[phase]]",
            15,
            "expected ext4",
        ),
    ] {
        let error = error(from, to);
        assert!(error.contains(&format!("t.toml:{line}:")), "{to}: {error}");
        assert!(error.contains(what), "{to}: {error}");
    }
}

#[test]
fn an_unknown_name_lists_what_there_is() {
    let error = Experiment::find("rereed").unwrap_err().to_string();
    assert!(
        error.contains("reread-x4") && error.contains("rereed"),
        "{error}"
    );
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
fn what_never_ends_is_no_experiment() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink("/dev/zero", path("device.toml")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe.toml"), 0o600.into()).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("trace")).unwrap();
    let files = "metric = [\"bandwidth\"]\nfiles = { t = \"trace\" }";
    let text = GOOD.replacen("metric = [\"bandwidth\"]", files, 1);
    std::fs::write(path("files.toml"), text).unwrap();
    for (name, found) in [
        ("device.toml", "found a device"),
        ("pipe.toml", "found a pipe"),
        ("files.toml", "found a device"),
    ] {
        let (tell, told) = std::sync::mpsc::channel();
        let name = path(name).display().to_string();
        std::thread::spawn(move || {
            let refused = Experiment::find(&name).map(|_| ());
            tell.send(refused.map_err(|e| format!("{e:#}")))
        });
        let refused = told.recv_timeout(std::time::Duration::from_secs(20));
        let error = refused.expect("an answer").unwrap_err();
        assert!(error.contains(found), "{error}");
    }
}
