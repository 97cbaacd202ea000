//! Links between the documents lead to files that are there, and to headings that these have.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

mod markdown;

use markdown::{documents, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Lines that are not in a fenced block.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// The name by which a link leads to a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    // Of a link in it only the text counts.
    let mut shown = String::new();
    for part in heading.split("](") {
        let text = match shown.is_empty() {
            true => part,
            false => part.split_once(')').map_or(part, |(_, after)| after),
        };
        shown.push_str(text);
    }
    let lower = shown.trim().to_lowercase();
    let kept = lower
        .chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The anchors of a document: of equal headings the second has `-1`, and so on.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let headings = lines(text).filter(|line| line.starts_with('#'));
    for heading in headings.filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')) {
        let name = anchor(heading);
        let numbered = (1..).map(|n| format!("{name}-{n}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        anchors.insert(names.find(|name| !anchors.contains(name)).unwrap());
    }
    anchors
}

/// Where the links of a document lead that stay in the repository: a path and an anchor, each possibly empty.
fn links(text: &str) -> Vec<(String, String)> {
    let text: String = lines(text).flat_map(|line| [line, "\n"]).collect();
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let ours =
        targets.filter(|target| !target.contains(':') && !target.contains(char::is_whitespace));
    let parts = ours.map(|target| target.split_once('#').unwrap_or((target, "")));
    parts
        .map(|(path, anchor)| (path.to_owned(), anchor.to_owned()))
        .collect()
}

/// A path from a document, from the workspace's directory.
fn resolved(document: &Path, path: &str) -> PathBuf {
    if path.is_empty() {
        return document.to_owned();
    }
    let mut resolved = document.parent().unwrap_or(document).to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::CurDir => {}
            other => resolved.push(other),
        }
    }
    resolved
}

/// The links of a document that lead nowhere; and how many it has.
fn broken(document: &Path, text: &str) -> (Vec<String>, usize) {
    let links = links(text);
    let leads = |path: &str, anchor: &str| {
        let file = root().join(resolved(document, path));
        let is_document = file.extension().is_some_and(|kind| kind == "md");
        match anchor.is_empty() || !is_document {
            true => file.exists(),
            false if path.is_empty() => anchors(text).contains(anchor),
            false => fs::read_to_string(file).is_ok_and(|text| anchors(&text).contains(anchor)),
        }
    };
    let broken = links.iter().filter(|(path, anchor)| !leads(path, anchor));
    let broken = broken.map(|(path, anchor)| format!("{path}#{anchor}"));
    (broken.collect(), links.len())
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let mut all = 0;
    for (document, text) in documents() {
        let (broken, count) = broken(&document, &text);
        assert!(broken.is_empty(), "{}: {broken:?}", document.display());
        all += count;
    }
    assert!(all > 100, "the documents have {all} links only");
}

/// What packages hold of the repository, at the same places: what `product` of `packaging/tree.sh` copies.
fn packaged() -> Vec<PathBuf> {
    let script = fs::read_to_string(root().join("packaging/tree.sh")).unwrap();
    let (_, list) = script.split_once("for document in ").unwrap();
    let (list, _) = list.split_once("; do\n").unwrap();
    let words = list.split_whitespace().filter(|word| *word != "\\");
    words.map(PathBuf::from).collect()
}

#[test]
fn every_link_of_a_packaged_document_leads_to_what_is_packaged() {
    let packaged = packaged();
    let is_packaged = |path: &Path| packaged.iter().any(|place| path.starts_with(place));
    let mut all = 0;
    for (document, text) in documents() {
        if !is_packaged(&document) {
            continue;
        }
        let links = links(&text).into_iter();
        let targets = links.map(|(path, _)| resolved(&document, &path));
        let missing: Vec<PathBuf> = targets.filter(|path| !is_packaged(path)).collect();
        let document = document.display();
        assert!(
            missing.is_empty(),
            "{document}: packaging/tree.sh does not copy {missing:?}"
        );
        all += 1;
    }
    assert!(all > 20, "{all} documents are packaged only");
}

/// The lab's package has none of its own: it needs the product's, which has all of them.
#[test]
fn no_document_is_packaged_without_those_that_it_names() {
    let script = fs::read_to_string(root().join("packaging/lab-deb.sh")).unwrap();
    assert!(script.contains("Depends: justitia (= $version)"));
    let copies = |line: &&str| line.contains("install ") && line.contains(".md");
    let copied: Vec<&str> = script.lines().filter(copies).collect();
    assert!(copied.is_empty(), "{copied:?}");
    let guide = Path::new("docs/guide/lab.md");
    assert!(packaged().iter().any(|place| guide.starts_with(place)));
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let text = "# A `heading`, with [a link](README.md)\n\n## Same\n\n## Same\n\n```\n# code\n[no](no.md)\n```\n";
    let found: Vec<String> = anchors(text).into_iter().collect();
    assert_eq!(found, ["a-heading-with-a-link", "same", "same-1"]);
    for (link, expected) in [
        ("[here](#same-1) and [there](https://no.example/#no)", None),
        ("[here](#code)", Some("#code")),
        (
            "[up](../../README.md#documents), [file](../../Makefile)",
            None,
        ),
        ("[up](../../README.md#no)", Some("../../README.md#no")),
        ("[down](no.md)", Some("no.md#")),
        ("[a\nbreak](../guide/README.md)", None),
    ] {
        let expected: Vec<String> = expected.map(str::to_owned).into_iter().collect();
        let (found, _) = broken(Path::new("docs/design/x.md"), &format!("{text}{link}\n"));
        assert_eq!(found, expected, "{link}");
    }
}
