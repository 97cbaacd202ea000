//! What an administrator's rules say of cgroups, by patterns over their paths.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use globset::{ErrorKind, GlobBuilder, GlobSet};
use justitia_api::{TenantKind, escape};
use justitia_runtimes::{Identity, system_unit};
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

/// What a rule is about: cgroups that match each of the patterns that are given.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    /// The path below the cgroup mount.
    pub path: Option<Pattern>,
    /// The name of a container or a pod.
    pub container: Option<Pattern>,
    /// A container's image, as it was named.
    pub image: Option<Pattern>,
    /// One of a container's labels, as `KEY=VALUE`.
    pub label: Option<Pattern>,
    /// The name of a unit of the system's service manager.
    pub unit: Option<Pattern>,
    /// The name of a virtual machine.
    pub domain: Option<Pattern>,
}

impl From<Pattern> for Matches {
    fn from(path: Pattern) -> Self {
        Self {
            path: Some(path),
            ..Self::default()
        }
    }
}

/// As a configuration says it: `container = "web", image = "*nginx:*"`.
impl fmt::Display for Matches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = [
            ("match", &self.path),
            ("container", &self.container),
            ("image", &self.image),
            ("label", &self.label),
            ("unit", &self.unit),
            ("domain", &self.domain),
        ];
        let given = keys.into_iter().filter_map(|(key, pattern)| {
            let pattern = pattern.as_ref()?;
            Some(format!("{key} = {:?}", pattern.written))
        });
        f.write_str(&given.collect::<Vec<_>>().join(", "))
    }
}

impl Matches {
    /// Whether it asks for more than the path.
    fn needs_identity(&self) -> bool {
        let names = [&self.container, &self.image, &self.label, &self.domain];
        names.iter().any(|pattern| pattern.is_some())
    }

    fn is_match(&self, subject: &Subject<'_>) -> bool {
        let all = [
            (&self.path, self.path_matches(subject)),
            (&self.container, self.container_matches(subject)),
            (&self.image, self.image_matches(subject)),
            (&self.label, self.label_matches(subject)),
            (&self.unit, self.unit_matches(subject)),
            (&self.domain, self.domain_matches(subject)),
        ];
        let given = || all.iter().filter(|(pattern, _)| pattern.is_some());
        given().count() > 0 && given().all(|(_, matches)| *matches)
    }

    fn path_matches(&self, subject: &Subject<'_>) -> bool {
        let pattern = self.path.as_ref();
        pattern.is_some_and(|pattern| pattern.is_match(subject.path))
    }

    fn container_matches(&self, subject: &Subject<'_>) -> bool {
        let kind = |kind: TenantKind| kind.is_container() || kind == TenantKind::Pod;
        named(self.container.as_ref(), subject, kind, |identity| {
            &identity.name
        })
    }

    fn image_matches(&self, subject: &Subject<'_>) -> bool {
        let image = |identity: &'_ Identity| identity.image.clone().unwrap_or_default();
        let whole = subject.whole();
        let image = whole
            .filter(|identity| identity.kind.is_container())
            .map(image);
        let pattern = self.image.as_ref().zip(image);
        pattern.is_some_and(|(pattern, image)| pattern.is_match(Path::new(&image)))
    }

    fn label_matches(&self, subject: &Subject<'_>) -> bool {
        let labels = subject.whole().map_or(&[][..], |identity| &identity.labels);
        let pattern = self.label.as_ref();
        pattern.is_some_and(|pattern| {
            labels
                .iter()
                .any(|label| pattern.is_match(Path::new(label)))
        })
    }

    fn unit_matches(&self, subject: &Subject<'_>) -> bool {
        let unit = system_unit(subject.path).filter(|_| !subject.made);
        let pattern = self.unit.as_ref().zip(unit);
        pattern.is_some_and(|(pattern, unit)| pattern.is_match(Path::new(unit)))
    }

    fn domain_matches(&self, subject: &Subject<'_>) -> bool {
        let kind = |kind| kind == TenantKind::Domain;
        named(self.domain.as_ref(), subject, kind, |identity| {
            &identity.name
        })
    }
}

fn named(
    pattern: Option<&Pattern>,
    subject: &Subject<'_>,
    kind: impl Fn(TenantKind) -> bool,
    name: impl Fn(&Identity) -> &String,
) -> bool {
    let identity = subject.whole().filter(|identity| kind(identity.kind));
    let pattern = pattern.zip(identity);
    pattern.is_some_and(|(pattern, identity)| pattern.is_match(Path::new(name(identity))))
}

/// A cgroup that rules may be about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its path below the mount.
    pub path: &'a Path,
    /// What it is, as far as that is known.
    pub identity: &'a Identity,
    /// Whether a delegatee may have made it, and chosen its name.
    pub made: bool,
}

impl<'a> Subject<'a> {
    /// What it is, if it is that as a whole: a cgroup that the runtime makes inside is none of its own.
    fn whole(&self) -> Option<&'a Identity> {
        Some(self.identity).filter(|identity| identity.part.is_none())
    }
}

/// What a rule is about, and its changes.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The cgroups that it is about.
    pub matches: Matches,
    /// Its changes.
    pub says: Override,
    /// Whether a cgroup has matched it or one of its clones.
    matched: Arc<AtomicBool>,
}

impl Rule {
    /// A rule that nothing has matched yet.
    #[must_use]
    pub fn new(matches: Matches, says: Override) -> Self {
        Self {
            matches,
            says,
            matched: Arc::default(),
        }
    }

    /// Whether a cgroup has matched it, or one of its clones, since it was made: managed, or excluded by it.
    #[must_use]
    pub fn has_matched(&self) -> bool {
        self.matched.load(Ordering::Relaxed)
    }

    /// Whether it is about one cgroup alone, by its path: its `match` has none of `*`, `?`, `[` and `{`. Names of containers
    /// are chosen by others.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        let path = self.matches.path.as_ref();
        !self.matches.needs_identity() && path.is_some_and(Pattern::is_literal)
    }

    /// Whether it excludes by what a cgroup is: that has to be known before the cgroup is managed.
    pub(crate) fn excludes_by_identity(&self) -> bool {
        self.says.exclude.is_some() && self.matches.needs_identity()
    }

    /// What its author may have meant, if it matches none of `paths` but would match one of them wherever that is: a
    /// match is the whole path, and people write names.
    #[must_use]
    pub fn near_miss<'a>(&self, paths: impl Iterator<Item = &'a Path> + Clone) -> Option<String> {
        let pattern = self.matches.path.as_ref()?;
        if paths.clone().any(|path| pattern.is_match(path)) {
            return None;
        }
        let wider = pattern.anywhere()?;
        let meant = paths.into_iter().find(|path| wider.is_match(path))?;
        let (written, anywhere) = (pattern.as_str(), wider.as_str());
        Some(format!(
            "[[tenant]] match = {written:?} matches no cgroup now, but {anywhere:?} would match {}: a match is over \
             the whole path below the cgroup mount",
            escape::encode(meant.as_os_str())
        ))
    }
}

/// What `rules` say of a cgroup: of each key, the value in the first rule that matches and gives it. If a delegatee may have
/// made the cgroup and chosen its name, only a rule for one path, without wildcards, excludes it. The rules that match
/// [remember that](Rule::has_matched).
#[must_use]
pub fn overrides(rules: &[Rule], subject: &Subject<'_>) -> Override {
    let mut sum = Override::default();
    for rule in rules.iter().filter(|r| r.matches.is_match(subject)) {
        rule.matched.store(true, Ordering::Relaxed);
        sum.weight = sum.weight.or(rule.says.weight);
        sum.min_cache = sum.min_cache.or(rule.says.min_cache);
        sum.delegated = sum.delegated.or(rule.says.delegated);
        if !subject.made || rule.is_literal() {
            sum.exclude = sum.exclude.or(rule.says.exclude);
        }
    }
    sum
}

/// The longest glob, bytes.
const MAX_LENGTH: usize = 1024;
/// The most braces within each other.
const MAX_DEPTH: usize = 8;

/// A glob over cgroup paths below the cgroup mount: `*` and `?` stay within one name, `**` crosses them. Or one over names.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The glob as it was written, without leading slashes.
    written: String,
    /// Of this one glob, in each way in which it can be read: unlike a `GlobMatcher`, a set whose expression is refused is an
    /// error, not a panic.
    glob: GlobSet,
}

impl Pattern {
    /// Compiles `pattern`, over paths of cgroups: at most 1024 bytes, and 8 braces within each other. A deeper or longer one
    /// could take any amount of memory or stack.
    ///
    /// A byte may be written as `justitia status` shows it: `\x5c` is a backslash. So may a unit's name as systemd has it, in
    /// which `\x2d` stands for a dash and is these four characters.
    ///
    /// # Errors
    /// What is wrong with the pattern.
    pub fn new(pattern: &str) -> Result<Self, String> {
        Self::checked(
            pattern,
            "cgroup paths",
            pattern.trim_start_matches('/'),
            true,
        )
    }

    /// The same over names of containers and pods, in which a slash separates, as in a path.
    ///
    /// # Errors
    /// What is wrong with the pattern.
    pub fn of_names(pattern: &str) -> Result<Self, String> {
        Self::checked(pattern, "names", pattern, true)
    }

    /// The same over images and labels, in which a slash is a character like any other.
    ///
    /// # Errors
    /// What is wrong with the pattern.
    pub fn of_text(pattern: &str) -> Result<Self, String> {
        Self::checked(pattern, "images or labels", pattern, false)
    }

    fn checked(pattern: &str, over: &str, written: &str, separates: bool) -> Result<Self, String> {
        let (length, depth) = (pattern.len(), depth(pattern));
        if length > MAX_LENGTH {
            return Err(format!(
                "expected a glob of at most {MAX_LENGTH} bytes, found one of {length}: match less of it, or write several \
                 [[tenant]]"
            ));
        }
        if depth > MAX_DEPTH {
            return Err(format!(
                "expected a glob with at most {MAX_DEPTH} braces within each other, found {depth}: write several [[tenant]]"
            ));
        }
        Self::compiled(written, separates)
            .map_err(|why| format!("expected a glob over {over}, found {pattern:?}: {why}"))
    }

    fn compiled(written: &str, separates: bool) -> Result<Self, String> {
        let glob = compile(&readings(written), separates)?;
        let written = written.to_owned();
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
        Self::compiled(&format!("**/{}", self.written), true).ok()
    }
}

/// The globs that a text with `\xNN` can mean: the four characters, as they are in names that systemd has escaped; or the byte, as
/// [`escape::encode`] shows those that are not printable. A text without is one glob.
fn readings(written: &str) -> Vec<String> {
    let digits = |rest: &str| {
        let digits = rest.strip_prefix("\\x")?.get(..2)?;
        u8::from_str_radix(digits, 16)
            .ok()
            .filter(|_| !digits.starts_with('+'))
    };
    let (mut characters, mut bytes) = (String::new(), Vec::new());
    let mut rest = written;
    let mut found = false;
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        let start = characters.len();
        match digits(rest) {
            Some(byte) => {
                (found, length) = (true, r"\xNN".len());
                characters.push('\\');
                characters.push_str(rest.get(..length).unwrap_or_default());
                match byte {
                    b'\\' => bytes.extend(b"\\\\"),
                    // It would stand there as it is.
                    b' '..=b'~' => {
                        bytes.extend(characters.get(start..).unwrap_or_default().bytes())
                    }
                    byte => bytes.push(byte),
                }
            }
            None => {
                // An escaped character stays one.
                if c == '\\' {
                    length += rest.chars().nth(1).map_or(0, char::len_utf8);
                }
                let text = rest.get(..length).unwrap_or_default();
                characters.push_str(text);
                bytes.extend(text.bytes());
            }
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    if !found {
        return vec![written.to_owned()];
    }
    let bytes = String::from_utf8(bytes).ok();
    let mut readings = vec![characters];
    readings.extend(bytes.filter(|bytes| *bytes != readings[0]));
    readings
}

fn compile(patterns: &[String], separates: bool) -> Result<GlobSet, String> {
    let why = |e: globset::Error| match e.kind() {
        ErrorKind::Regex(_) => {
            "as a regular expression it is too large, or nested too deeply".to_owned()
        }
        kind => kind.to_string(),
    };
    let glob = |pattern: &String| {
        GlobBuilder::new(pattern)
            .literal_separator(separates)
            .backslash_escape(true)
            .build()
    };
    let globs: Result<Vec<_>, _> = patterns.iter().map(glob).collect();
    GlobSet::new(globs.map_err(why)?).map_err(why)
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

    /// As systemctl, `justitia status` and this very name show it.
    #[test]
    fn a_unit_with_escapes_matches_however_it_is_written() {
        let path = r"machine.slice/machine-qemu\x2d1\x2dweb.scope";
        let shown = escape::encode(std::ffi::OsStr::new(path));
        assert_eq!(shown, r"machine.slice/machine-qemu\x5cx2d1\x5cx2dweb.scope");
        let matches = |pattern: &str, path: &str| {
            let pattern = Pattern::new(pattern).unwrap();
            pattern.is_match(Path::new(path))
        };
        for pattern in [
            path,
            &shown,
            r"machine.slice/machine-qemu\\x2d1\\x2dweb.scope",
            r"machine.slice/machine-qemu\x2d*.scope",
            r"machine.slice/machine-qemu\x5cx2d?\x2dweb.scope",
            r"**/machine-qemu\x2d[0-9]\x2dweb.scope",
            "machine.slice/machine-qemu*web.scope",
        ] {
            assert!(matches(pattern, path), "{pattern}");
        }
        for pattern in [
            r"machine.slice/machine-qemu\x2d1",
            "machine.slice/machine-qemu-1-web.scope",
        ] {
            assert!(!matches(pattern, path), "{pattern}");
        }
        assert!(!matches(path, "machine.slice/machine-qemux2d1x2dweb.scope"));
        // Other bytes, as status shows them, and as systemd escapes them.
        assert!(matches(r"a/\x0a*", "a/\nb"));
        assert!(
            matches(r"gr\xc3\xb6\xc3\x9fe", "größe")
                && matches(r"gr\xc3\xb6\xc3\x9fe", r"gr\xc3\xb6\xc3\x9fe")
        );
        assert!(matches(r"a\xff", r"a\xff"));
        // What is no such sequence stays what it was.
        assert!(
            matches(r"a\*\x", "a*x") && matches(r"\\x2d", r"\x2d") && matches(r"a\xzz", "axzz")
        );
    }
}
