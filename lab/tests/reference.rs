//! The reference documents of the lab's program are what the code says.

use std::path::Path;
use std::process::Command;

#[test]
fn the_reference_is_current() {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new(env!("CARGO_BIN_EXE_justitia-lab"))
        .arg("generate")
        .arg(dir.path())
        .status()
        .unwrap();
    assert!(made.success(), "justitia-lab generate: {made}");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference");
    for name in ["experiment.md", "lab.md"] {
        let now = std::fs::read_to_string(dir.path().join("reference").join(name)).unwrap();
        let kept = std::fs::read_to_string(docs.join(name)).unwrap_or_default();
        assert!(
            now == kept,
            "docs/reference/{name} is out of date: run `make reference`"
        );
    }
}
