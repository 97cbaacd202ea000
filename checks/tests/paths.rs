//! The documents name files and directories of packages: each of them is there.
//!
//! A path is `package/src/…` or `package/tests/…` from the workspace's directory. In the documents of a package `src/…` and
//! `tests/…` are paths, too. `NAME` in a path stands for any name.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

mod markdown;

use markdown::{documents, root};
use std::path::{Path, PathBuf};

fn is_package(directory: &Path) -> bool {
    directory != Path::new("") && root().join(directory).join("Cargo.toml").is_file()
}

/// Where a text in backticks of a document may be, if it is a path of a package.
fn places(document: &Path, text: &str) -> Vec<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let any_name = |part: &str| part.split('.').next() == Some("NAME");
    if !text.chars().all(plain) || text.split('/').any(any_name) {
        return Vec::new();
    }
    let inner = |directory: &str| text.find(&format!("/{directory}/"));
    if let Some(end) = ["src", "tests"].into_iter().filter_map(inner).min() {
        let package = text.get(..end).unwrap_or_default();
        let ours = is_package(Path::new(package));
        return ours.then(|| PathBuf::from(text)).into_iter().collect();
    }
    if !text.starts_with("src/") && !text.starts_with("tests/") {
        return Vec::new();
    }
    let above = document.ancestors().skip(1);
    let packages = above.filter(|directory| is_package(directory));
    packages.map(|package| package.join(text)).collect()
}

/// The paths that a document names and that are not there; and how many it names.
fn missing(document: &Path, text: &str) -> (Vec<String>, usize) {
    let quoted = text.split('`').skip(1).step_by(2);
    let paths = quoted.map(|path| (path, places(document, path)));
    let paths: Vec<_> = paths.filter(|(_, places)| !places.is_empty()).collect();
    let is_there = |places: &[PathBuf]| places.iter().any(|place| root().join(place).exists());
    let missing = paths.iter().filter(|(_, places)| !is_there(places));
    let missing = missing.map(|(path, _)| (*path).to_owned()).collect();
    (missing, paths.len())
}

#[test]
fn every_path_that_is_named_exists() {
    let mut all = 0;
    for (document, text) in documents() {
        let (missing, count) = missing(&document, &text);
        let document = document.display();
        assert!(missing.is_empty(), "{document}: not there: {missing:?}");
        all += count;
    }
    assert!(all > 100, "the documents name {all} paths only");
}

#[test]
fn a_path_that_does_not_exist_is_found() {
    for (document, text, expected, count) in [
        ("docs/a.md", "`checks/tests/paths.rs`", None, 1),
        ("docs/a.md", "`checks/src/`, `io.max`", None, 1),
        (
            "docs/a.md",
            "`checks/src/no.rs`",
            Some("checks/src/no.rs"),
            1,
        ),
        ("docs/a.md", "`lab/load/src/no`", Some("lab/load/src/no"), 1),
        ("docs/a.md", "`agent/src/plan/NAME.rs`", None, 0),
        // Not of a package of ours.
        ("docs/a.md", "`qemu/tests/no.c`, `src/no.rs`", None, 0),
        ("README.md", "`src/no.rs`", None, 0),
        ("checks/README.md", "`tests/paths.rs`", None, 1),
        ("checks/README.md", "`tests/no.rs`", Some("tests/no.rs"), 1),
        // Of the package around the nearest.
        ("kernel/fuzz/README.md", "`tests/relocations.rs`", None, 1),
    ] {
        let expected: Vec<String> = expected.map(str::to_owned).into_iter().collect();
        let found = missing(Path::new(document), text);
        assert_eq!(found, (expected, count), "{document}: {text}");
    }
}
