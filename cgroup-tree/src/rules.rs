//! What an administrator's rules say of cgroups, by patterns over their paths.

use std::borrow::Cow;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
        let wider = pattern.anywhere();
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
/// The most texts that the braces of a glob stand for: each of them may be compared with each name.
const MAX_TEXTS: usize = 256;

/// A glob over cgroup paths below the cgroup mount: `*` and `?` stay within one name, `**` crosses them. Or one over names.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The glob as it was written, without leading slashes.
    written: String,
    /// The glob, in each way in which it can be read.
    globs: Vec<Vec<u8>>,
    /// Whether a slash ends a name.
    separates: bool,
}

impl Pattern {
    /// Checks `pattern`, over paths of cgroups: at most 1024 bytes, and braces that stand for at most 256 texts.
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
        let length = pattern.len();
        if length > MAX_LENGTH {
            return Err(format!(
                "expected a glob of at most {MAX_LENGTH} bytes, found one of {length}: match less of it, or write several \
                 [[tenant]]"
            ));
        }
        let wrong = |why: &dyn fmt::Display| {
            format!("expected a glob over {over}, found {pattern:?}: {why}")
        };
        fast_glob::validate(written).map_err(|why| wrong(&why))?;
        if texts(written) > MAX_TEXTS {
            return Err(wrong(&format_args!(
                "its braces stand for more than {MAX_TEXTS} texts: write several [[tenant]]"
            )));
        }
        Ok(Self::compiled(written.to_owned(), separates))
    }

    fn compiled(written: String, separates: bool) -> Self {
        let mut globs = readings(&written);
        for glob in &mut globs {
            // At the start it would negate the glob.
            if glob.starts_with(b"!") {
                glob.insert(0, b'\\');
            }
            if !separates {
                hide_slashes(glob);
            }
        }
        Self {
            written,
            globs,
            separates,
        }
    }

    /// As it was written, without leading slashes.
    pub(crate) fn as_str(&self) -> &str {
        &self.written
    }

    /// Whether it matches all of `path`.
    pub(crate) fn is_match(&self, path: &Path) -> bool {
        let mut text = Cow::from(path.as_os_str().as_bytes());
        if !self.separates && text.contains(&b'/') {
            hide_slashes(text.to_mut());
        }
        let globs = &mut self.globs.iter();
        globs.any(|glob| fast_glob::glob_match(glob, &text))
    }

    /// Whether it can match one path alone: it has none of `*`, `?`, `[` and `{`.
    pub(crate) fn is_literal(&self) -> bool {
        !self.written.contains(['*', '?', '[', '{'])
    }

    /// The same at any depth.
    pub(crate) fn anywhere(&self) -> Self {
        Self::compiled(format!("**/{}", self.written), true)
    }
}

/// Puts in the place of each slash a byte that has no meaning in a glob, and that texts do not have.
fn hide_slashes(text: &mut [u8]) {
    for byte in text.iter_mut().filter(|byte| **byte == b'/') {
        *byte = 1;
    }
}

/// The globs that a text with `\xNN` can mean: the four characters, as they are in names that systemd has escaped; or the byte, as
/// [`escape::encode`] shows those that are not printable. A text without is one glob.
fn readings(written: &str) -> Vec<Vec<u8>> {
    let digits = |rest: &[u8]| {
        let digits = rest.strip_prefix(b"\\x")?.get(..2)?;
        let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
        u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
    };
    let (mut characters, mut bytes) = (Vec::new(), Vec::new());
    let mut rest = written.as_bytes();
    let mut found = false;
    while let Some(&first) = rest.first() {
        let byte = digits(rest);
        let length = match (byte, first) {
            (Some(_), _) => r"\xNN".len(),
            // An escaped character stays one.
            (None, b'\\') => rest.len().min(2),
            (None, _) => 1,
        };
        let (mut text, left) = rest.split_at(length);
        rest = left;
        if byte.is_none() && matches!(text, [b'\\', letter] if letter.is_ascii_alphabetic()) {
            // A letter stands for itself, not for a control character.
            text = &text[1..];
        }
        if byte.is_some() {
            found = true;
            characters.push(b'\\');
        }
        characters.extend(text);
        match byte {
            Some(b'\\') => bytes.extend(br"\\"),
            // It would stand there as it is.
            Some(b' '..=b'~') => {
                bytes.push(b'\\');
                bytes.extend(text);
            }
            Some(byte) => bytes.push(byte),
            None => bytes.extend(text),
        }
    }
    if !found || bytes == characters {
        return vec![characters];
    }
    vec![characters, bytes]
}

/// How many texts the braces of `glob` stand for, at most.
fn texts(glob: &str) -> usize {
    let (mut product, mut open, mut escaped) = (1_usize, Vec::new(), false);
    for byte in glob.bytes() {
        match byte {
            _ if escaped => {}
            b'{' => open.push(1_usize),
            b',' => {
                if let Some(count) = open.last_mut() {
                    *count += 1;
                }
            }
            b'}' => product = product.saturating_mul(open.pop().unwrap_or(1)),
            _ => {}
        }
        escaped = byte == b'\\' && !escaped;
    }
    product
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
        for part in ["[!a]", "?", "**/", "*", "\\{", "é"] {
            let rule = Pattern::new(&part.repeat(1024 / part.len()));
            assert!(rule.is_ok(), "{part}: {rule:?}");
        }
        assert!(matches(&"{b,}".repeat(8), "bbb") && Pattern::new(&"{b,}".repeat(9)).is_err());
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
