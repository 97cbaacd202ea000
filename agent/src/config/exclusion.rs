//! Which cgroups the rules exclude.

use std::path::Path;

use justitia_cgroup_tree::{Resolver, Subject, overrides};

use super::Config;

impl Config {
    /// Whether the rules exclude the cgroup at `path` (below the mount), or one above it. `is_delegated` says whether a
    /// delegatee may make children of a cgroup. `resolver` finds its container, unit or virtual machine.
    #[must_use]
    pub fn excludes(
        &self,
        path: &Path,
        is_delegated: impl Fn(&Path) -> bool,
        resolver: &mut Resolver,
    ) -> bool {
        path.ancestors().any(|path| {
            let made = path.ancestors().skip(1).any(&is_delegated);
            let identity = resolver.resolve(path, made).identity;
            let subject = Subject {
                path,
                identity: &identity,
                made,
            };
            overrides(&self.rules, &subject).exclude == Some(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::load;
    use super::*;

    #[test]
    fn a_cgroup_is_excluded_by_itself_or_one_above_it_and_never_by_a_name_of_its_owners() {
        let config = load(&[(
            "j.toml",
            "[[tenant]]\nmatch = \"a\"\nexclude = true\n[[tenant]]\nmatch = \"user/*\"\nexclude = true\n",
        )])
        .unwrap();
        for (path, delegated, expected) in [
            ("a", "", true),
            ("a/b/c", "", true),
            ("ab", "", false),
            ("user", "", false),
            ("user/x", "", true),
            ("user/x/y", "", true),
            ("user/x", "user", false),
            ("a/b", "a", true),
        ] {
            let is_delegated = |p: &Path| p == Path::new(delegated) && !delegated.is_empty();
            let mut resolver = Resolver::new(Path::new("/nonexistent"));
            let found = config.excludes(Path::new(path), is_delegated, &mut resolver);
            assert_eq!(found, expected, "{path}, delegated: {delegated}");
        }
    }
}
