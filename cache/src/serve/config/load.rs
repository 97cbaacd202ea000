//! Reading `cache.toml`.

use super::error::{Checker, ConfigError};
use super::faults::faults;
use super::tables::File;
use super::types::Config;
use std::path::Path;
use toml::de::DeTable;

/// The largest configuration file, bytes.
const MAX_BYTES: u64 = 1 << 20;

impl Config {
    /// Reads a configuration: a regular file of at most 1 MiB.
    ///
    /// # Errors
    /// Everything that is wrong with it, as far as it can be read.
    pub fn load(file: &Path) -> Result<Self, Vec<ConfigError>> {
        let text = justitia_regular_file::read_text(file, MAX_BYTES).map_err(|e| {
            vec![ConfigError {
                file: file.into(),
                line: None,
                what: format!("expected a configuration that can be read: {e}"),
            }]
        })?;
        Self::parse(file, &text)
    }

    /// Reads a configuration from `text`; `file` names it in errors.
    ///
    /// # Errors
    /// Everything that is wrong with it: with its syntax; else with its values; else with how they fit together.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Vec<ConfigError>> {
        let mut checker = Checker {
            file,
            text,
            errors: Vec::new(),
        };
        let (document, syntax) = DeTable::parse_recoverable(text);
        for error in &syntax {
            checker.error(error.span().map(|s| s.start), error.message().to_owned());
        }
        if !syntax.is_empty() {
            return Err(checker.errors);
        }
        match toml::from_str::<File>(text) {
            Err(error) => {
                for (at, what) in faults(document) {
                    checker.error(at, what);
                }
                if checker.errors.is_empty() {
                    checker.error(error.span().map(|s| s.start), error.message().to_owned());
                }
            }
            Ok(read) => {
                let config = read.check(&mut checker);
                if checker.errors.is_empty() {
                    return Ok(config);
                }
            }
        }
        Err(checker.errors)
    }
}
