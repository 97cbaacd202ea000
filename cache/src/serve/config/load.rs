//! Reading `cache.toml`.

use super::check::{Checker, ConfigError};
use super::tables::{
    DiskTable, File, ListenTable, MemoryTable, PoolTable, PortTable, SsdTable, TlsTable, VmTable,
};
use super::types::Config;
use serde::de::DeserializeOwned;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// The largest configuration file, bytes.
const MAX_BYTES: u64 = 1 << 20;

impl Config {
    /// Reads a configuration: a regular file of at most 1 MiB.
    ///
    /// # Errors
    /// Everything that is wrong with it, as far as it can be read.
    pub fn load(file: &Path) -> Result<Self, Vec<ConfigError>> {
        let text = justitia_common::regular_file::read_text(file, MAX_BYTES).map_err(|e| {
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

// Every value of a configuration that cannot be read, not only the first.

/// What is wrong, and where in the text.
pub(super) type Fault = (Option<usize>, String);

/// What is wrong with a document whose syntax is right. Each table is read by itself.
pub(super) fn faults(mut document: Spanned<DeTable<'_>>) -> Vec<Fault> {
    let mut found = Vec::new();
    for (name, value) in take(
        document.get_mut(),
        &["memory", "ssd", "listen", "tls", "vm"],
    ) {
        match name {
            "memory" => table::<MemoryTable>(value, &mut found),
            "ssd" => table::<SsdTable>(value, &mut found),
            "listen" => table::<ListenTable>(value, &mut found),
            "tls" => table::<TlsTable>(value, &mut found),
            _ => each(value, &mut found, vm),
        }
    }
    let span = document.span();
    let rest = DeValue::Table(document.into_inner());
    table::<File>(Spanned::new(span, rest), &mut found);
    found.sort_by_key(|(at, _)| *at);
    found
}

fn vm(mut value: Spanned<DeValue<'_>>, found: &mut Vec<Fault>) {
    let inner = match value.get_mut() {
        DeValue::Table(vm) => take(vm, &["pool", "disk", "port"]),
        _ => Vec::new(),
    };
    for (name, inner) in inner {
        match name {
            "pool" => each(inner, found, table::<PoolTable>),
            "port" => table::<PortTable>(inner, found),
            _ => each(inner, found, table::<DiskTable>),
        }
    }
    table::<VmTable>(value, found);
}

/// Calls `read` with each table of a list.
fn each<'a>(
    list: Spanned<DeValue<'a>>,
    found: &mut Vec<Fault>,
    read: impl Fn(Spanned<DeValue<'a>>, &mut Vec<Fault>),
) {
    let at = list.span().start;
    match list.into_inner() {
        DeValue::Array(list) => list.iter().for_each(|item| read(item.clone(), found)),
        other => found.push((
            Some(at),
            format!("expected a list of tables, found {}", other.type_str()),
        )),
    }
}

/// The errors of a table: the entry of the first error is removed, and the table is read again, until there is none.
fn table<T: DeserializeOwned>(mut value: Spanned<DeValue<'_>>, found: &mut Vec<Fault>) {
    let mut gone: Vec<String> = Vec::new();
    while let Err(error) = T::deserialize(ValueDeserializer::from(value.clone())) {
        let ours = |key: &String| error.message().contains(&format!("missing field `{key}`"));
        if gone.iter().any(ours) {
            return;
        }
        let at = error.span().map(|span| span.start);
        found.push((at, error.message().to_owned()));
        let (DeValue::Table(table), Some(at)) = (value.get_mut(), at) else {
            return;
        };
        let mut entries = table.iter();
        let about =
            entries.find(|(key, value)| key.span().contains(&at) || value.span().contains(&at));
        let Some(key) = about.map(|(key, _)| key.get_ref().to_string()) else {
            return;
        };
        table.remove(key.as_str());
        gone.push(key);
    }
}

/// Removes the entries of these names from a table.
fn take<'a>(
    table: &mut DeTable<'a>,
    names: &[&'static str],
) -> Vec<(&'static str, Spanned<DeValue<'a>>)> {
    let mut taken = Vec::new();
    for name in names {
        taken.extend(table.remove(*name).map(|value| (*name, value)));
    }
    taken
}
