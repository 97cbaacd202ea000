//! `[[tenant]]`: overrides for the cgroups that a pattern matches.

use std::path::Path;

#[cfg(feature = "reference")]
use documented::DocumentedFields;
use justitia_share::Weight;
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

use super::pattern::Pattern;
use super::report::Report;
use super::value;
use crate::escape;

/// What a rule changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// Weight among its siblings.
    pub weight: Option<Weight>,
    /// Page cache that is never reclaimed, bytes.
    pub min_cache: Option<u64>,
    /// Leave the cgroup and everything below it alone. In a delegated subtree this counts only where the rule
    /// [has no wildcards](Rule::is_literal): there, others choose the names of cgroups.
    pub exclude: Option<bool>,
    /// Whether others than the administrator make the cgroups below it, whatever owner and marks say.
    pub delegated: Option<bool>,
}

/// A pattern and what it changes.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RuleKeys")]
pub struct Rule {
    pattern: Pattern,
    /// What it changes.
    pub says: Override,
}

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

impl TryFrom<RuleKeys> for Rule {
    type Error = &'static str;

    fn try_from(keys: RuleKeys) -> Result<Self, Self::Error> {
        let says = Override {
            weight: keys.weight,
            min_cache: keys.min_cache,
            exclude: keys.exclude,
            delegated: keys.delegated,
        };
        let pattern = keys.pattern.ok_or(NO_MATCH)?;
        Ok(Self { pattern, says })
    }
}

/// The error of a rule without a pattern.
pub(super) const NO_MATCH: &str = "expected a [[tenant]] with a `match`, found none";

impl Rule {
    /// Whether it is about the cgroup at `path`, below the mount.
    #[must_use]
    pub fn is_match(&self, path: &Path) -> bool {
        self.pattern.is_match(path)
    }

    /// Whether it is about one cgroup alone: its `match` has none of `*`, `?`, `[` and `{`.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        self.pattern.is_literal()
    }

    /// What its author may have meant, if it matches none of `paths` but would match one of them wherever that is: a
    /// match is the whole path, and people write names.
    #[must_use]
    pub fn near_miss<'a>(&self, paths: impl Iterator<Item = &'a Path> + Clone) -> Option<String> {
        if paths.clone().any(|path| self.is_match(path)) {
            return None;
        }
        let wider = self.pattern.anywhere()?;
        let meant = paths.into_iter().find(|path| wider.is_match(path))?;
        let (written, anywhere) = (self.pattern.as_str(), wider.as_str());
        Some(format!(
            "[[tenant]] match = {written:?} matches no cgroup now, but {anywhere:?} would match {}: a match is over \
             the whole path below the cgroup mount",
            escape::encode(meant.as_os_str())
        ))
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
