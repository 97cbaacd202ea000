//! Cgroups' names are chosen by others. The agent shows, logs and writes them escaped.

use justitia_checks::{Workspace, read};

/// A cgroup's path or name as text, other than by `escape::encode`.
const RAW: [&str; 6] = [
    ".path().display()",
    ".path().to_string_lossy()",
    ".full_path().display()",
    ".full_path().to_string_lossy()",
    "?node.cgroup",
    "?cgroup",
];

/// The lines of a source that turn a cgroup's path into text as it is. A call that goes on in the next line, as rustfmt breaks
/// them, is one line here.
fn raw(source: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in source.lines().map(str::trim) {
        match lines.last_mut() {
            Some(begun) if line.starts_with('.') => begun.push_str(line),
            _ => lines.push(line.to_owned()),
        }
    }
    lines.retain(|line| RAW.iter().any(|raw| line.contains(raw)));
    lines
}

#[test]
fn the_agent_escapes_the_names_of_cgroups() {
    let workspace = Workspace::this();
    let members = workspace.members().unwrap();
    let mut found = Vec::new();
    for member in members
        .iter()
        .filter(|m| ["agent", "cgroup-tree"].contains(&m.directory.as_str()))
    {
        for file in workspace.sources(member).unwrap() {
            // Tests show names of their own.
            if file.contains("tests") {
                continue;
            }
            let text = read(&workspace.root.join(&file)).unwrap();
            let lines = raw(&text).into_iter();
            found.extend(lines.map(|line| format!("{file}: {line}")));
        }
    }
    assert!(found.is_empty(), "use escape::encode: {}", found.join("\n"));
}

#[test]
fn a_name_that_is_shown_as_it_is_is_found() {
    let bad = "tracing::debug!(tenant = %node.cgroup.path().display(), \"memory.low\");";
    let good = "let tenant = escape::encode(node.cgroup.path().as_os_str());";
    assert_eq!(raw(&format!("{good}\n{bad}")), [bad]);
    let broken = "let tenant = node\n    .cgroup\n    .path()\n    .display();";
    let joined = "let tenant = node.cgroup.path().display();";
    assert_eq!(raw(&format!("{good}\n{broken}")), [joined]);
}
