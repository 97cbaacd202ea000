//! What the program says to a new user: what was expected, what was found, where, what to do.

#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::process::{Command, Stdio};

use justitia_api::{AppStatus, Status, TenantStatus};
use justitia_view::record::Recorder;

/// How the program ended, and what it said on standard error and standard output, with these arguments and no terminal.
fn said(args: &str) -> (Option<i32>, String, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_justitia"))
        .args(args.split(' '))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code(), text(done.stderr), text(done.stdout))
}

/// The program refuses these arguments, with these words.
fn refuses(args: &str, words: &[&str]) {
    let (code, error, _) = said(args);
    assert!(code.is_some_and(|code| code > 0), "{args}: {code:?}");
    for part in words {
        assert!(error.contains(part), "{args}: {part:?} not in {error}");
    }
}

/// A tenant that has read so many MiB so far, half of them from the disk.
fn reader(name: &str, mib: u64) -> TenantStatus {
    TenantStatus {
        name: name.to_owned(),
        app: Some(AppStatus {
            read_bytes: mib << 20,
            cache_read_bytes: mib << 20,
            cache_miss_bytes: mib << 19,
            ..AppStatus::default()
        }),
        ..TenantStatus::default()
    }
}

#[test]
fn a_recording_without_a_terminal_is_told_as_its_averages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("some.rec");
    let mut recorder = Recorder::create(&path).unwrap();
    for second in [1_u32, 2, 3] {
        let db = TenantStatus {
            id: 1,
            ..reader("db\u{1b}", 20 * u64::from(second))
        };
        let idle = TenantStatus {
            id: 2,
            ..reader("idle", 7)
        };
        let status = Status {
            time: 1000.0 + f64::from(second),
            uptime: f64::from(second),
            tenants: vec![db, idle],
            ..Status::default()
        };
        recorder.record(&status).unwrap();
    }
    recorder.finish().unwrap();
    let replay = format!("top --replay {}", path.display());
    let (code, error, text) = said(&replay);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let table = "TENANT   SEEN READ/s HIT%\ndb\\u{1b}  2 s  20.0M 50.0\n";
    assert_eq!(text, table);
    let (code, _, json) = said(&format!("{replay} --json"));
    assert_eq!(code, Some(0));
    let told: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(told[0]["hit_ratio"], 0.5);
    assert_eq!(told[1]["name"], "idle");
    assert_eq!(told[1]["read_rate"], 0.0);
    assert!(told[1]["hit_ratio"].is_null());
}

#[test]
fn a_recording_that_is_not_there_is_named_with_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.rec").display().to_string();
    for command in [
        format!("explain --replay {missing} a"),
        format!("top --replay {missing}"),
    ] {
        refuses(
            &command,
            &[
                &missing,
                "expected a recording made by `justitia record`",
                "found none: No such file",
            ],
        );
    }
    refuses(
        &format!("explain --replay {} a", dir.path().display()),
        &["expected a regular file, found a directory"],
    );
}

#[test]
fn an_image_that_is_not_there_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (image, control, socket) = (path("none.img"), path("control"), path("disk.sock"));
    refuses(
        &format!("cache serve {image} --control {control} --socket {socket}"),
        &[
            &image,
            "expected a raw image or a block device",
            "found none: No such file",
            "name one that exists, or make it",
        ],
    );
}

#[test]
fn a_configuration_is_refused_in_the_same_words_whatever_it_is_of() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    std::fs::write(&file, "nonsense = 1\n[memory]\nsize = true\n").unwrap();
    let file = file.to_str().unwrap();
    let told = format!("{file}:1: expected one of `");
    let unknown = "found the unknown key `nonsense`: correct or remove it";
    let missing =
        "/nonexistent.toml: expected a TOML file that can be read, found none: No such file";
    for command in ["run", "cache serve", "host run"] {
        let check = format!("{command} --check-config --config");
        refuses(&format!("{check} {file}"), &[&told, unknown]);
        refuses(&format!("{check} /nonexistent.toml"), &[missing]);
    }
}

#[test]
fn a_hosts_configuration_is_checked_and_nothing_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let (file, state) = (dir.path().join("host.toml"), dir.path().join("state"));
    std::fs::write(&file, "headroom = \"10%\"\n").unwrap();
    let (file, directory) = (file.to_str().unwrap(), state.to_str().unwrap());
    let checked = said(&format!(
        "host run --check-config --config {file} --directory {directory}"
    ));
    let expected = (Some(0), String::new(), format!("{file}: no errors\n"));
    assert_eq!(checked, expected);
    std::fs::write(file, "headroom = \"10\"\n").unwrap();
    let (code, _, out) = said(&format!("host run --check-config --config {file}"));
    let warned = out.starts_with(&format!("warning: {file}: headroom: expected 1.0 MiB"));
    let counted = out.ends_with(&format!("{file}: no errors, 1 warning\n"));
    assert!(code == Some(0) && warned && counted, "{out}");
    let reset = format!("host reset --directory {directory}");
    let (code, _, out) = said(&reset);
    assert_eq!((code, out.as_str()), (Some(0), "nothing to restore\n"));
    assert!(!state.exists());
    std::fs::create_dir(&state).unwrap();
    said(&reset);
    assert_eq!(state.read_dir().unwrap().count(), 0);
}
