//! The reference documents are what the code says.

use std::path::Path;
use std::process::Command;

/// A directory with everything that `justitia generate` writes.
fn generated() -> std::io::Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    let made = Command::new(env!("CARGO_BIN_EXE_justitia"))
        .arg("generate")
        .arg(dir.path())
        .status()?;
    assert!(made.success(), "justitia generate: {made}");
    Ok(dir)
}

#[test]
fn the_reference_is_current() {
    let dir = generated().unwrap();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference");
    for name in ["configuration.md", "metrics.md", "cli.md"] {
        let now = std::fs::read_to_string(dir.path().join("reference").join(name)).unwrap();
        let kept = std::fs::read_to_string(docs.join(name)).unwrap_or_default();
        assert!(
            now == kept,
            "docs/reference/{name} is out of date: run `make reference`"
        );
    }
}

/// A man page of each command, and completions, for packages.
#[test]
fn man_pages_and_completions_are_written() {
    let dir = generated().unwrap();
    for (file, part) in [
        ("man/justitia.1", "justitia"),
        ("man/justitia-run.1", "observe"),
        ("completions/justitia.bash", "--observe"),
        ("completions/_justitia", "--observe"),
        ("completions/justitia.fish", "observe"),
    ] {
        let text = std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert!(text.contains(part), "{file}");
    }
}
