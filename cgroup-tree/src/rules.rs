//! What an administrator's rules say of cgroups, by patterns over their paths.

use std::path::Path;

use globset::{ErrorKind, GlobBuilder, GlobSet};
use justitia_api::escape;
use justitia_share::Weight;

/// The changes of a rule.
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

/// A pattern and its changes.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The cgroups that it is about.
    pub pattern: Pattern,
    /// Its changes.
    pub says: Override,
}

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

/// What `rules` say of the cgroup at `path` (below the mount): of each key, the value in the first rule that matches and
/// gives it. If a delegatee may have `made` the cgroup and chosen its name, only a rule without wildcards excludes it.
#[must_use]
pub fn overrides(rules: &[Rule], path: &Path, made: bool) -> Override {
    let mut sum = Override::default();
    for rule in rules.iter().filter(|r| r.is_match(path)) {
        sum.weight = sum.weight.or(rule.says.weight);
        sum.min_cache = sum.min_cache.or(rule.says.min_cache);
        sum.delegated = sum.delegated.or(rule.says.delegated);
        if !made || rule.is_literal() {
            sum.exclude = sum.exclude.or(rule.says.exclude);
        }
    }
    sum
}

/// The longest glob, bytes.
const MAX_LENGTH: usize = 1024;
/// The most braces within each other.
const MAX_DEPTH: usize = 8;

/// A glob over cgroup paths below the cgroup mount: `*` and `?` stay within one name, `**` crosses them.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The glob as it was written, without leading slashes.
    written: String,
    /// Of this one glob: unlike a `GlobMatcher`, a set whose expression is refused is an error, not a panic.
    glob: GlobSet,
}

impl Pattern {
    /// Compiles `pattern`: at most 1024 bytes, and 8 braces within each other. A deeper or longer one could take any amount
    /// of memory or stack.
    ///
    /// # Errors
    /// What is wrong with the pattern.
    pub fn new(pattern: &str) -> Result<Self, String> {
        let (length, depth) = (pattern.len(), depth(pattern));
        if length > MAX_LENGTH {
            return Err(format!(
                "expected a glob of at most {MAX_LENGTH} bytes, found one of {length}: match less of the path by name, or \
                 write several [[tenant]]"
            ));
        }
        if depth > MAX_DEPTH {
            return Err(format!(
                "expected a glob with at most {MAX_DEPTH} braces within each other, found {depth}: write several [[tenant]]"
            ));
        }
        Self::compiled(pattern)
            .map_err(|why| format!("expected a glob over cgroup paths, found {pattern:?}: {why}"))
    }

    fn compiled(pattern: &str) -> Result<Self, String> {
        let written = pattern.trim_start_matches('/').to_owned();
        let glob = compile(&written)?;
        Ok(Self { written, glob })
    }

    /// As it was written, without leading slashes.
    pub(crate) fn as_str(&self) -> &str {
        &self.written
    }

    /// Whether it matches all of `path`.
    pub(crate) fn is_match(&self, path: &Path) -> bool {
        self.glob.is_match(path)
    }

    /// Whether it can match one path alone: it has none of `*`, `?`, `[` and `{`.
    pub(crate) fn is_literal(&self) -> bool {
        !self.written.contains(['*', '?', '[', '{'])
    }

    /// The same at any depth.
    pub(crate) fn anywhere(&self) -> Option<Self> {
        Self::compiled(&format!("**/{}", self.written)).ok()
    }
}

fn compile(pattern: &str) -> Result<GlobSet, String> {
    let why = |e: globset::Error| match e.kind() {
        ErrorKind::Regex(_) => {
            "as a regular expression it is too large, or nested too deeply".to_owned()
        }
        kind => kind.to_string(),
    };
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(why)?;
    GlobSet::new([glob]).map_err(why)
}

/// How many braces stand within each other. Those in a class `[{]` count, too.
fn depth(pattern: &str) -> usize {
    let (mut now, mut most, mut escaped) = (0_usize, 0, false);
    for byte in pattern.bytes() {
        match byte {
            _ if escaped => {}
            b'{' => now += 1,
            b'}' => now = now.saturating_sub(1),
            _ => {}
        }
        escaped = byte == b'\\' && !escaped;
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_up_to_the_bounds_are_compiled() {
        let matches = |pattern: &str, path: &str| {
            let rule = Pattern::new(pattern).unwrap();
            rule.is_match(Path::new(path))
        };
        assert!(matches("{a,{b,{c,{d,{e,{f,{g,{h,i}}}}}}}}", "i"));
        for part in ["[!a]", "?", "**/", "{b,}", "*", "\\{", "é"] {
            let rule = Pattern::new(&part.repeat(1024 / part.len()));
            assert!(rule.is_ok(), "{part}: {rule:?}");
        }
        assert!(matches(&"?".repeat(1024), &"x".repeat(1024)));
        assert!(matches("é*", "ér"));
        let bytes: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"a/\n\xff.x");
        let rule = Pattern::new("/a/*.x").unwrap();
        assert!(rule.is_match(Path::new(bytes)));
    }
}
