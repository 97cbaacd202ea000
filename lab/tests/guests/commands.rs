//! Commands that make images, and the project's own programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command to its end, which must be a success.
#[track_caller]
pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error} (`make deps` installs what the tests need)")
    });
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Debian 12.
pub(crate) const BOOKWORM: &str = "bookworm";
/// Debian 13.
pub(crate) const TRIXIE: &str = "trixie";

/// Makes a small Debian of this release with these packages (`--include=…`) in a directory. mmdebstrap starts no services.
#[track_caller]
pub(crate) fn debian(release: &str, include: &str, tree: &Path) {
    run(Command::new("mmdebstrap")
        .args(["--variant=minbase", include])
        .args(
            ["doc", "man", "locale"]
                .map(|what| format!("--dpkgopt=path-exclude=/usr/share/{what}/*")),
        )
        .arg(release)
        .arg(tree));
}

/// A program of the project, built beside this test's directory.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join(name)
}
