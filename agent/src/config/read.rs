//! Parses one file into a table without errors.

use justitia_cgroup_tree::Rule;
use justitia_common::toml_file::{Report, faults};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::Config;
use super::tenant::{self, RuleKeys};

type Value<'a> = Spanned<DeValue<'a>>;

/// The valid part of a file.
#[derive(Default)]
pub(super) struct Document<'a> {
    /// Keys and sections, without the rules.
    pub table: DeTable<'a>,
    /// `[[tenant]]`, in the order of the file.
    pub rules: Vec<Rule>,
}

impl<'a> Document<'a> {
    /// Parses a file. Errors go to `report`; their keys are left out.
    pub(super) fn parse(report: &mut Report<'a>) -> Self {
        let mut parsed = report.parse();
        let rules = parsed.get_mut().remove("tenant");
        let rules = rules.map_or_else(Vec::new, |value| rules_of(value, report));
        let mut table = DeTable::new();
        // Each section by itself: an error in one does not keep the others from being read.
        for (key, value) in std::mem::replace(parsed.get_mut(), DeTable::new()) {
            let one = DeTable::from_iter([(key, value)]);
            let mut one = Spanned::new(parsed.span(), one);
            if report.read::<Config>(&mut one).is_some() {
                table.extend(one.into_inner());
            }
        }
        Self { table, rules }
    }

    /// Merges a later file: its keys replace earlier ones, its rules come after them.
    pub(super) fn merge(&mut self, later: Self) {
        for (key, value) in later.table {
            let earlier = self.table.get_mut(&key).map(Spanned::get_mut);
            match (earlier, value.get_ref()) {
                (Some(DeValue::Table(section)), DeValue::Table(_)) => {
                    if let DeValue::Table(new) = value.into_inner() {
                        section.extend(new);
                    }
                }
                _ => drop(self.table.insert(key, value)),
            }
        }
        self.rules.extend(later.rules);
    }

    /// The configuration of all files together.
    ///
    /// # Errors
    /// None: each key has been read before.
    pub(super) fn into_config(self) -> Result<Config, toml::de::Error> {
        let table = Spanned::new(0..0, self.table);
        let mut config = Config::deserialize(toml::Deserializer::from(table))?;
        config.rules = self.rules;
        Ok(config)
    }
}

fn rules_of(value: Value<'_>, report: &mut Report<'_>) -> Vec<Rule> {
    let found = value.get_ref().type_str();
    let at = value.span().start;
    let DeValue::Array(items) = value.into_inner() else {
        let found = match found {
            "table" => "[tenant]: write two brackets".to_owned(),
            other => format!("a {other}"),
        };
        report.error(at, format!("expected [[tenant]], found {found}"));
        return Vec::new();
    };
    let items = items.into_iter();
    items.filter_map(|item| rule(item, report)).collect()
}

fn rule(item: Value<'_>, report: &mut Report<'_>) -> Option<Rule> {
    tenant::doubt(&item, report);
    let span = item.span();
    let at = span.start;
    let found = item.get_ref().type_str();
    let DeValue::Table(keys) = item.into_inner() else {
        report.error(at, format!("expected a table [[tenant]], found a {found}"));
        return None;
    };
    let is_about = |key: &&str| keys.contains_key(*key);
    let is_about_some = tenant::SUBJECTS.iter().any(is_about);
    if !is_about_some {
        report.error(at, NO_MATCH);
    }
    let (faults, read) = faults::<RuleKeys>(&mut Spanned::new(span, keys));
    let right = is_about_some && faults.is_empty();
    for (at, what) in faults {
        report.error(at, what);
    }
    Some(read.filter(|_| right)?.into_rule())
}

/// The error of a rule without a pattern.
const NO_MATCH: &str = "expected a [[tenant]] with `match`, `container`, `image`, `label`, `unit` or `domain`, found none of them";
