//! Lists of what is meant to be an exception. A list is `checks/exceptions/NAME.txt`, an entry a line with its reason.

use std::collections::BTreeMap;

use crate::{Error, Result, Workspace, read};

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
