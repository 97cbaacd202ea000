//! `[[tenant]]`: overrides for the cgroups that a glob matches.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::GlobBuilder;
use justitia_share::Weight;
use regex::bytes::{Regex, RegexBuilder};

use crate::escape;

/// The longest glob, bytes.
const LONGEST: usize = 1024;
/// The most braces within each other.
const DEEPEST: usize = 8;

/// What a rule changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Override {
    /// Weight among its siblings.
    pub weight: Option<Weight>,
    /// File pages that are never taken, bytes.
    pub floor: Option<u64>,
    /// Leave the cgroup and everything below it alone. Counts for a cgroup that a delegate has made only where the rule
    /// is [about that one alone](Rule::is_literal).
    pub exclude: Option<bool>,
    /// Whether others than the administrator make the cgroups below it, whatever owner and marks say.
    pub delegated: Option<bool>,
}

/// A glob and what it changes.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The glob as it was written, but for slashes before it.
    written: String,
    /// Matches paths below the cgroup mount, without a leading slash.
    glob: Regex,
    /// What it changes.
    pub says: Override,
}

impl Rule {
    /// For the cgroups that `pattern` matches: see [`glob`].
    ///
    /// # Errors
    /// What is wrong with the pattern.
    pub fn new(pattern: &str, says: Override) -> Result<Self, String> {
        Ok(Self {
            written: pattern.trim_start_matches('/').to_owned(),
            glob: glob(pattern)?,
            says,
        })
    }

    /// Whether it is about the cgroup at `path`, below the mount.
    #[must_use]
    pub fn is_match(&self, path: &Path) -> bool {
        self.glob.is_match(path.as_os_str().as_bytes())
    }

    /// Whether it is about one cgroup alone: its `match` has none of `*`, `?`, `[` and `{`.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        !self.written.contains(['*', '?', '[', '{'])
    }

    /// What its author may have meant, if it matches none of `paths` but would match one of them wherever that is: a
    /// match is the whole path, and people write names.
    #[must_use]
    pub fn near_miss<'a>(&self, paths: impl Iterator<Item = &'a Path> + Clone) -> Option<String> {
        let written = &self.written;
        if paths.clone().any(|path| self.is_match(path)) {
            return None;
        }
        let anywhere = format!("**/{written}");
        let wider = compile(&anywhere).ok()?;
        let meant = paths
            .into_iter()
            .find(|path| wider.is_match(path.as_os_str().as_bytes()))?;
        Some(format!(
            "[[tenant]] match = {written:?} matches no cgroup now, but {anywhere:?} would match {}: a match is over \
             the whole path below the cgroup mount",
            escape::encode(meant.as_os_str())
        ))
    }
}

/// Compiles a glob over cgroup paths: `*` and `?` stay within one name, `**` crosses them. At most 1024 bytes and 8
/// braces within each other: a path is told by less, and what is deeper or longer may cost any amount of memory or stack.
///
/// # Errors
/// What is wrong with the pattern.
fn glob(pattern: &str) -> Result<Regex, String> {
    let (length, depth) = (pattern.len(), depth(pattern));
    if length > LONGEST {
        return Err(format!(
            "expected a glob of at most {LONGEST} bytes, found one of {length}: match less of the path by name, or write \
             several [[tenant]]"
        ));
    }
    if depth > DEEPEST {
        return Err(format!(
            "expected a glob with at most {DEEPEST} braces within each other, found {depth}: write several [[tenant]]"
        ));
    }
    compile(pattern)
        .map_err(|why| format!("expected a glob over cgroup paths, found {pattern:?}: {why}"))
}

fn compile(pattern: &str) -> Result<Regex, String> {
    let glob = GlobBuilder::new(pattern.trim_start_matches('/'))
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|e| e.kind().to_string())?;
    // Its own `compile_matcher` panics where the expression is refused.
    RegexBuilder::new(glob.regex())
        .dot_matches_new_line(true)
        .build()
        .map_err(|e| {
            // Before its last line, the whole expression.
            let why = e.to_string();
            let why = why.lines().last().unwrap_or_default();
            why.trim_start_matches("error: ").to_owned()
        })
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
