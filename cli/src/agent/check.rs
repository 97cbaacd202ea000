//! The output of `run --check-config` for a configuration without errors.

use std::path::Path;

use justitia_agent::config::{Checked, DEFAULT_PATH, StateOnDisk};
use justitia_api::escape::encode;

/// What was read, what was not, and what is odd, the place of the state directory included; a line each.
pub(super) fn text(checked: &Checked, state: Option<&StateOnDisk>) -> String {
    let name = |path: &Path| encode(path.as_os_str());
    let mut lines = Vec::new();
    if checked.files.is_empty() {
        lines.push(format!(
            "no configuration file at {DEFAULT_PATH}; defaults apply"
        ));
    }
    let read = checked.files.iter();
    lines.extend(read.map(|file| format!("read: {}", name(file))));
    let skipped = checked.skipped.iter();
    lines.extend(skipped.map(|file| {
        format!(
            "not read: {} (a drop-in's name ends with .toml)",
            name(file)
        )
    }));
    let odd = checked.warnings.iter().map(ToString::to_string);
    let odd: Vec<String> = odd.chain(state.map(ToString::to_string)).collect();
    lines.extend(odd.iter().map(|warning| format!("warning: {warning}")));
    let end = match odd.len() {
        0 => "no errors".to_owned(),
        1 => "no errors, 1 warning".to_owned(),
        count => format!("no errors, {count} warnings"),
    };
    lines.push(end);
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_agent::config::Config;

    #[test]
    fn what_was_read_and_what_not_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.toml");
        let dir = dir.path().display();
        std::fs::write(&path, "[[tenant]]\nmatch = \"a/\"\nweight = 3\n").unwrap();
        std::fs::create_dir(format!("{dir}/j.toml.d")).unwrap();
        std::fs::write(format!("{dir}/j.toml.d/10.conf"), "").unwrap();
        let text = self::text(&Config::check(Some(&path)).unwrap(), None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("read: {dir}/j.toml"));
        assert!(
            lines[1].starts_with(&format!("not read: {dir}/j.toml.d/10.conf (")),
            "{text}"
        );
        assert!(
            lines[2].starts_with(&format!("warning: {dir}/j.toml:2: match = \"a/\"")),
            "{text}"
        );
        assert_eq!(lines[3..], ["no errors, 1 warning"]);
    }

    #[test]
    fn a_state_directory_on_a_disk_is_odd() {
        let checked = Checked {
            config: Config {
                state_dir: "/proc/justitia".into(),
                ..Config::default()
            },
            files: Vec::new(),
            skipped: Vec::new(),
            warnings: Vec::new(),
        };
        let state = checked.config.state_on_disk();
        let text = self::text(&checked, state.as_ref());
        assert!(
            text.contains("\nwarning: expected the state directory /proc/justitia on a memory")
                && text.ends_with("\nno errors, 1 warning\n"),
            "{text}"
        );
    }

    #[test]
    fn no_file_is_no_file() {
        let text = self::text(
            &Checked {
                config: Config::default(),
                files: Vec::new(),
                skipped: Vec::new(),
                warnings: Vec::new(),
            },
            None,
        );
        assert_eq!(
            text,
            "no configuration file at /etc/justitia/justitia.toml; defaults apply\nno errors\n"
        );
    }
}
