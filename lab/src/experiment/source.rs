//! A definition as it is written: its own text and those of the definitions that it builds on, and the table that they
//! make together, of which every part knows its file and line.

use std::path::Path;

use anyhow::{Result, anyhow};
use justitia_common::toml_file::{Report, TomlError, TomlFile, faults};
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The key that names the definition to build on.
const BASE: &str = "base";

/// The texts of a definition: its own, that of its base, that of the base's base, and so on.
pub(super) struct Source {
    texts: Vec<TomlFile>,
}

/// A part of a definition.
#[derive(Debug)]
pub(super) enum Place {
    /// A key, after the keys of the tables that it is in.
    Key(Vec<String>),
    /// An element of an array at the top level: the name, such as `phase`, and the element's number, from 0.
    Item(&'static str, usize),
}

impl Place {
    /// A key at the top level.
    pub(super) fn top(key: &str) -> Self {
        Self::Key(vec![key.to_owned()])
    }

    /// A key of a table at the top level.
    pub(super) fn within(table: &str, key: &str) -> Self {
        Self::Key(vec![table.to_owned(), key.to_owned()])
    }
}

impl Source {
    /// The definition and all that it builds on. `find` returns the file and the text of a base by its name.
    pub(super) fn load(
        file: &str,
        text: &str,
        find: &dyn Fn(&str) -> Result<(String, String)>,
    ) -> Result<Self> {
        let mut source = Self { texts: Vec::new() };
        source.push(file, text);
        while let Some((name, byte)) = source.last_base()? {
            let (file, text) =
                find(&name).map_err(|error| source.error(byte, &format!("{error:#}")))?;
            if source
                .texts
                .iter()
                .any(|text| text.file() == Path::new(&file))
            {
                return Err(source.error(
                    byte,
                    &format!(
                        "expected a base that does not build on this experiment, found {name:?}"
                    ),
                ));
            }
            source.push(&file, &text);
        }
        Ok(source)
    }

    /// The texts, its own first.
    pub(super) fn into_texts(self) -> Vec<TomlFile> {
        self.texts
    }

    fn push(&mut self, file: &str, text: &str) {
        let begin = self.texts.last().map_or(0, |text| text.positions().end);
        let text = TomlFile::after(begin, Path::new(file), text);
        self.texts.push(text);
    }

    /// The base that the last text names, and where.
    fn last_base(&self) -> Result<Option<(String, usize)>> {
        let Some(text) = self.texts.last() else {
            return Ok(None);
        };
        let table = parse(text)?;
        let Some(value) = table.get_ref().get(BASE) else {
            return Ok(None);
        };
        match value.get_ref().as_str() {
            Some(name) => Ok(Some((name.to_owned(), value.span().start))),
            None => Err(self.error(value.span().start, "expected the name of an experiment")),
        }
    }

    /// The texts as one table: a key of a definition replaces that of its base. Of the tables at the top level
    /// (`[disk]`, `[machine]`, `[workload]`, `[files]`, `[paper]`) single keys are replaced, arrays as a whole.
    pub(super) fn merge(&self) -> Result<Spanned<DeTable<'_>>> {
        let mut all = Vec::new();
        for text in &self.texts {
            all.push(parse(text)?);
        }
        let mut merged = all
            .pop()
            .ok_or_else(|| anyhow!("expected a definition, found none"))?;
        while let Some(over) = all.pop() {
            lay_over(merged.get_mut(), over.into_inner());
        }
        merged.get_mut().remove(BASE);
        Ok(merged)
    }

    /// The table as a value.
    pub(super) fn read<T: DeserializeOwned>(&self, mut table: Spanned<DeTable<'_>>) -> Result<T> {
        let (found, read) = faults(&mut table);
        match read {
            Some(read) if found.is_empty() => Ok(read),
            _ => {
                let found = found
                    .iter()
                    .map(|(at, what)| self.toml_error(at.unwrap_or(0), what));
                Err(together(found))
            }
        }
    }

    /// An error at a part of the table.
    pub(super) fn error_at(&self, table: &DeTable<'_>, place: &Place, what: &str) -> anyhow::Error {
        self.error(position(table, place).unwrap_or(0), what)
    }

    fn error(&self, byte: usize, what: &str) -> anyhow::Error {
        self.toml_error(byte, what).into()
    }

    /// An error in the file that this byte is of.
    fn toml_error(&self, byte: usize, what: &str) -> TomlError {
        let mut texts = self.texts.iter().rev();
        match texts.find(|text| text.positions().start <= byte) {
            Some(text) => text.error(byte, what),
            None => TomlError::whole(Path::new(""), what),
        }
    }
}

fn parse(text: &TomlFile) -> Result<Spanned<DeTable<'_>>> {
    let mut report = Report::new(text);
    let table = report.parse();
    if report.is_empty() {
        return Ok(table);
    }
    Err(together(report.into_parts().0.into_iter()))
}

/// Several errors, a line each.
fn together(errors: impl Iterator<Item = TomlError>) -> anyhow::Error {
    let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
    anyhow!(errors.join("\n"))
}

fn lay_over<'a>(base: &mut DeTable<'a>, own: DeTable<'a>) {
    for (key, mut value) in own {
        let old = base.remove(key.get_ref().as_ref());
        if let (DeValue::Table(own), Some(DeValue::Table(mut merged))) =
            (value.get_mut(), old.map(Spanned::into_inner))
        {
            for (key, value) in std::mem::take(own) {
                merged.remove(key.get_ref().as_ref());
                merged.insert(key, value);
            }
            *own = merged;
        }
        base.insert(key, value);
    }
}

/// Where a part of a table is written; where a key is absent, the table that it would be in.
fn position(table: &DeTable<'_>, place: &Place) -> Option<usize> {
    match place {
        Place::Item(name, index) => {
            let items = table.get(*name)?.get_ref().as_array()?;
            Some(items.get(*index)?.span().start)
        }
        Place::Key(path) => {
            let mut table = table;
            let mut found = None;
            for name in path {
                let Some((key, value)) = table.get_key_value(name.as_str()) else {
                    break;
                };
                found = Some(key.span().start);
                let Some(inner) = value.get_ref().as_table() else {
                    break;
                };
                table = inner;
            }
            found
        }
    }
}
