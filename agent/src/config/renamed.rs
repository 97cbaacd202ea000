//! Old names of keys: accepted for one release, with a warning that names the new one.

use toml::de::{DeTable, DeValue};

use super::report::Report;

/// A key that has a new name.
struct Renamed {
    /// Its table by the new name, `tenant` for each `[[tenant]]`; empty at the top.
    table: &'static str,
    old: &'static str,
    new: &'static str,
}

const fn renamed(table: &'static str, old: &'static str, new: &'static str) -> Renamed {
    Renamed { table, old, new }
}

/// Those at the top come first: the others are looked for below the new names.
const RENAMED: [Renamed; 12] = [
    renamed("", "state", "state_dir"),
    renamed("", "latency", "trace_latency"),
    renamed("", "eyes", "probes"),
    renamed("", "credits", "io"),
    renamed("", "ownership", "recharge"),
    renamed("", "outside", "unmanaged"),
    renamed("probes", "cgroups", "max_cgroups"),
    renamed("probes", "requests", "max_inflight"),
    renamed("probes", "shared_files", "max_shared_files"),
    renamed("metrics", "tenants", "max_tenants"),
    renamed("pressure", "thrash", "full_avg10_max"),
    renamed("tenant", "floor", "min_cache"),
];

/// Gives old keys of a file their new names, with a warning each. Both names in one table are an error; then the new one
/// counts.
pub(super) fn rename(document: &mut DeTable<'_>, report: &mut Report<'_>) {
    for key in &RENAMED {
        if key.table.is_empty() {
            rename_in(document, key, report);
            continue;
        }
        match document.get_mut(key.table).map(toml::Spanned::get_mut) {
            Some(DeValue::Table(table)) => rename_in(table, key, report),
            Some(DeValue::Array(items)) => {
                for item in items.iter_mut() {
                    if let DeValue::Table(table) = item.get_mut() {
                        rename_in(table, key, report);
                    }
                }
            }
            _ => {}
        }
    }
}

fn rename_in(table: &mut DeTable<'_>, key: &Renamed, report: &mut Report<'_>) {
    let Some((mut name, value)) = table.remove_entry(key.old) else {
        return;
    };
    let at = name.span().start;
    let is_table = matches!(value.get_ref(), DeValue::Table(_));
    let shown = |name: &str| match (is_table, key.table) {
        (true, _) => format!("[{name}]"),
        (false, "") => name.to_owned(),
        (false, "tenant") => format!("{name} of [[tenant]]"),
        (false, table) => format!("{name} of [{table}]"),
    };
    let (old, new) = (shown(key.old), shown(key.new));
    if table.contains_key(key.new) {
        report.error(
            at,
            format!(
                "expected one of {old} and {new}, found both: {old} is the old name, remove it"
            ),
        );
        return;
    }
    report.warn(
        at,
        format!(
            "{old} is now called {new}: rename it, the next release does not know the old name"
        ),
    );
    *name.get_mut() = key.new.into();
    table.insert(name, value);
}
