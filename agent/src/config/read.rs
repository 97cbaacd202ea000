//! One file's text into a table without errors. Serde ends at the first error, and every error is to be told: so each key
//! is read on its own, and those that are wrong are left out of the table.

use justitia_cgroup_tree::Rule;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::report::Report;
use super::settings::Config;
use super::tenant::{self, RuleKeys};

type Key<'a> = Spanned<DeString<'a>>;
type Value<'a> = Spanned<DeValue<'a>>;

/// The right part of a file.
#[derive(Default)]
pub(super) struct Document<'a> {
    /// Keys and sections, but for the rules.
    pub table: DeTable<'a>,
    /// `[[tenant]]`, in the order of the file.
    pub rules: Vec<Rule>,
}

impl<'a> Document<'a> {
    /// Parses `text`; what is wrong goes to `report`.
    pub(super) fn parse(text: &'a str, report: &mut Report<'_>) -> Self {
        let (parsed, errors) = DeTable::parse_recoverable(text);
        errors.iter().for_each(|error| report.toml(error, 0));
        let parsed = parsed.into_inner();
        let mut document = Self::default();
        for (key, value) in parsed {
            if key.get_ref() == "tenant" {
                document.rules = rules(value, report);
            } else if let Some(value) = without_errors(&key, value, report) {
                document.table.insert(key, value);
            }
        }
        document
    }

    /// Adds what a later file says: its keys replace earlier ones, its rules come after them.
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

    /// The configuration that the files say together.
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

/// The value of a top-level key without the keys in it that are wrong; `None` if it is wrong as a whole.
fn without_errors<'a>(
    key: &Key<'a>,
    value: Value<'a>,
    report: &mut Report<'_>,
) -> Option<Value<'a>> {
    let span = value.span();
    let DeValue::Table(section) = value.get_ref() else {
        return check::<Config>(key, &value, report).then_some(value);
    };
    let section_of = |table| Spanned::new(span.clone(), DeValue::Table(table));
    if !check::<Config>(key, &section_of(DeTable::new()), report) {
        return None;
    }
    let mut right = DeTable::new();
    for (inner, value) in section {
        let one = DeTable::from_iter([(inner.clone(), value.clone())]);
        if check::<Config>(key, &section_of(one), report) {
            right.insert(inner.clone(), value.clone());
        }
    }
    Some(section_of(right))
}

/// Whether `T` accepts a table of this key alone. If not, the error goes to `report`.
fn check<'a, T: Deserialize<'a>>(
    key: &Key<'a>,
    value: &Value<'a>,
    report: &mut Report<'_>,
) -> bool {
    let span = value.span();
    let table = DeTable::from_iter([(key.clone(), value.clone())]);
    let table = Spanned::new(span.clone(), table);
    let read = T::deserialize(toml::Deserializer::from(table));
    if let Err(error) = &read {
        report.toml(error, span.start);
    }
    read.is_ok()
}

fn rules(value: Value<'_>, report: &mut Report<'_>) -> Vec<Rule> {
    let found = value.get_ref().type_str();
    let at = value.span().start;
    let DeValue::Array(items) = value.into_inner() else {
        report.error(at, format!("expected tables [[tenant]], found a {found}"));
        return Vec::new();
    };
    let items = items.into_iter();
    items.filter_map(|item| rule(item, report)).collect()
}

fn rule(item: Value<'_>, report: &mut Report<'_>) -> Option<Rule> {
    tenant::doubt(&item, report);
    let keys = item.get_ref().as_table().cloned();
    let at = item.span().start;
    let error = match RuleKeys::deserialize(toml::de::ValueDeserializer::from(item)) {
        Ok(keys) => {
            let rule = keys.into_rule();
            if rule.is_none() {
                report.error(at, NO_MATCH);
            }
            return rule;
        }
        Err(error) => error,
    };
    let Some(keys) = keys else {
        report.toml(&error, at);
        return None;
    };
    if !keys.contains_key("match") {
        report.error(at, NO_MATCH);
    }
    for (key, value) in &keys {
        check::<RuleKeys>(key, value, report);
    }
    None
}

/// The error of a rule without a pattern.
const NO_MATCH: &str = "expected a [[tenant]] with a `match`, found none";
