//! What serde says, for people: what was expected, what was found, what to do. No name of a type of Rust is among it.

use std::collections::BTreeSet;

/// How alike two names must be that one is offered for the other.
const ALIKE: f64 = 0.8;

/// What of `choices` was probably meant by `found`, as the end of a sentence: `: did you mean `x`?`; empty if nothing is
/// like it.
#[must_use]
pub fn did_you_mean<'a>(found: &str, choices: impl IntoIterator<Item = &'a str>) -> String {
    let alike = choices
        .into_iter()
        .map(|choice| (strsim::jaro_winkler(found, choice), choice));
    let nearest = alike.max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((alike, choice)) if alike >= ALIKE => format!(": did you mean `{choice}`?"),
        _ => String::new(),
    }
}

/// That `found` is no `kind`, of which these are the `choices`.
#[must_use]
pub fn none_of<'a>(
    kind: &str,
    found: &str,
    choices: impl IntoIterator<Item = &'a str> + Clone,
) -> String {
    let names: Vec<&str> = choices.clone().into_iter().collect();
    let meant = did_you_mean(found, choices);
    format!(
        "expected {kind} ({}), found {found:?}{meant}",
        names.join(", ")
    )
}

/// These names, each of which defines a `what`.
///
/// # Errors
/// That one is there twice.
pub fn unique<'a>(
    what: &str,
    names: impl Iterator<Item = &'a str>,
) -> Result<BTreeSet<&'a str>, String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("expected every {what} once, found {name:?} twice"));
        }
    }
    Ok(seen)
}

/// Whether `name` is one of a `what`.
///
/// # Errors
/// That it is none, and what there is.
pub fn known(what: &str, names: &BTreeSet<&str>, name: &str) -> Result<(), String> {
    match names.contains(name) {
        true => Ok(()),
        false => Err(none_of(&format!("a {what}"), name, names.iter().copied())),
    }
}

/// What serde says, in the order of our own errors.
#[must_use]
pub fn reworded(said: &str) -> String {
    // Such as a mode.
    if said.starts_with("unexpected leading zero") {
        return "expected a number without a zero before it, found one with: to keep the zero, quote it, such as \"0660\""
            .to_owned();
    }
    let parted = |begin: &str, between: &str| {
        let (found, expected) = said.strip_prefix(begin)?.rsplit_once(between)?;
        Some((found.to_owned(), expected.to_owned()))
    };
    if let Some(key) = said.strip_prefix("missing field ") {
        return format!("expected the key {key}, found none: add it");
    }
    if let Some(expected) = said.strip_prefix("wanted ") {
        return format!("expected {}", wanted(expected));
    }
    if let Some((key, expected)) = parted("unknown field ", ", expected ") {
        let meant = match did_you_mean(key.trim_matches('`'), names(&expected)) {
            none if none.is_empty() => ": correct or remove it".to_owned(),
            meant => meant,
        };
        return format!("expected {expected}, found the unknown key {key}{meant}");
    }
    if let Some((found, expected)) = parted("unknown variant ", ", expected ") {
        let meant = did_you_mean(found.trim_matches('`'), names(&expected));
        return format!("expected {expected}, found {found}{meant}");
    }
    for begin in ["invalid type: ", "invalid value: ", "invalid length "] {
        if let Some((found, expected)) = parted(begin, ", expected ") {
            return format!("expected {}, found {}", wanted(&expected), value(&found));
        }
    }
    match said {
        "invalid socket address syntax" => {
            "expected an address and a port such as \"127.0.0.1:9742\", found another text"
                .to_owned()
        }
        _ => said.to_owned(),
    }
}

/// The names in backticks.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split('`').skip(1).step_by(2)
}

/// What a type of Rust is in a file.
fn wanted(expected: &str) -> String {
    let whole = |from: i128, to: i128| format!("a whole number from {from} to {to}");
    match expected {
        "u8" => whole(0, u8::MAX.into()),
        "u16" => whole(0, u16::MAX.into()),
        "u32" => whole(0, u32::MAX.into()),
        "u64" | "usize" | "u128" | "nonzero u64" | "a nonzero u64" => {
            "a whole number, not below 0".to_owned()
        }
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "path string" => "a path".to_owned(),
        "a sequence" => "a list".to_owned(),
        "socket address" => "an address and a port such as \"127.0.0.1:9742\"".to_owned(),
        "a map" | "map" => "a table".to_owned(),
        _ => {
            let of = |kinds: &[&str]| kinds.iter().any(|kind| expected.starts_with(kind));
            if of(&[
                "struct ",
                "internally tagged enum ",
                "adjacently tagged enum ",
            ]) {
                "a table".to_owned()
            } else if of(&["enum ", "variant ", "string or table", "unit variant "]) {
                "a name".to_owned()
            } else {
                expected.to_owned()
            }
        }
    }
}

/// A value that was found.
fn value(found: &str) -> String {
    for kind in ["integer ", "floating point ", "boolean ", "character "] {
        if let Some(value) = found.strip_prefix(kind) {
            return value.replace('`', "");
        }
    }
    match found {
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        _ => found.strip_prefix("string ").unwrap_or(found).to_owned(),
    }
}
