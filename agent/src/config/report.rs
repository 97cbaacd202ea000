//! Errors and warnings of one file, each with its line.

use std::path::Path;

use super::error::ConfigError;

/// Collects what is wrong with one file.
pub(super) struct Report<'a> {
    path: &'a Path,
    text: &'a str,
    errors: Vec<ConfigError>,
    warnings: Vec<ConfigError>,
}

impl<'a> Report<'a> {
    pub(super) const fn new(path: &'a Path, text: &'a str) -> Self {
        Self {
            path,
            text,
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// An error at the byte `offset` of the text.
    pub(super) fn error(&mut self, offset: usize, what: impl Into<String>) {
        let error = self.at(offset, what.into());
        self.errors.push(error);
    }

    /// A warning at the byte `offset` of the text.
    pub(super) fn warn(&mut self, offset: usize, what: impl Into<String>) {
        let warning = self.at(offset, what.into());
        self.warnings.push(warning);
    }

    /// An error of the TOML library; `offset` where it does not know the place.
    pub(super) fn toml(&mut self, error: &toml::de::Error, offset: usize) {
        let offset = error.span().map_or(offset, |span| span.start);
        self.error(offset, error.message());
    }

    /// Errors and warnings, by line.
    pub(super) fn into_parts(mut self) -> (Vec<ConfigError>, Vec<ConfigError>) {
        self.errors.sort_by_key(|e| e.line);
        self.warnings.sort_by_key(|w| w.line);
        (self.errors, self.warnings)
    }

    fn at(&self, offset: usize, what: String) -> ConfigError {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = 1 + before.bytes().filter(|b| *b == b'\n').count();
        ConfigError::at(self.path, line, what)
    }
}
