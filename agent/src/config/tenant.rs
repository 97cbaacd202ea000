//! `[[tenant]]`: overrides for the cgroups that a pattern matches.

#[cfg(feature = "reference")]
use documented::DocumentedFields;
use justitia_cgroup_tree::{Matches, Override, Pattern, Rule, is_unit_name};
use justitia_common::toml_file::Report;
use justitia_share::Weight;
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

use super::value;

/// `[[tenant]]` as written in a file.
#[derive(Deserialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [[tenant]]")]
#[derive(Default)]
pub(super) struct RuleKeys {
    /// The cgroups of this rule, by their paths below the cgroup mount. `*` and `?` stay within one name, `**` crosses
    /// them. A name with escapes may be written as `systemctl` shows it (`\\x2d`) or as `justitia status` does
    /// (`\\x5cx2d`), in single quotes. At least one of this key and the next five is required; all given ones must
    /// match.
    #[serde(rename = "match", deserialize_with = "value::pattern")]
    pattern: Option<Pattern>,
    /// Containers and pods, by name: `NAME` for a container of Docker, podman or containerd; `NAMESPACE/NAME` for a
    /// pod; `NAMESPACE/POD/CONTAINER` for a container in a pod; `user-UID/NAME` for a rootless container. `*` stays
    /// within one part.
    #[serde(deserialize_with = "value::names")]
    container: Option<Pattern>,
    /// Containers, by the image name with which they were started: `*nginx:*`.
    #[serde(deserialize_with = "value::text")]
    image: Option<Pattern>,
    /// Containers, by a label: `KEY=VALUE`. For podman: by an annotation.
    #[serde(deserialize_with = "value::text")]
    label: Option<Pattern>,
    /// System units of systemd, by name: `nginx.service`, `*.slice`. Not units of user managers.
    #[serde(deserialize_with = "value::names")]
    unit: Option<Pattern>,
    /// Virtual machines of libvirt, by name.
    #[serde(deserialize_with = "value::names")]
    domain: Option<Pattern>,
    /// The weight among its siblings, instead of its `io.weight` or `io.bfq.weight`.
    #[serde(deserialize_with = "value::some_weight")]
    weight: Option<Weight>,
    /// File pages that the agent never reclaims from it; the kernel may. In a delegated subtree it is part of the
    /// subtree's entitlement.
    #[serde(deserialize_with = "value::some_size")]
    min_cache: Option<u64>,
    /// Whether it and all below it are left alone. In a delegated subtree it requires `match` without wildcards as the
    /// only pattern, because delegatees choose the names there.
    #[serde(deserialize_with = "value::some_boolean")]
    exclude: Option<bool>,
    /// Whether a delegatee makes the cgroups below it; settings of these count inside only. Detected without a rule
    /// where users other than root may write its directory, by systemd's `Delegate=yes`, and for the root of a
    /// container's cgroup namespace.
    #[serde(deserialize_with = "value::some_boolean")]
    delegated: Option<bool>,
}

impl RuleKeys {
    /// The rule.
    pub(super) fn into_rule(self) -> Rule {
        let says = Override {
            weight: self.weight,
            min_cache: self.min_cache,
            exclude: self.exclude,
            delegated: self.delegated,
        };
        let matches = Matches {
            path: self.pattern,
            container: self.container,
            image: self.image,
            label: self.label,
            unit: self.unit,
            domain: self.domain,
        };
        Rule::new(matches, says)
    }
}

/// Warns of rules that are valid, but hardly meant.
pub(super) fn doubt(item: &Spanned<DeValue<'_>>, report: &mut Report<'_>) {
    let Some(keys) = item.get_ref().as_table() else {
        return;
    };
    for key in SUBJECTS {
        let pattern = keys.get(key);
        if let Some((pattern, text)) = pattern.and_then(|p| Some((p, p.get_ref().as_str()?)))
            && let Some(why) = never(key, text)
        {
            let what = format!("{key} = {text:?} matches {}: {why}", subject(key));
            report.warn(pattern.span().start, what);
        }
    }
    if let Some(domain) = keys.get("domain") {
        let of_containers = ["container", "image", "label"];
        let others = of_containers.iter().filter(|key| keys.contains_key(**key));
        for key in others {
            let what =
                format!("this [[tenant]] matches nothing: a virtual machine (domain) has no {key}");
            report.warn(domain.span().start, what);
        }
    }
    let changes = ["weight", "min_cache", "exclude", "delegated"];
    if !changes.iter().any(|key| keys.contains_key(*key)) {
        report.warn(
            item.span().start,
            "this [[tenant]] changes nothing: expected weight, min_cache, exclude or delegated beside what it matches",
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

/// The keys that select cgroups.
pub(super) const SUBJECTS: [&str; 6] = ["match", "container", "image", "label", "unit", "domain"];

/// The kind of subject that a key without a match lacks.
fn subject(key: &str) -> &'static str {
    match key {
        "match" => "no cgroup",
        "image" | "label" | "container" => "no container",
        "unit" => "no unit",
        _ => "no virtual machine",
    }
}

/// Why a pattern can match nothing, if so.
fn never(key: &str, text: &str) -> Option<String> {
    let wild = |c: char| "*?[]{}".contains(c);
    match key {
        "match" => never_a_path(text),
        _ if text.is_empty() => Some("a name has at least one character".to_owned()),
        "container" if text.starts_with('/') => {
            Some("no name begins with a slash, remove it".to_owned())
        }
        "label" if !text.contains('=') && !text.contains(wild) => {
            Some("a label is KEY=VALUE; `KEY=*` is one of any value".to_owned())
        }
        "unit" | "domain" if text.contains('/') => {
            Some("a name has no slash; for paths of cgroups there is `match`".to_owned())
        }
        "unit" => {
            // The text after the last wildcard ends the name.
            let end = text.rsplit(wild).next().unwrap_or(text);
            let name = if end.len() == text.len() {
                text.to_owned()
            } else {
                format!("x{end}")
            };
            let open = text.ends_with(wild) || is_unit_name(&name) || UNITS.contains(&end);
            let example = "expected the name of one, such as \"nginx.service\"";
            (!open && !UNITS.iter().any(|suffix| suffix.ends_with(end))).then(|| example.to_owned())
        }
        _ => None,
    }
}

/// The suffixes of units that have cgroups.
const UNITS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];

/// Why a pattern can match no cgroup's path, if so.
fn never_a_path(text: &str) -> Option<String> {
    let path = text.trim_start_matches('/');
    if path.is_empty() {
        Some("expected a path below the cgroup mount like \"system.slice/*\"".to_owned())
    } else if path.ends_with('/') {
        Some("no path ends with a slash, remove it".to_owned())
    } else if path == MOUNT || path.starts_with(&format!("{MOUNT}/")) {
        Some(format!(
            "paths are taken below the cgroup mount, remove /{MOUNT}/"
        ))
    } else if path.split('/').any(|name| matches!(name, "" | "." | "..")) {
        Some("each part of a path is a name, not empty, `.` or `..`".to_owned())
    } else {
        None
    }
}

/// Where cgroups usually are, without the first slash.
const MOUNT: &str = "sys/fs/cgroup";
