//! The documents of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Documents that there are for certain, one of each place.
const EXPECTED: [&str; 9] = [
    "README.md",
    "CONTRIBUTING.md",
    "SPECIFICATION.md",
    "cache/README.md",
    "kernel/src/bpf/README.md",
    "docs/guide/cache.md",
    "docs/design/hypervisor-cache.md",
    "docs/design/decisions/README.md",
    "docs/reference/cli.md",
];

/// All documents, by their path from the workspace's directory, and their texts.
pub(crate) fn documents() -> Vec<(PathBuf, String)> {
    let paths = below(Path::new(""));
    for expected in EXPECTED {
        let found = paths.iter().any(|path| path == Path::new(expected));
        assert!(found, "{expected} is not among {paths:?}");
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// The documents below a directory, from the workspace's directory. Hidden directories and what is built have none.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(directory)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let shown = names.filter(|name| !name.starts_with('.') && name != "target");
    let paths = shown.map(|name| directory.join(name));
    paths
        .flat_map(|path| match root().join(&path).is_dir() {
            true => below(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|kind| kind == "md"))
        .collect()
}
