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
const RENAMED: [Renamed; 13] = [
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
    renamed("recharge", "every", "interval"),
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

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::config::tests::load;

    /// The keys of the table, old and new, and a value that both accept.
    const KEYS: [(&str, &str, &str, &str); 13] = [
        ("", "state", "state_dir", "\"/run/x\""),
        ("", "latency", "trace_latency", "true"),
        ("", "eyes", "probes", "{max_cgroups = 20}"),
        ("", "credits", "io", "{enabled = true}"),
        ("", "ownership", "recharge", "{enabled = true}"),
        ("", "outside", "unmanaged", "{weight = 7}"),
        ("[probes]", "cgroups", "max_cgroups", "20"),
        ("[probes]", "requests", "max_inflight", "70"),
        ("[probes]", "shared_files", "max_shared_files", "70"),
        ("[metrics]", "tenants", "max_tenants", "7"),
        ("[pressure]", "thrash", "full_avg10_max", "7"),
        ("[recharge]", "every", "interval", "\"10s\""),
        ("[[tenant]]\nmatch = \"a\"", "floor", "min_cache", "7"),
    ];

    #[test]
    fn an_old_key_means_the_new_one_and_is_warned_of() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.toml");
        for (header, old, new, value) in KEYS {
            let read = |key: &str| {
                std::fs::write(&path, format!("{header}\n{key} = {value}\n")).unwrap();
                Config::check(Some(&path)).unwrap()
            };
            let (before, now) = (read(old), read(new));
            assert_eq!(format!("{:?}", before.config), format!("{:?}", now.config));
            assert_ne!(
                format!("{:?}", now.config),
                format!("{:?}", Config::default())
            );
            assert_eq!(now.warnings, []);
            let warning = before.warnings[0].to_string();
            assert_eq!(before.warnings.len(), 1);
            let line = 2 + header.matches('\n').count();
            assert!(warning.contains(&format!("j.toml:{line}: ")), "{warning}");
            for name in [old, new] {
                assert!(warning.contains(name), "{warning}");
            }
        }
    }

    #[test]
    fn an_old_key_beside_the_new_one_is_an_error() {
        for (header, old, new, value) in KEYS {
            let text = format!("{header}\n{new} = {value}\n{old} = {value}\n");
            let errors = load(&[("j.toml", &text)]).unwrap_err();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].contains("found both: "), "{errors:?}");
        }
        // In another file the new one replaces it.
        let files = [
            ("j.toml", "[outside]\nweight = 3\n"),
            ("j.toml.d/10.toml", "[unmanaged]\nweight = 4\n"),
        ];
        assert_eq!(load(&files).unwrap().unmanaged.weight.get(), 4);
    }
}
