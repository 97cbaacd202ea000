//! One file into the configuration, with every error at its line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use justitia_share::Weight;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tenant::{Override, Rule};
use super::{Config, ConfigError};
use crate::plan::DemandModel;

type Table<'a> = DeTable<'a>;
type Value<'a> = Spanned<DeValue<'a>>;

/// Where errors go, and where in the text they are.
struct Report<'a> {
    path: &'a Path,
    text: &'a str,
    errors: &'a mut Vec<ConfigError>,
    warnings: &'a mut Vec<ConfigError>,
}

impl Report<'_> {
    fn at(&mut self, offset: usize, what: String) {
        let error = self.of(offset, what);
        self.errors.push(error);
    }

    fn warn(&mut self, offset: usize, what: impl Into<String>) {
        let warning = self.of(offset, what.into());
        self.warnings.push(warning);
    }

    fn of(&self, offset: usize, what: String) -> ConfigError {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = 1 + before.bytes().filter(|b| *b == b'\n').count();
        ConfigError {
            path: self.path.to_owned(),
            line,
            what,
        }
    }

    fn expected(&mut self, what: &str, found: &Value<'_>) {
        let text = self
            .text
            .get(found.span())
            .unwrap_or("")
            .lines()
            .next()
            .unwrap_or("");
        let kind = found.get_ref().type_str();
        self.at(
            found.span().start,
            format!("expected {what}, found {kind} {text}"),
        );
    }

    /// Reads a value with `read`, or reports what was expected.
    fn take<T>(
        &mut self,
        value: &Value<'_>,
        what: &str,
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Option<T> {
        let taken = read(value.get_ref());
        if taken.is_none() {
            self.expected(what, value);
        }
        taken
    }

    /// Calls `each` for every key of a table value; a key that `each` does not know is an error.
    fn table(
        &mut self,
        name: &str,
        value: &Value<'_>,
        known: &str,
        mut each: impl FnMut(&mut Self, &str, &Value<'_>) -> bool,
    ) {
        match value.get_ref() {
            DeValue::Table(table) => self.entries(name, table, known, &mut each),
            _ => self.expected(&format!("a table{}", name.replace(" in", "")), value),
        }
    }

    fn entries(
        &mut self,
        name: &str,
        table: &Table<'_>,
        known: &str,
        each: &mut dyn FnMut(&mut Self, &str, &Value<'_>) -> bool,
    ) {
        for (key, value) in table {
            if !each(self, key.get_ref(), value) {
                let found = format!("expected one of {known}{name}, found {:?}", key.get_ref());
                self.at(key.span().start, found);
            }
        }
    }
}

/// Applies the file's text to `config`. On errors the configuration is partly changed: throw it away.
pub fn apply(
    config: &mut Config,
    path: &Path,
    text: &str,
    errors: &mut Vec<ConfigError>,
    warnings: &mut Vec<ConfigError>,
) {
    let (document, syntax) = DeTable::parse_recoverable(text);
    let first = (errors.len(), warnings.len());
    let mut report = Report {
        path,
        text,
        errors,
        warnings,
    };
    for error in &syntax {
        let offset = error.span().map_or(0, |s| s.start);
        report.at(offset, error.message().to_owned());
    }
    let known = "socket, state, cpu_budget, latency, eyes, metrics, credits, ownership, cache, pressure, outside, tenant";
    report.entries("", document.get_ref(), known, &mut |report, key, value| {
        top(config, report, key, value)
    });
    errors[first.0..].sort_by_key(|e| e.line);
    warnings[first.1..].sort_by_key(|e| e.line);
}

fn top(config: &mut Config, report: &mut Report<'_>, key: &str, value: &Value<'_>) -> bool {
    match key {
        "socket" => set(&mut config.socket, report.take(value, ABSOLUTE, absolute)),
        "state" => set(&mut config.state, report.take(value, ABSOLUTE, absolute)),
        "cpu_budget" => {
            let percent = report.take(value, "a percentage from 0.1 to 100", percentage);
            set(&mut config.cpu_budget, percent.map(|p| p / 100.0));
        }
        "latency" => {
            let on = report.take(value, "true or false", |v| v.as_bool());
            set(&mut config.latency, on);
        }
        "eyes" => report.table(
            " in [eyes]",
            value,
            "cgroups, requests, shared_files",
            |report, key, value| {
                let (slot, range, what) = match key {
                    "cgroups" => (
                        &mut config.eyes.max_cgroups,
                        16..=65_535,
                        "a number from 16 to 65535",
                    ),
                    "requests" => (
                        &mut config.eyes.max_inflight,
                        64..=1 << 20,
                        "a number from 64 to 1048576",
                    ),
                    "shared_files" => (
                        &mut config.eyes.max_shared_files,
                        64..=1 << 20,
                        "a number from 64 to 1048576",
                    ),
                    _ => return false,
                };
                let number = |v: &DeValue<'_>| {
                    let number = u32::try_from(integer(v)?).ok()?;
                    range.contains(&number).then_some(number)
                };
                set(slot, report.take(value, what, number));
                true
            },
        ),
        "metrics" => report.table(
            " in [metrics]",
            value,
            "listen, tenants",
            |report, key, value| {
                match key {
                    "listen" => set(&mut config.metrics, report.take(value, LISTEN, listen)),
                    "tenants" => set(
                        &mut config.metrics_tenants,
                        report.take(value, "a number from 0 to 100000", tenants),
                    ),
                    _ => return false,
                }
                true
            },
        ),
        "credits" => report.table(" in [credits]", value, "enabled", |report, key, value| {
            if key == "enabled" {
                let on = report.take(value, "true or false", |v| v.as_bool());
                set(&mut config.credits, on);
            }
            key == "enabled"
        }),
        "ownership" => report.table(
            " in [ownership]",
            value,
            "enabled, every",
            |report, key, value| {
                match key {
                    "enabled" => {
                        let on = report.take(value, "true or false", |v| v.as_bool());
                        set(&mut config.ownership, on);
                    }
                    "every" => set(
                        &mut config.ownership_every,
                        report.take(value, "a duration from \"10s\" to \"1day\"", |v| {
                            duration(v).filter(|d| *d >= Duration::from_secs(10))
                        }),
                    ),
                    _ => return false,
                }
                true
            },
        ),
        "cache" => report.table(" in [cache]", value, "demand", |report, key, value| {
            if key == "demand" {
                let rule = report.take(value, "\"use\" or \"usage\"", demand);
                set(&mut config.policy.demand, rule);
            }
            key == "demand"
        }),
        "pressure" => report.table(" in [pressure]", value, "thrash", |report, key, value| {
            if key == "thrash" {
                let percent = report.take(value, "a percentage from 0.1 to 100", percentage);
                set(&mut config.policy.thrash_full, percent);
            }
            key == "thrash"
        }),
        "outside" => report.table(" in [outside]", value, "weight", |report, key, value| {
            if key == "weight" {
                set(&mut config.outside, report.take(value, WEIGHT, weight));
            }
            key == "weight"
        }),
        "tenant" => match value.get_ref() {
            DeValue::Array(list) => list.iter().for_each(|item| tenant(config, report, item)),
            _ => report.expected("tables [[tenant]]", value),
        },
        _ => return false,
    }
    true
}

fn demand(value: &DeValue<'_>) -> Option<DemandModel> {
    match value.as_str()? {
        "use" => Some(DemandModel::Use),
        "usage" => Some(DemandModel::Usage),
        _ => None,
    }
}

fn tenant(config: &mut Config, report: &mut Report<'_>, item: &Value<'_>) {
    let mut says = Override::default();
    let mut rule = None;
    let mut seen_match = false;
    let mut idle = Vec::new();
    report.table(
        " in [[tenant]]",
        item,
        "match, weight, floor, exclude, delegated",
        |report, key, value| {
            if let "weight" | "floor" = key {
                idle.push((key.to_owned(), value.span().start));
            }
            match key {
                "match" => {
                    seen_match = true;
                    let text = report.take(value, "a glob over cgroup paths, as a string", string);
                    if let Some(text) = &text {
                        doubt(report, value.span().start, text);
                    }
                    rule = text.and_then(|text| {
                        Rule::new(&text, Override::default())
                            .map_err(|what| report.at(value.span().start, what))
                            .ok()
                    });
                }
                "weight" => says.weight = report.take(value, WEIGHT, weight),
                "floor" => says.floor = report.take(value, "a size like \"64MiB\"", size),
                "delegated" => {
                    says.delegated = report.take(value, "true or false", |v| v.as_bool());
                }
                "exclude" => says.exclude = report.take(value, "true or false", |v| v.as_bool()),
                _ => return false,
            }
            true
        },
    );
    if !seen_match {
        report.at(
            item.span().start,
            "expected a [[tenant]] with a `match`, found none".to_owned(),
        );
    }
    if seen_match && says == Override::default() {
        report.warn(
            item.span().start,
            "this [[tenant]] changes nothing: expected weight, floor, exclude or delegated beside its match",
        );
    }
    if says.exclude == Some(true) {
        for (key, at) in idle {
            report.warn(
                at,
                format!("{key} counts for nothing beside exclude = true: take one of them away"),
            );
        }
    }
    if let Some(mut rule) = rule {
        rule.says = says;
        config.rules.push(rule);
    }
}

/// Warns of a `match` that is a glob, and that no cgroup's path can match.
fn doubt(report: &mut Report<'_>, at: usize, text: &str) {
    let path = text.trim_start_matches('/');
    if path.is_empty() {
        report.warn(
            at,
            format!(
                "match = {text:?} matches no cgroup: expected a path below the cgroup mount like \"system.slice/*\""
            ),
        );
    } else if path.ends_with('/') {
        report.warn(
            at,
            format!("match = {text:?} matches no cgroup: no path ends with a slash, take it away"),
        );
    }
    if path == MOUNT || path.starts_with(&format!("{MOUNT}/")) {
        report.warn(
            at,
            format!(
                "match = {text:?} matches no cgroup: a match is over the path below the cgroup mount, take /{MOUNT}/ away"
            ),
        );
    }
}

/// Where cgroups usually are, without the first slash.
const MOUNT: &str = "sys/fs/cgroup";
const WEIGHT: &str = "a weight from 1 to 10000";
const LISTEN: &str = "an address and a port like \"127.0.0.1:9742\", or \"\" for none";
const ABSOLUTE: &str = "an absolute path";

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

fn string(value: &DeValue<'_>) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn absolute(value: &DeValue<'_>) -> Option<PathBuf> {
    string(value).map(PathBuf::from).filter(|p| p.is_absolute())
}

fn listen(value: &DeValue<'_>) -> Option<Option<SocketAddr>> {
    let text = value.as_str()?;
    if text.is_empty() {
        return Some(None);
    }
    text.parse().ok().map(Some)
}

fn tenants(value: &DeValue<'_>) -> Option<usize> {
    let number = integer(value).filter(|n| *n <= 100_000)?;
    usize::try_from(number).ok()
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

fn percentage(value: &DeValue<'_>) -> Option<f64> {
    let text = match value {
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        _ => return None,
    };
    text.parse().ok().filter(|p| (0.1..=100.0).contains(p))
}

fn weight(value: &DeValue<'_>) -> Option<Weight> {
    Weight::try_from(integer(value)?).ok()
}

fn size(value: &DeValue<'_>) -> Option<u64> {
    integer(value).or_else(|| Some(value.as_str()?.parse::<ByteSize>().ok()?.as_u64()))
}

fn duration(value: &DeValue<'_>) -> Option<Duration> {
    humantime::parse_duration(value.as_str()?)
        .ok()
        .filter(|d| *d <= Duration::from_secs(86_400))
}
