//! The documents name tests: each of them is there.
//!
//! A name is `package::file::test`, where the file is one of the package's `tests`, or a module of its `src` and the test
//! one of its unit tests; without the test it is all of the file's, and "all five tests" or "both tests" after it is how
//! many. A bare name after another's is a test of the same file.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

mod markdown;

use markdown::{documents, root};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the packages are whose directories are not called as they are.
const ELSEWHERE: [(&str, &str); 4] = [
    ("cgroup_tree", "cgroup-tree"),
    ("justitia", "cli"),
    ("load", "lab/load"),
    ("cache_lab", "lab/cache"),
];
/// How many, in words.
const COUNTS: [(&str, usize); 9] = [
    ("both", 2),
    ("all three", 3),
    ("all four", 4),
    ("all five", 5),
    ("all six", 6),
    ("all seven", 7),
    ("all eight", 8),
    ("all nine", 9),
    ("all ten", 10),
];

/// The tests in a source, in their order.
fn tests_of(source: &str) -> Vec<String> {
    let mut tests = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test]");
        if let Some((name, _)) = line.strip_prefix("fn ").and_then(|f| f.split_once('('))
            && std::mem::take(&mut is_test)
        {
            tests.push(name.to_owned());
        }
    }
    tests
}

/// The sources that a path of modules below a package may mean: a test program, a module's file, the file that a module
/// within it is in.
fn sources(package: &Path, modules: &[&str]) -> Vec<PathBuf> {
    let mut sources = Vec::new();
    if let [program, inner @ ..] = modules {
        let program = package.join("tests").join(program);
        let inner = inner.iter().fold(program, |path, module| path.join(module));
        sources.extend([inner.with_extension("rs"), inner.join("main.rs")]);
    }
    let src = package.join("src");
    let file = modules.iter().fold(src.clone(), |path, m| path.join(m));
    sources.extend([file.with_extension("rs"), file.join("mod.rs")]);
    if let [outer @ .., "tests" | "test"] = modules {
        let file = outer.iter().fold(src.clone(), |path, m| path.join(m));
        sources.extend([file.with_extension("rs"), file.join("mod.rs")]);
        if outer.is_empty() {
            sources.extend([src.join("lib.rs"), src.join("main.rs")]);
        }
    }
    sources.retain(|path| path.is_file());
    sources
}

/// What a name stands for.
#[derive(Debug, PartialEq)]
enum Named {
    /// One test of these.
    Test(Vec<String>),
    /// All of these.
    All(Vec<String>),
}

/// The tests of the file that a name is in; `None` if there is no such file, or no such test in it.
fn find(name: &str) -> Option<Named> {
    let parts: Vec<&str> = name.split("::").collect();
    let (package, rest) = parts.split_first()?;
    let elsewhere = ELSEWHERE.iter().find(|(name, _)| name == package);
    let package = root().join(elsewhere.map_or(*package, |(_, directory)| directory));
    let tests = |modules: &[&str]| -> Vec<Vec<String>> {
        let sources = sources(&package, modules).into_iter();
        let tests = sources.filter_map(|path| Some(tests_of(&fs::read_to_string(path).ok()?)));
        tests.filter(|tests| !tests.is_empty()).collect()
    };
    if let Some(all) = tests(rest).into_iter().next() {
        return Some(Named::All(all));
    }
    let (test, modules) = rest.split_last()?;
    let mut among = tests(modules).into_iter();
    among
        .find(|tests| tests.iter().any(|t| t == test))
        .map(Named::Test)
}

/// Whether a text in backticks is the name of a test: a path, or a bare name that is long and no metric's, or follows
/// another.
fn is_name(text: &str, follows: bool) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':';
    text.chars().all(plain)
        && text != "package::file::test"
        && (text.contains("::")
            || follows
            || (text.matches('_').count() > 3 && !text.starts_with("justitia_")))
}

/// What a document claims and is not so; and how many names it has.
fn wrong(document: &str) -> (Vec<String>, usize) {
    let (mut wrong, mut count) = (Vec::new(), 0);
    let mut file: Vec<String> = Vec::new();
    let mut before = None;
    let pieces: Vec<&str> = document.split('`').collect();
    for (at, text) in pieces.iter().enumerate().skip(1).step_by(2) {
        let after = pieces.get(at + 1).copied().unwrap_or_default();
        let follows = before.is_some_and(|gap: &str| gap.trim() == ",");
        before = None;
        if !is_name(text, follows) {
            continue;
        }
        (before, count) = (Some(after), count + 1);
        if !text.contains("::") {
            if !file.iter().any(|test| test == text) {
                wrong.push(format!("{text}: not among the tests of the file before it"));
            }
            continue;
        }
        let words: Vec<&str> = after.split_whitespace().take(3).collect();
        let words = words.join(" ");
        let said = COUNTS.iter().find(|(word, _)| {
            let words = words.strip_prefix(", ");
            words.is_some_and(|words| words.starts_with(word))
        });
        match (find(text), said) {
            (None, _) => wrong.push(format!("{text}: there is no such test")),
            (Some(Named::All(all)), Some((word, count))) if all.len() != *count => {
                wrong.push(format!("{text}: {word}, and there are {}", all.len()));
            }
            (Some(Named::All(tests) | Named::Test(tests)), _) => file = tests,
        }
    }
    (wrong, count)
}

#[test]
fn every_test_that_the_specification_names_exists() {
    let text = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let (wrong, count) = wrong(&text);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 150, "it names {count} tests only");
}

/// They also name functions of the kernel.
#[test]
fn every_test_that_the_other_documents_name_exists() {
    let mut all = 0;
    for (document, text) in documents() {
        let (mut wrong, _) = wrong(&text);
        wrong.retain(|what| what.contains("::"));
        let document = document.display();
        assert!(wrong.is_empty(), "{document}:\n{}", wrong.join("\n"));
        let mut quoted = text.split('`').skip(1).step_by(2);
        all += usize::from(
            quoted.any(|name| is_name(name, false) && name.contains("::") && find(name).is_some()),
        );
    }
    assert!(all > 0, "none of them names a test that exists");
}

#[test]
fn what_does_not_exist_is_found() {
    let good = "(`checks::documents::what_does_not_exist_is_found`,\n  `every_test_that_the_specification_names_exists`; \
                `checks::documents`, all three tests; `share::weight::tests::range_is_that_of_cgroup_v2`; `io.max`)";
    assert_eq!(wrong(good), (vec![], 4));
    for (bad, said) in [
        ("`checks::documents::nothing`", "there is no such test"),
        (
            "`share::nothing::what_does_not_exist_is_found`",
            "there is no such test",
        ),
        ("`nothing::documents`", "there is no such test"),
        (
            "`checks::documents`, all five tests",
            "all five, and there are 3",
        ),
        ("`checks::documents`, `range`", "not among the tests"),
        ("`a_test_that_does_not_exist`", "not among the tests"),
    ] {
        let (wrong, _) = wrong(bad);
        assert!(
            wrong.len() == 1 && wrong[0].contains(said),
            "{bad}: {wrong:?}"
        );
    }
}
