//! Files of one idea, and functions that fit a screen.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

use std::collections::BTreeMap;

use justitia_checks::{Function, MOST_LINES, Workspace, exceptions, functions, read};

/// A file has at most so many lines, unless it gives a reason: it is as long as its idea.
const MOST_FILE_LINES: usize = 600;

/// Every Rust file of the workspace, with its text.
fn sources() -> Vec<(String, String)> {
    let workspace = Workspace::this();
    let members = workspace.members().unwrap();
    let files = members.iter().flat_map(|m| workspace.sources(m).unwrap());
    let read = |file: String| {
        let text = read(&workspace.root.join(&file)).unwrap();
        (file, text)
    };
    files.map(read).collect()
}

/// The files that are too long, without those that are meant to be.
fn long_files(
    lines: &BTreeMap<String, usize>,
    meant: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let long = lines
        .iter()
        .filter(|(file, lines)| **lines > MOST_FILE_LINES && !meant.contains_key(*file));
    long.map(|(file, lines)| {
        (
            file.clone(),
            format!("{lines} lines, more than {MOST_FILE_LINES}"),
        )
    })
    .collect()
}

#[test]
fn files_are_short() {
    let lines: BTreeMap<String, usize> = sources()
        .into_iter()
        .map(|(file, text)| (file, text.lines().count()))
        .collect();
    let meant = exceptions("long-files").unwrap();
    for file in meant.keys() {
        let long = lines
            .get(file)
            .is_some_and(|lines| *lines > MOST_FILE_LINES);
        assert!(long, "{file} is no long file: it needs no exception");
    }
    let long = long_files(&lines, &meant);
    assert!(long.is_empty(), "{long:#?}");
}

/// The functions that are too long and do not say why.
fn long_functions(file: &str, functions: &[Function]) -> BTreeMap<String, String> {
    let long = functions
        .iter()
        .filter(|f| f.lines > MOST_LINES && !f.excused);
    let told = |f: &Function| format!("{} lines of code, more than {MOST_LINES}", f.lines);
    long.map(|f| (format!("{file} {}", f.name), told(f)))
        .collect()
}

#[test]
fn functions_fit_a_screen() {
    let mut found = BTreeMap::new();
    let mut count = 0;
    for (file, text) in sources() {
        let functions = functions(&text).unwrap();
        count += functions.len();
        found.extend(long_functions(&file, &functions));
    }
    assert!(count > 3000, "only {count} functions were found");
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn long_files_and_functions_are_found() {
    let lines = BTreeMap::from([
        ("long".to_owned(), 601),
        ("data".to_owned(), 900),
        ("short".to_owned(), 600),
    ]);
    let meant = BTreeMap::from([("data".to_owned(), "a table".to_owned())]);
    let found: Vec<String> = long_files(&lines, &meant).into_keys().collect();
    assert_eq!(found, ["long"]);

    let body = |lines: usize| "    g();\n".repeat(lines);
    let excuse = "#[expect(clippy::too_many_lines, reason = \"a table\")]";
    let source = format!(
        "fn long() {{\n{}}}\nfn short() {{\n{}}}\n{excuse}\nfn excused() {{\n{}}}\nimpl A {{ fn method() {{\n{}}} }}\n",
        body(61),
        body(60),
        body(61),
        body(61)
    );
    let found: Vec<String> = long_functions("a.rs", &functions(&source).unwrap())
        .into_keys()
        .collect();
    assert_eq!(found, ["a.rs A::method", "a.rs long"]);
}

#[test]
fn lines_are_counted_as_clippy_counts_them() {
    let source = "fn f() {\n    // A comment.\n\n    g(); /* and\n    more */\n    /* so */ h();\n    let x = \"\n    \";\n}\nfn one() { g() }\n";
    let lines: Vec<usize> = functions(source).unwrap().iter().map(|f| f.lines).collect();
    assert_eq!(lines, [4, 1]);
}
