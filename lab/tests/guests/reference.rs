//! The reference documents are what the code says.

use std::path::Path;
use std::process::Command;

/// A directory with everything that `justitia-lab generate` writes.
fn generated() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_justitia-lab"))
        .arg("generate")
        .arg(dir.path())
        .status()
        .unwrap();
    assert!(made.success(), "justitia-lab generate: {made}");
    dir
}

#[test]
fn the_reference_is_current() {
    let dir = generated();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference");
    for name in [
        "configuration.md",
        "metrics.md",
        "cli.md",
        "experiment.md",
        "lab.md",
    ] {
        let now = std::fs::read_to_string(dir.path().join("reference").join(name)).unwrap();
        let kept = std::fs::read_to_string(docs.join(name)).unwrap_or_default();
        assert!(
            now == kept,
            "docs/reference/{name} is out of date: run `make reference`"
        );
    }
}

#[test]
fn an_error_begins_with_the_programs_name() {
    let done = Command::new(env!("CARGO_BIN_EXE_justitia-lab"))
        .args(["show", "nothing"])
        .output()
        .unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.starts_with("justitia-lab: "), "{said}");
}

/// A man page of each command, and completions, for packages.
#[test]
fn man_pages_and_completions_are_written() {
    let dir = generated();
    for (file, part) in [
        ("man/justitia.1", "justitia"),
        ("man/justitia-run.1", "observe"),
        ("man/justitia-lab-run.1", "experiment"),
        ("completions/justitia.bash", "--observe"),
        ("completions/_justitia", "--observe"),
        ("completions/justitia.fish", "observe"),
    ] {
        let text = std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert!(text.contains(part), "{file}");
    }
}
