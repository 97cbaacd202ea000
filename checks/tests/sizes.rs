//! Files of one idea. That functions fit a screen clippy checks (`clippy.toml`).

use justitia_checks::{Workspace, read};

/// A file has at most so many lines.
const MOST_LINES: usize = 600;

#[test]
fn files_are_short() {
    let workspace = Workspace::this();
    let members = workspace.members().unwrap();
    let files = members.iter().flat_map(|m| workspace.sources(m).unwrap());
    let mut count = 0;
    for file in files {
        let lines = read(&workspace.root.join(&file)).unwrap().lines().count();
        assert!(lines <= MOST_LINES, "{file}: {lines} lines");
        count += 1;
    }
    assert!(count > 500, "only {count} files were found");
}
