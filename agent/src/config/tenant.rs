//! `[[tenant]]`: overrides for the cgroups that a pattern matches.

#[cfg(feature = "reference")]
use documented::DocumentedFields;
use justitia_cgroup_tree::{Override, Pattern, Rule};
use justitia_common::toml_file::Report;
use justitia_share::Weight;
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

use super::value;

/// `[[tenant]]` as it is written.
#[derive(Deserialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [[tenant]]")]
#[derive(Default)]
pub(super) struct RuleKeys {
    /// The cgroups that the rule is about: their paths below the cgroup mount. `*` and `?` stay within one name, `**`
    /// crosses them.
    #[serde(rename = "match", deserialize_with = "value::pattern")]
    pattern: Option<Pattern>,
    /// The weight among its siblings, instead of its `io.weight` or `io.bfq.weight`.
    #[serde(deserialize_with = "value::some_weight")]
    weight: Option<Weight>,
    /// File pages that the agent never reclaims from it; the kernel may. In a delegated subtree: of what the subtree gets.
    #[serde(deserialize_with = "value::some_size")]
    min_cache: Option<u64>,
    /// Whether it and all below it are left alone. In a delegated subtree only where `match` has no wildcards.
    #[serde(deserialize_with = "value::some_boolean")]
    exclude: Option<bool>,
    /// Whether others make the cgroups below it; what these say counts inside only. Known without a rule where others than
    /// root may write its directory, by systemd's `Delegate=yes`, and for the root of a container's cgroup namespace.
    #[serde(deserialize_with = "value::some_boolean")]
    delegated: Option<bool>,
}

impl RuleKeys {
    /// The rule; `None` without a pattern.
    pub(super) fn into_rule(self) -> Option<Rule> {
        let says = Override {
            weight: self.weight,
            min_cache: self.min_cache,
            exclude: self.exclude,
            delegated: self.delegated,
        };
        let pattern = self.pattern?;
        Some(Rule { pattern, says })
    }
}

/// Warns of what a rule can hardly mean.
pub(super) fn doubt(item: &Spanned<DeValue<'_>>, report: &mut Report<'_>) {
    let Some(keys) = item.get_ref().as_table() else {
        return;
    };
    let Some(pattern) = keys.get("match") else {
        return;
    };
    if let Some(text) = pattern.get_ref().as_str() {
        doubt_pattern(text, pattern.span().start, report);
    }
    let changes = ["weight", "min_cache", "exclude", "delegated"];
    if !changes.iter().any(|key| keys.contains_key(*key)) {
        report.warn(
            item.span().start,
            "this [[tenant]] changes nothing: expected weight, min_cache, exclude or delegated beside its match",
        );
    }
    let excludes = keys.get("exclude").and_then(|v| v.get_ref().as_bool());
    if excludes == Some(true) {
        for key in ["weight", "min_cache"] {
            if let Some(value) = keys.get(key) {
                let what = format!("{key} has no effect beside exclude = true: remove one of them");
                report.warn(value.span().start, what);
            }
        }
    }
}

/// Warns of a pattern that no cgroup's path can match.
fn doubt_pattern(text: &str, at: usize, report: &mut Report<'_>) {
    let none = format!("match = {text:?} matches no cgroup");
    let path = text.trim_start_matches('/');
    if path.is_empty() {
        let example = "expected a path below the cgroup mount like \"system.slice/*\"";
        report.warn(at, format!("{none}: {example}"));
    } else if path.ends_with('/') {
        report.warn(at, format!("{none}: no path ends with a slash, remove it"));
    }
    if path == MOUNT || path.starts_with(&format!("{MOUNT}/")) {
        let why = format!("paths are taken below the cgroup mount, remove /{MOUNT}/");
        report.warn(at, format!("{none}: {why}"));
    }
}

/// Where cgroups usually are, without the first slash.
const MOUNT: &str = "sys/fs/cgroup";
