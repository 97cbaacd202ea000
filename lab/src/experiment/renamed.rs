//! Keys and values of definitions that have got other names. The old ones are accepted for one release.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// In which tables, the old key, the new key.
const KEYS: [(&[&str], &str, &str); 7] = [
    (&[], "contenders", "configurations"),
    (&["goal"], "contender", "configuration"),
    (&["paper", "results"], "contender", "configuration"),
    (&["phase"], "within", "timeout"),
    (&["tenant"], "beside", "background"),
    (&["tenant"], "words", "variables"),
    (&["machine"], "bare", "hide_hypervisor"),
];

/// In which tables, of which key, the old value, the new value.
const VALUES: [(&[&str], &str, &str, &str); 11] = [
    (&["phase"], "do", "settle", "sync"),
    (&["phase"], "do", "watch", "sample"),
    (&[], "metric", "misplaced", "misallocated"),
    (&[], "metric", "pv_watched", "pv_sampled"),
    (&["goal"], "metric", "misplaced", "misallocated"),
    (&["goal"], "metric", "pv_watched", "pv_sampled"),
    (&["paper"], "metric", "misplaced", "misallocated"),
    (&["paper"], "metric", "pv_watched", "pv_sampled"),
    (&[], "configurations", "justitia+credits", "justitia+io"),
    (
        &["goal"],
        "configuration",
        "justitia+credits",
        "justitia+io",
    ),
    (
        &["paper", "results"],
        "configuration",
        "justitia+credits",
        "justitia+io",
    ),
];

/// An old name that a definition has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Renamed {
    /// Where it is written.
    pub byte: usize,
    /// The old name.
    pub old: &'static str,
    /// The new name.
    pub new: &'static str,
}

/// Replaces the old names, and returns those that were found.
pub(super) fn rename(table: &mut DeTable<'_>) -> Vec<Renamed> {
    let mut found = Vec::new();
    for (path, old, new) in KEYS {
        for_each_table(table, path, &mut |table| {
            if let Some((key, value)) = table.remove_entry(old) {
                let span = key.span();
                found.push(Renamed {
                    byte: span.start,
                    old,
                    new,
                });
                table.insert(Spanned::new(span, Cow::Borrowed(new)), value);
            }
        });
    }
    for (path, key, old, new) in VALUES {
        for_each_table(table, path, &mut |table| {
            let Some(value) = table.get_mut(key) else {
                return;
            };
            rename_value(value, &mut found, old, new);
        });
    }
    found
}

fn rename_value(
    value: &mut Spanned<DeValue<'_>>,
    found: &mut Vec<Renamed>,
    old: &'static str,
    new: &'static str,
) {
    let byte = value.span().start;
    match value.get_mut() {
        DeValue::String(text) if text == old => {
            *text = Cow::Borrowed(new);
            found.push(Renamed { byte, old, new });
        }
        DeValue::Array(items) => {
            for item in items.iter_mut() {
                rename_value(item, found, old, new);
            }
        }
        _ => {}
    }
}

/// Visits the table at the end of a path of keys, or every one of an array of tables there.
fn for_each_table<'i>(
    table: &mut DeTable<'i>,
    path: &[&str],
    visit: &mut dyn FnMut(&mut DeTable<'i>),
) {
    let Some((first, rest)) = path.split_first() else {
        visit(table);
        return;
    };
    match table.get_mut(*first).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => for_each_table(inner, rest, visit),
        Some(DeValue::Array(items)) => {
            for item in items.iter_mut() {
                if let DeValue::Table(inner) = item.get_mut() {
                    for_each_table(inner, rest, visit);
                }
            }
        }
        _ => {}
    }
}
