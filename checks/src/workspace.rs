//! The packages of the workspace and their sources.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Directories of a package that hold sources.
const SOURCES: [&str; 5] = ["src", "tests", "benches", "examples", "fuzz/fuzz_targets"];

/// A workspace on disk.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// Its directory.
    pub root: PathBuf,
}

/// A package of a workspace.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its directory, from the workspace's.
    pub directory: String,
    /// Its name.
    pub name: String,
    /// The packages of its dependencies, of all three kinds.
    pub dependencies: Vec<String>,
}

/// Reads a file.
///
/// # Errors
/// If it cannot be read, or is not text.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| Error::new(path, error))
}

impl Workspace {
    /// The workspace that this crate is in.
    #[must_use]
    pub fn this() -> Self {
        Self {
            root: Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
        }
    }

    /// Its packages, in the order of its manifest.
    ///
    /// # Errors
    /// If a manifest cannot be read.
    pub fn members(&self) -> Result<Vec<Member>> {
        let path = self.root.join("Cargo.toml");
        let manifest = parse(&path)?;
        let members = manifest
            .get("workspace")
            .and_then(|workspace| workspace.get("members"))
            .and_then(toml::Value::as_array)
            .ok_or_else(|| Error::new(&path, "no workspace.members"))?;
        members
            .iter()
            .filter_map(toml::Value::as_str)
            .map(|directory| self.member(directory))
            .collect()
    }

    fn member(&self, directory: &str) -> Result<Member> {
        let path = self.root.join(directory).join("Cargo.toml");
        let manifest = parse(&path)?;
        let name = manifest
            .get("package")
            .and_then(|package| package.get("name"))
            .and_then(toml::Value::as_str)
            .ok_or_else(|| Error::new(&path, "no package.name"))?;
        let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
        let tables = kinds
            .iter()
            .filter_map(|kind| manifest.get(*kind)?.as_table());
        Ok(Member {
            directory: directory.to_owned(),
            name: name.to_owned(),
            dependencies: tables.flat_map(|table| table.keys().cloned()).collect(),
        })
    }

    /// The Rust files of a package, sorted, as paths from the workspace's directory.
    ///
    /// # Errors
    /// If a directory cannot be listed.
    pub fn sources(&self, member: &Member) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for directory in SOURCES {
            let directory = self.root.join(&member.directory).join(directory);
            if directory.is_dir() {
                collect(&directory, &mut found)?;
            }
        }
        let mut sources: Vec<String> = found.iter().map(|path| self.name(path)).collect();
        sources.sort_unstable();
        Ok(sources)
    }

    /// The path of a file from the workspace's directory.
    #[must_use]
    pub fn name(&self, path: &Path) -> String {
        let path = path.strip_prefix(&self.root).unwrap_or(path);
        path.to_string_lossy().into_owned()
    }
}

fn parse(path: &Path) -> Result<toml::Table> {
    read(path)?.parse().map_err(|error| Error::new(path, error))
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(directory).map_err(|error| Error::new(directory, error))?;
    for entry in entries {
        let path = entry.map_err(|error| Error::new(directory, error))?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}
