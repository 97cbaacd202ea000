//! `[[tenant]]`: overrides for the cgroups that a glob matches.

use globset::{GlobBuilder, GlobMatcher};
use justitia_share::Weight;

/// What a rule changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// Weight among its siblings.
    pub weight: Option<Weight>,
    /// File pages that are never taken, bytes.
    pub floor: Option<u64>,
    /// Leave the cgroup and everything below it alone.
    pub exclude: Option<bool>,
}

/// A glob and what it changes.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Matches paths below the cgroup mount, without a leading slash.
    pub glob: GlobMatcher,
    /// What it changes.
    pub says: Override,
}

/// Compiles a glob over cgroup paths: `*` and `?` stay within one name, `**` crosses them.
///
/// # Errors
/// What is wrong with the pattern.
pub fn glob(pattern: &str) -> Result<GlobMatcher, String> {
    GlobBuilder::new(pattern.trim_start_matches('/'))
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map(|g| g.compile_matcher())
        .map_err(|e| {
            format!(
                "expected a glob over cgroup paths, found {pattern:?}: {}",
                e.kind()
            )
        })
}
