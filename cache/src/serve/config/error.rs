//! Errors of a configuration, with file and line.

use super::name::{NAME, is_name};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// What is wrong with a configuration, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; `None` when it is not one line's fault.
    pub line: Option<usize>,
    /// What was expected and what was found.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", self.what)
    }
}

impl std::error::Error for ConfigError {}

/// Collects the errors of one file.
pub(super) struct Checker<'a> {
    pub(super) file: &'a Path,
    pub(super) text: &'a str,
    pub(super) errors: Vec<ConfigError>,
}

impl Checker<'_> {
    pub(super) fn error(&mut self, at: Option<usize>, what: String) {
        let line = at.map(|at| self.text[..at.min(self.text.len())].matches('\n').count() + 1);
        self.errors.push(ConfigError {
            file: self.file.into(),
            line,
            what,
        });
    }

    pub(super) fn unique(
        &mut self,
        seen: &mut BTreeSet<String>,
        what: &str,
        name: &Spanned<String>,
    ) {
        let text = name.get_ref();
        let at = Some(name.span().start);
        if !is_name(text) {
            self.error(
                at,
                format!("expected a {what} name of {NAME}, found {text:?}"),
            );
        } else if !seen.insert(text.clone()) {
            self.error(
                at,
                format!("expected every {what} once, found {text:?} again"),
            );
        }
    }
}
