//! The documents of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The documents below a directory, from the workspace's directory. Hidden directories and what is built have none.
pub(crate) fn documents(below: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(below)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let shown = names.filter(|name| !name.starts_with('.') && name != "target");
    let paths = shown.map(|name| below.join(name));
    paths
        .flat_map(|path| match root().join(&path).is_dir() {
            true => documents(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|kind| kind == "md"))
        .collect()
}
