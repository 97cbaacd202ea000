//! The configuration. It is optional and small: weights come from the cgroups themselves, and this only overrides them.
//!
//! `packaging/justitia.toml` shows every key with its default; [`settings`] documents them. Drop-ins (`justitia.toml.d/*.toml`,
//! in the order of their names) are read after the main file. A later key replaces an earlier one. Of several matching
//! `[[tenant]]`, the last wins.

#![deny(clippy::indexing_slicing)]

mod exclusion;
mod live;
mod read;
#[cfg(feature = "reference")]
pub mod reference;
pub mod settings;
mod state;
mod tenant;
mod value;

use std::path::{Path, PathBuf};

use justitia_common::toml_file::{Report, TomlError, TomlFile};
use read::Document;
pub use settings::Config;
pub use state::StateOnDisk;

/// The main file if none is named.
pub const DEFAULT_PATH: &str = "/etc/justitia/justitia.toml";

/// A configuration and its sources.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// The files that were read, in this order.
    pub files: Vec<PathBuf>,
    /// Skipped files among the drop-ins: their names do not end in `.toml`.
    pub skipped: Vec<PathBuf>,
    /// Warnings of old key names and of values that are allowed but hardly meant; by file and line.
    pub warnings: Vec<TomlError>,
}

impl Config {
    /// Reads `path` (or the default path, where a missing file is no error) and its drop-ins, regular files of at most 1 MiB
    /// each.
    ///
    /// # Errors
    /// All errors in all files.
    pub fn load(path: Option<&Path>) -> Result<Self, Vec<TomlError>> {
        Self::check(path).map(|checked| checked.config)
    }

    /// As [`Config::load`], with the files read and the warnings.
    ///
    /// # Errors
    /// All errors in all files.
    pub fn check(path: Option<&Path>) -> Result<Checked, Vec<TomlError>> {
        let (checked, errors) = Self::read(path);
        if errors.is_empty() {
            Ok(checked)
        } else {
            Err(errors)
        }
    }

    /// The state directory, and the errors of the configuration. Errors elsewhere do not hide it: restoring an earlier agent's
    /// knobs must not wait for a corrected file.
    #[must_use]
    pub fn state_dir_of(path: Option<&Path>) -> (PathBuf, Vec<TomlError>) {
        let (checked, errors) = Self::read(path);
        (checked.config.state_dir, errors)
    }

    /// The status socket. Errors elsewhere do not hide it: the agent that is asked to reload reports them.
    #[must_use]
    pub fn socket_of(path: Option<&Path>) -> PathBuf {
        Self::read(path).0.config.socket
    }

    /// The valid part of the configuration, and the errors.
    fn read(path: Option<&Path>) -> (Checked, Vec<TomlError>) {
        let main = path.unwrap_or(Path::new(DEFAULT_PATH));
        let (mut errors, mut warnings) = (Vec::new(), Vec::new());
        let (mut files, skipped) = drop_ins(&drop_in_dir(path)).unwrap_or_else(|error| {
            errors.push(error);
            Default::default()
        });
        if path.is_some() || main.exists() {
            files.insert(0, main.to_owned());
        }
        let read = |file: &PathBuf| TomlFile::read(file).map_err(|e| errors.push(e)).ok();
        let texts: Vec<TomlFile> = files.iter().filter_map(read).collect();
        let mut whole = Document::default();
        for text in &texts {
            let mut report = Report::new(text);
            whole.merge(Document::parse(&mut report));
            let (wrong, odd) = report.into_parts();
            errors.extend(wrong);
            warnings.extend(odd);
        }
        let mut config = whole.into_config().unwrap_or_else(|error| {
            errors.push(TomlError::whole(main, error.to_string()));
            Self::default()
        });
        config.rules.reverse();
        let checked = Checked {
            config,
            files,
            skipped,
            warnings,
        };
        (checked, errors)
    }
}

/// The directory of the drop-ins for the configuration at `path`, or at the default path.
fn drop_in_dir(path: Option<&Path>) -> PathBuf {
    let main = path.unwrap_or(Path::new(DEFAULT_PATH));
    let mut dir = main.as_os_str().to_owned();
    dir.push(".d");
    dir.into()
}

/// The drop-ins, and the other files beside them.
fn drop_ins(dir: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), TomlError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(e) => {
            let what = format!("expected a directory that can be read, found none: {e}");
            return Err(TomlError::whole(dir, what));
        }
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.sort_unstable();
    Ok(files
        .into_iter()
        .partition(|p| p.extension().is_some_and(|e| e == "toml")))
}

#[cfg(test)]
mod tests;
