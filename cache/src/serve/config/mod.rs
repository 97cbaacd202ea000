//! `cache.toml`: its tables, and the configuration that they make.

#![deny(clippy::indexing_slicing)]

mod check;
mod tables;
mod types;

pub use justitia_common::toml_file::Size;
pub use types::{Config, DiskConfig, Listen, PoolConfig, PortConfig, VmConfig};
pub(super) use types::{NAME, default_policy, is_name};

use justitia_common::toml_file::{Report, TomlError, TomlFile};
use std::path::Path;
use tables::File;

impl Config {
    /// Reads a configuration: a regular file of at most 1 MiB.
    ///
    /// # Errors
    /// All errors in the file, as far as it can be read.
    pub fn load(file: &Path) -> Result<Self, Vec<TomlError>> {
        Self::read(&TomlFile::read(file).map_err(|error| vec![error])?)
    }

    /// Reads a configuration from `text`; `file` names it in errors.
    ///
    /// # Errors
    /// All syntax errors; without any, all invalid values; without any, all inconsistencies.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Vec<TomlError>> {
        Self::read(&TomlFile::new(file, text))
    }

    fn read(text: &TomlFile) -> Result<Self, Vec<TomlError>> {
        let mut report = Report::new(text);
        let mut document = report.parse();
        if report.is_empty()
            && let Some(file) = report.read::<File>(&mut document)
            && report.is_empty()
        {
            let config = file.check(&mut report);
            if report.is_empty() {
                return Ok(config);
            }
        }
        Err(report.into_parts().0)
    }
}
