//! TOML files of which everything that is wrong is told at once, each with its file, its line, what was expected, what
//! was found, and what to do. Serde ends at the first error: here, what it refuses is taken out, and it reads again.

mod key;
pub mod value;
mod words;

use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use justitia_api::escape;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

pub use value::Size;
pub use words::{did_you_mean, known, none_of, reworded, unique};

/// The largest file that is read, bytes: some ten thousand tables.
pub const MAX_BYTES: u64 = 1 << 20;

/// The most errors of one table that are looked for: each takes a reading of the table.
const MAX_FAULTS: usize = 100;

/// An error or a warning. Its text is safe to print to a terminal, whatever the file and its name hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TomlError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; `None` if it is about the file as a whole.
    pub line: Option<usize>,
    /// What was expected, what was found, and what to do.
    pub what: String,
}

impl TomlError {
    /// About the whole of `file`.
    #[must_use]
    pub fn whole(file: &Path, what: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            what: what.into(),
        }
    }
}

impl fmt::Display for TomlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", escape::encode(self.file.as_os_str()))?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", escape::plain(&self.what))
    }
}

impl std::error::Error for TomlError {}

/// The text of a file, and its name for errors.
#[derive(Clone, Debug)]
pub struct TomlFile {
    file: PathBuf,
    /// The text, after as many line ends as there are bytes before it.
    padded: String,
    begin: usize,
    /// The positions of its line ends.
    ends: Vec<usize>,
}

impl TomlFile {
    /// `text`, which `file` names in errors.
    #[must_use]
    pub fn new(file: &Path, text: &str) -> Self {
        Self::after(0, file, text)
    }

    /// As [`TomlFile::new`], with the positions that it would have after `begin` bytes: those of files that are merged
    /// say the file, too.
    #[must_use]
    pub fn after(begin: usize, file: &Path, text: &str) -> Self {
        let mut padded = "\n".repeat(begin);
        padded.push_str(text);
        let ends = text.match_indices('\n').map(|(at, _)| begin + at);
        Self {
            file: file.to_owned(),
            ends: ends.collect(),
            padded,
            begin,
        }
    }

    /// Reads a regular file of at most 1 MiB. A pipe or a device is refused without waiting for it.
    ///
    /// # Errors
    /// What was expected and what was found.
    pub fn read(file: &Path) -> Result<Self, TomlError> {
        let bytes = crate::regular_file::read(file, MAX_BYTES).map_err(|error| {
            let what = match error.kind() {
                // It says what was expected and what stands there.
                ErrorKind::Other => format!("{error}: name a TOML file of at most 1 MiB"),
                _ => format!("expected a TOML file that can be read, found none: {error}"),
            };
            TomlError::whole(file, what)
        })?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error
                .as_bytes()
                .iter()
                .take(error.utf8_error().valid_up_to());
            TomlError {
                line: Some(valid.filter(|byte| **byte == b'\n').count() + 1),
                ..TomlError::whole(
                    file,
                    "expected text in UTF-8, found other bytes: save the file as UTF-8",
                )
            }
        })?;
        Ok(Self::new(file, &text))
    }

    /// Its name.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What it holds.
    #[must_use]
    pub fn text(&self) -> &str {
        self.padded.get(self.begin..).unwrap_or_default()
    }

    /// The positions that are its own.
    #[must_use]
    pub const fn positions(&self) -> Range<usize> {
        self.begin..self.padded.len()
    }

    /// An error at this position, about the key that stands there.
    #[must_use]
    pub fn error(&self, at: impl Into<Option<usize>>, what: impl Into<String>) -> TomlError {
        self.error_in(self.table().get_ref(), at.into(), what.into())
    }

    /// Its tables, as far as its syntax is right.
    fn table(&self) -> Spanned<DeTable<'_>> {
        DeTable::parse_recoverable(&self.padded).0
    }

    /// The same, where these are its tables.
    fn error_in(&self, table: &DeTable<'_>, at: Option<usize>, what: String) -> TomlError {
        let of = match what.starts_with("expected the key ") {
            true => key::Of::Table,
            false => key::Of::Any,
        };
        let key = at.and_then(|at| key::key_at(table, at, of));
        // An unknown key is named by the error itself.
        let known = match what.contains(", found the unknown key ") {
            true => key.and_then(|key| Some(key.rsplit_once('.')?.0.to_owned())),
            false => key,
        };
        let what = match known {
            Some(key) => format!("{key}: {what}"),
            None => what,
        };
        self.syntax_error(at, what)
    }

    /// The same without the key.
    fn syntax_error(&self, at: Option<usize>, what: impl Into<String>) -> TomlError {
        let line = at.map(|at| self.ends.partition_point(|end| *end < at) + 1);
        TomlError {
            line,
            ..TomlError::whole(&self.file, what)
        }
    }
}

/// Collects what is wrong with a file, and what can hardly be meant.
#[derive(Debug)]
pub struct Report<'a> {
    text: &'a TomlFile,
    /// The tables of the text, once there is an error whose key is looked for.
    table: Option<Spanned<DeTable<'a>>>,
    errors: Vec<TomlError>,
    warnings: Vec<TomlError>,
    /// Lines of which the syntax is wrong; after a header that is, those up to the next: whatever else is wrong there
    /// follows from it.
    unreadable: BTreeSet<usize>,
}

impl<'a> Report<'a> {
    /// Nothing is wrong yet.
    #[must_use]
    pub const fn new(text: &'a TomlFile) -> Self {
        Self {
            text,
            table: None,
            errors: Vec::new(),
            warnings: Vec::new(),
            unreadable: BTreeSet::new(),
        }
    }

    /// The tables of the file, as far as its syntax is right.
    pub fn parse(&mut self) -> Spanned<DeTable<'a>> {
        let (table, errors) = DeTable::parse_recoverable(&self.text.padded);
        for error in errors {
            let at = error.span().map(|span| span.start);
            self.push(self.text.syntax_error(at, reworded(error.message())));
        }
        let lines: Vec<&str> = self.text.text().lines().collect();
        let wrong = self.errors.iter().filter_map(|error| error.line);
        self.unreadable = wrong.flat_map(|line| consequences(&lines, line)).collect();
        table
    }

    /// An error at this position.
    pub fn error(&mut self, at: impl Into<Option<usize>>, what: impl Into<String>) {
        let error = match self.errors.len() < MAX_FAULTS {
            true => {
                let table = self.table.get_or_insert_with(|| self.text.table());
                self.text.error_in(table.get_ref(), at.into(), what.into())
            }
            // To find a key takes a look at all of them.
            false => self.text.syntax_error(at.into(), what),
        };
        self.push(error);
    }

    /// An error at this value.
    pub fn error_at<T>(&mut self, value: &Spanned<T>, what: impl Into<String>) {
        self.error(value.span().start, what);
    }

    fn push(&mut self, error: TomlError) {
        let follows = |line| self.unreadable.contains(&line);
        if !error.line.is_some_and(follows) {
            self.errors.push(error);
        }
    }

    /// A warning at this position. It names the key itself, if it is about one.
    pub fn warn(&mut self, at: impl Into<Option<usize>>, what: impl Into<String>) {
        self.warnings.push(self.text.syntax_error(at.into(), what));
    }

    /// Takes out of `table` what `T` does not accept, and adds the errors. `None` if what is left is still refused: a
    /// key is missing at the top, or there are more than a hundred errors.
    pub fn read<T: DeserializeOwned>(&mut self, table: &mut Spanned<DeTable<'_>>) -> Option<T> {
        let (faults, read) = faults(table);
        for (at, what) in faults {
            self.error(at, what);
        }
        read
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Errors and warnings, by line.
    #[must_use]
    pub fn into_parts(mut self) -> (Vec<TomlError>, Vec<TomlError>) {
        self.errors.sort_by_key(|error| error.line);
        self.warnings.sort_by_key(|warning| warning.line);
        (self.errors, self.warnings)
    }
}

/// The lines of which errors follow from wrong syntax in this line: itself, and if it is a header the keys below it.
fn consequences(lines: &[&str], line: usize) -> Range<usize> {
    let header = |line: &&&str| line.trim_start().starts_with('[');
    let mut from = lines.iter().skip(line - 1);
    let keys = match from.next().filter(header) {
        Some(_) => from.take_while(|line| !header(line)).count(),
        None => 0,
    };
    line..line + 1 + keys
}

/// What is wrong, and at which position.
pub type Fault = (Option<usize>, String);

/// Takes out of `table` what `T` does not accept. Returns what is wrong with that, and what the rest says; `None` as
/// [`Report::read`] says.
pub fn faults<T: DeserializeOwned>(table: &mut Spanned<DeTable<'_>>) -> (Vec<Fault>, Option<T>) {
    let mut found = Vec::new();
    let mut removed: Vec<(usize, String)> = Vec::new();
    for _ in 0..MAX_FAULTS {
        let error = match T::deserialize(toml::Deserializer::from(table.clone())) {
            Ok(read) => return (found, Some(read)),
            Err(error) => error,
        };
        let at = error.span().map(|span| span.start);
        // A key that was wrong is missing now.
        let follows = removed.iter().any(|(of, key)| {
            at == Some(*of) && error.message() == format!("missing field `{key}`")
        });
        let fault = (at, reworded(error.message()));
        // Of tables below an unknown header each is taken out alone: it is one error.
        if !follows && !found.contains(&fault) {
            found.push(fault);
        }
        let begin = table.span().start;
        match at.and_then(|at| remove(begin, table.get_mut(), at)) {
            Some(key) => removed.push(key),
            None => break,
        }
    }
    (found, None)
}

/// Removes the innermost entry at this position of a table that begins at `begin`. Returns where the table begins that it
/// was in, and its key.
fn remove(begin: usize, table: &mut DeTable<'_>, at: usize) -> Option<(usize, String)> {
    for (_, value) in table.iter_mut() {
        let span = value.span();
        match value.get_mut() {
            DeValue::Table(inner) => {
                if let Some(removed) = remove(span.start, inner, at) {
                    return Some(removed);
                }
            }
            DeValue::Array(items) => {
                if let Some(removed) = remove_item(items, at) {
                    return Some(removed);
                }
            }
            _ => {}
        }
    }
    let key = table
        .iter()
        .find(|(key, value)| key::covers(&key.span(), at) || key::covers(&value.span(), at))
        .map(|(key, _)| key.get_ref().to_string())?;
    table.remove(key.as_str());
    Some((begin, key))
}

/// As [`remove`], of an array; where an item is to go as a whole, the key is empty.
fn remove_item(items: &mut DeArray<'_>, at: usize) -> Option<(usize, String)> {
    for item in items.iter_mut() {
        let begin = item.span().start;
        if let DeValue::Table(inner) = item.get_mut()
            && let Some(removed) = remove(begin, inner, at)
        {
            return Some(removed);
        }
    }
    let index = items
        .iter()
        .position(|item| key::covers(&item.span(), at))?;
    let begin = items.first().map_or(0, |item| item.span().start);
    *items = std::mem::replace(items, DeArray::new())
        .into_iter()
        .enumerate()
        .filter_map(|(i, item)| (i != index).then_some(item))
        .collect();
    Some((begin, String::new()))
}

#[cfg(test)]
mod tests;
