//! Generates `docs/reference/configuration.md` from the settings: texts, defaults, and the errors of wrong values.

use std::fmt::Write;

use documented::DocumentedFields;

use super::settings::{
    Cache, Config, Guest, Io, Metrics, Pressure, Probes, Recharge, Slab, UnmanagedShare, Unmapped,
    Weights,
};
use super::tenant::RuleKeys;

/// The reference as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut out = HEAD.to_owned();
    let defaults = toml::Table::try_from(Config::default()).unwrap_or_default();
    section(&mut out, "", &keys::<Config>(), &defaults);
    for (name, fields) in [
        ("probes", keys::<Probes>()),
        ("metrics", keys::<Metrics>()),
        ("io", keys::<Io>()),
        ("recharge", keys::<Recharge>()),
        ("cache", keys::<Cache>()),
        ("pressure", keys::<Pressure>()),
        ("unmanaged", keys::<UnmanagedShare>()),
        ("unmapped", keys::<Unmapped>()),
        ("slab", keys::<Slab>()),
        ("guest", keys::<Guest>()),
        ("weights", keys::<Weights>()),
    ] {
        let about = Config::get_field_docs(name).unwrap_or_default();
        let _ = write!(out, "\n## `[{name}]`\n\n{}\n\n", joined(about));
        let defaults = defaults.get(name).and_then(toml::Value::as_table);
        section(
            &mut out,
            name,
            &fields,
            defaults.unwrap_or(&toml::Table::new()),
        );
    }
    let _ = write!(out, "\n## `[[tenant]]`\n\n{TENANT}\n\n");
    section(&mut out, "tenant", &keys::<RuleKeys>(), &toml::Table::new());
    out
}

const HEAD: &str = "\
# Configuration keys

<!-- Made by `make reference` from agent/src/config; do not edit. -->

The agent needs no configuration. `/etc/justitia/justitia.toml` is read if it exists, then
`/etc/justitia/justitia.toml.d/*.toml` in the order of their names: a later key replaces an earlier one.
`justitia run --check-config` says every error with its file and line.

## At the top

";

const TENANT: &str = "\
Overrides for the cgroups that a pattern matches. Any number of such tables. Of two that match a cgroup and give the same
key, the later one wins. A key that is not given changes nothing.";

/// A key and its text.
type Field = (&'static str, &'static str);

fn keys<T: DocumentedFields>() -> Vec<Field> {
    let names = T::FIELD_NAMES.iter().copied();
    names.zip(T::FIELD_DOCS.iter().copied()).collect()
}

/// The table of one section. For the top level: the keys that are not sections.
fn section(out: &mut String, name: &str, fields: &[Field], defaults: &toml::Table) {
    out.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
    for (key, about) in fields {
        let key = if *key == "pattern" { "match" } else { key };
        let default = defaults.get(key);
        if name.is_empty() && default.is_none_or(toml::Value::is_table) {
            continue;
        }
        let default = match default {
            Some(value) => format!("`{value}`"),
            None => "none".to_owned(),
        };
        let expected = expected(name, key).replace('|', "\\|");
        let _ = writeln!(
            out,
            "| `{key}` | {expected} | {default} | {} |",
            joined(about)
        );
    }
}

/// The value that the reader's error says it expects of a key.
fn expected(section: &str, key: &str) -> String {
    // A string that is no valid number, path, glob or name.
    let wrong = format!("{key} = \"[\"");
    let error = match section {
        "" => toml::from_str::<Config>(&wrong).err(),
        "tenant" => toml::from_str::<RuleKeys>(&wrong).err(),
        _ => toml::from_str::<Config>(&format!("[{section}]\n{wrong}")).err(),
    };
    let said = error.map(|e| e.message().to_owned()).unwrap_or_default();
    let expected = said.split_once("expected ").map_or("", |(_, rest)| rest);
    let expected = expected.split(", found").next().unwrap_or_default();
    expected.to_owned()
}

/// A text of several lines as one.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_and_every_key_is_listed() {
        let text = markdown();
        let defaults = toml::Table::try_from(Config::default()).unwrap();
        for (name, value) in &defaults {
            let keys = match value {
                toml::Value::Table(table) => {
                    assert!(text.contains(&format!("\n## `[{name}]`\n")), "{name}");
                    table.keys().collect()
                }
                _ => vec![name],
            };
            for key in keys {
                assert!(text.contains(&format!("\n| `{key}` | ")), "{name}.{key}");
            }
        }
    }
}
