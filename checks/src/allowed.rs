//! Lists of what does not meet a check yet. A list is `checks/allowed/NAME.txt`, an entry a line, sorted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::{Error, Result, Workspace, read};

/// With this variable set, the lists are written anew instead of compared.
const WRITE: &str = "CHECKS_WRITE";

/// Compares what was found with the list of that name; says how they differ. With `CHECKS_WRITE` set, what was found
/// becomes the list.
///
/// # Errors
/// If the list cannot be read, or written.
pub fn compare(list: &str, found: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let path = Workspace::this()
        .root
        .join("checks/allowed")
        .join(list)
        .with_extension("txt");
    if std::env::var_os(WRITE).is_some() {
        write(&path, found)?;
    }
    let mut wrong = difference(&read(&path)?, found);
    if !wrong.is_empty() {
        wrong.push(format!(
            "(`{WRITE}=1 cargo test -p justitia-checks` writes {list} anew.)"
        ));
    }
    Ok(wrong)
}

fn write(path: &Path, found: &BTreeMap<String, String>) -> Result<()> {
    let lines: String = found.keys().map(|entry| format!("{entry}\n")).collect();
    fs::write(path, lines).map_err(|error| Error::new(path, error))
}

/// What is found and not in the list, with what is to be said of it, and what is in the list and not found.
fn difference(list: &str, found: &BTreeMap<String, String>) -> Vec<String> {
    let allowed: BTreeSet<&str> = list.lines().filter(|line| !line.is_empty()).collect();
    let new = found
        .iter()
        .filter(|(entry, _)| !allowed.contains(entry.as_str()));
    let new = new.map(|(entry, said)| format!("{entry}: {said}"));
    let gone = allowed.iter().filter(|entry| !found.contains_key(**entry));
    let gone = gone.map(|entry| format!("{entry}: mended, so its line is to go from the list"));
    new.chain(gone).collect()
}

/// The exceptions of that name that are meant to stay: entry and reason, from lines `entry: reason`.
///
/// # Errors
/// If the list cannot be read, or a line has no reason.
pub fn exceptions(list: &str) -> Result<BTreeMap<String, String>> {
    let path = Workspace::this()
        .root
        .join("checks/exceptions")
        .join(list)
        .with_extension("txt");
    let text = read(&path)?;
    let entries = text.lines().filter(|line| !line.is_empty()).map(|line| {
        let (entry, reason) = line.split_once(": ").unwrap_or_default();
        match reason.trim() {
            "" => Err(Error::new(&path, format!("no reason: {line}"))),
            reason => Ok((entry.to_owned(), reason.to_owned())),
        }
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_only_shrinks() {
        let found = BTreeMap::from([("a".to_owned(), "too long".to_owned())]);
        assert_eq!(difference("a\n", &found), Vec::<String>::new());
        assert_eq!(difference("", &found), ["a: too long"]);
        let gone = difference("a\nb\n", &found);
        assert!(
            gone.len() == 1 && gone[0].starts_with("b: mended"),
            "{gone:?}"
        );
    }
}
