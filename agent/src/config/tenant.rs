//! `[[tenant]]`: overrides for the cgroups that a glob matches.

use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use justitia_share::Weight;

use crate::escape;

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

impl Rule {
    /// What its author may have meant, if it matches none of `paths` but would match one of them wherever that is: a
    /// match is the whole path, and people write names.
    #[must_use]
    pub fn near_miss<'a>(&self, paths: impl Iterator<Item = &'a Path> + Clone) -> Option<String> {
        let written = self.glob.glob().glob();
        if paths.clone().any(|path| self.glob.is_match(path)) {
            return None;
        }
        let anywhere = format!("**/{written}");
        let wider = glob(&anywhere).ok()?;
        let meant = paths.into_iter().find(|path| wider.is_match(path))?;
        Some(format!(
            "[[tenant]] match = {written:?} matches no cgroup now, but {anywhere:?} would match {}: a match is over \
             the whole path below the cgroup mount",
            escape::encode(meant.as_os_str())
        ))
    }
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
