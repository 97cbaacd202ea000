//! Which key of a table a position is of.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What a position is that of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// A key, or its value.
    Any,
    /// A table: something is missing in it.
    Table,
}

/// The key at this position, after those of the tables that it is in: `cache.swap`. `None` where there is none.
pub(super) fn key_at(table: &DeTable<'_>, at: usize, of: Of) -> Option<String> {
    Some(path(table, at, of)?.join("."))
}

fn path(table: &DeTable<'_>, at: usize, of: Of) -> Option<Vec<String>> {
    table.iter().find_map(|(key, value)| {
        let here = of == Of::Any && covers(&key.span(), at);
        let below = below(value, at, of).or_else(|| here.then(Vec::new))?;
        let mut path = vec![key.get_ref().to_string()];
        path.extend(below);
        Some(path)
    })
}

/// The keys below a value that lead to this position; none if it is its own. A table's keys may stand elsewhere than its header.
fn below(value: &Spanned<DeValue<'_>>, at: usize, of: Of) -> Option<Vec<String>> {
    let here = covers(&value.span(), at);
    let (found, here) = match value.get_ref() {
        DeValue::Table(inner) => (path(inner, at, of), here),
        DeValue::Array(items) => (items.iter().find_map(|item| below(item, at, of)), here),
        _ => (None, here && of == Of::Any),
    };
    found.or_else(|| here.then(Vec::new))
}

/// Whether a part of a text has this position; where a value is missing it has none but its beginning.
pub(super) fn covers(span: &Range<usize>, at: usize) -> bool {
    span.contains(&at) || span.start == at
}
