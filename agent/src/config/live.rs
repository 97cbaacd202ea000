//! Which keys can change while the agent runs, and which files it trusts.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use justitia_common::toml_file::TomlError;

use super::{Checked, Config, drop_in_dir};

impl Config {
    /// The keys that differ in `new` and cannot change while the agent runs: the knobs' journal lies in one directory, clients
    /// know one socket, and the probes' maps keep the size with which they were loaded. All other keys can change.
    #[must_use]
    pub fn fixed(&self, new: &Self) -> Vec<&'static str> {
        let (old, is) = (&self.probes, &new.probes);
        let keys = [
            ("socket", self.socket != new.socket),
            ("state_dir", self.state_dir != new.state_dir),
            ("probes.max_cgroups", old.max_cgroups != is.max_cgroups),
            ("probes.max_inflight", old.max_inflight != is.max_inflight),
            (
                "probes.max_shared_files",
                old.max_shared_files != is.max_shared_files,
            ),
        ];
        let changed = keys.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(key, _)| key).collect()
    }

    /// As [`Config::check`], of files that only root and this process's user can have written: the agent acts on them with the
    /// privileges of this process.
    ///
    /// # Errors
    /// As of [`Config::check`], and one for each file or directory that others own or everyone may write.
    pub fn check_owned(path: Option<&Path>) -> Result<Checked, Vec<TomlError>> {
        let checked = Self::check(path)?;
        let drop_ins = drop_in_dir(path);
        let mut all: Vec<&Path> = Vec::new();
        for file in &checked.files {
            let directory = file.parent().filter(|dir| *dir != Path::new(""));
            all.extend([file, directory.unwrap_or(Path::new("."))]);
        }
        all.extend(drop_ins.exists().then_some(drop_ins.as_path()));
        all.sort_unstable();
        all.dedup();
        let errors: Vec<TomlError> = all.into_iter().filter_map(foreign).collect();
        match errors.is_empty() {
            true => Ok(checked),
            false => Err(errors),
        }
    }
}

/// Why users other than root and this one may have written the file or directory at `path`, if so.
fn foreign(path: &Path) -> Option<TomlError> {
    // A path without readable metadata was not read either.
    let found = std::fs::metadata(path).ok()?;
    let who = written_by_others(&found, rustix::process::geteuid().as_raw())?;
    let what = format!(
        "expected a {} that only root may write, found {who}: others could say what the agent does with root's power; \
         give it to root (chown root, chmod o-w)",
        if found.is_dir() { "directory" } else { "file" }
    );
    Some(TomlError::whole(path, what))
}

/// Why others may write it, if so. In a directory with the sticky bit they can only add files, and they own those.
fn written_by_others(found: &Metadata, ours: u32) -> Option<String> {
    if ![0, ours].contains(&found.uid()) {
        return Some(format!("one of the user {}", found.uid()));
    }
    let sticky = found.is_dir() && found.mode() & 0o1000 != 0;
    let open = found.mode() & 0o002 != 0 && !sticky;
    open.then(|| format!("one of mode {:04o}", found.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::super::settings::{Io, Probes};
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_cannot_change_is_named() {
        let old = Config::default();
        assert_eq!(old.fixed(&old.clone()), Vec::<&str>::new());
        let live = Config {
            cpu_budget: 3.0,
            io: Io { enabled: true },
            ..old.clone()
        };
        assert_eq!(old.fixed(&live), Vec::<&str>::new());
        let probes = Probes {
            max_cgroups: 17,
            max_inflight: 65,
            max_shared_files: 66,
        };
        let fixed = Config {
            socket: "/run/other.sock".into(),
            state_dir: "/run/other".into(),
            probes,
            ..old.clone()
        };
        let named = old.fixed(&fixed);
        assert_eq!(
            named,
            [
                "socket",
                "state_dir",
                "probes.max_cgroups",
                "probes.max_inflight",
                "probes.max_shared_files"
            ]
        );
    }

    #[test]
    fn a_configuration_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("j.toml");
        let drop_ins = dir.path().join("j.toml.d");
        let one = drop_ins.join("1.toml");
        std::fs::create_dir(&drop_ins).unwrap();
        for file in [&main, &one] {
            std::fs::write(file, "cpu_budget = 2\n").unwrap();
        }
        let wrong = || -> Vec<String> {
            let errors = Config::check_owned(Some(&main)).err().unwrap_or_default();
            errors.iter().map(ToString::to_string).collect()
        };
        assert_eq!(wrong(), Vec::<String>::new());
        for (path, usual, open) in [
            (main.as_path(), 0o644, 0o646),
            (&one, 0o600, 0o666),
            (&drop_ins, 0o755, 0o777),
            (dir.path(), 0o700, 0o707),
        ] {
            set_permissions(path, Permissions::from_mode(open)).unwrap();
            let errors = wrong();
            let told = errors.len() == 1
                && errors[0].starts_with(&format!("{}: expected a ", path.display()))
                && errors[0].contains("that only root may write, found one of mode 0");
            assert!(told, "{errors:?}");
            set_permissions(path, Permissions::from_mode(usual)).unwrap();
        }
        assert_eq!(wrong(), Vec::<String>::new());
        let found = std::fs::metadata(&main).unwrap();
        let other = written_by_others(&found, found.uid() + 1);
        let expected = (found.uid() != 0).then(|| format!("one of the user {}", found.uid()));
        assert_eq!(other, expected);
    }
}
