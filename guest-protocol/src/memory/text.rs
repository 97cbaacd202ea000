//! Texts of the other side, made safe to show and to log.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A text of the other side, cut to a number of printable ASCII characters. Others, and those that the type refuses, become
/// question marks.
macro_rules! text {
    ($(#[$what:meta])* $name:ident, $most:literal, $refused:literal) => {
        $(#[$what])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "String")]
        pub struct $name(String);

        impl $name {
            /// Bytes of the longest.
            pub const MAX: usize = $most;

            /// The beginning of a text, with a question mark for each forbidden character.
            #[must_use]
            pub fn new(text: &str) -> Self {
                Self(printable(text, Self::MAX, $refused))
            }

            /// Its text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::new(&text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text!(
    /// An error text of at most [`Self::MAX`] printable ASCII characters: it may come from the other side, and is logged.
    ErrorText, 200, ""
);
text!(
    /// A disk's serial of at most [`Self::MAX`] printable ASCII characters. None is escaped in JSON: neither quotes nor
    /// backslashes.
    SerialText, 40, "\"\\"
);
text!(
    /// The name of a container, pod or unit: at most [`Self::MAX`] printable ASCII characters. None is escaped in JSON. There is
    /// no space, so that a name cannot look like several columns of a table.
    TenantName, 64, " \"\\"
);

/// The first `most` characters of a text, with a question mark for each that is not printable ASCII or is one of `refused`.
fn printable(text: &str, most: usize, refused: &str) -> String {
    let shown = |c: char| match c {
        ' '..='~' if !refused.contains(c) => c,
        _ => '?',
    };
    text.chars().take(most).map(shown).collect()
}

/// A line that is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found a line that is none: {why}")]
pub struct Malformed {
    /// The id of the line, if it has one: a request is answered with it.
    pub id: Option<u64>,
    /// Why it is none.
    pub why: ErrorText,
    expected: &'static str,
}

/// Reads a line that is an object.
pub(crate) fn read<T: DeserializeOwned>(
    line: &[u8],
    expected: &'static str,
) -> Result<T, Malformed> {
    #[derive(Deserialize)]
    struct Id {
        id: u64,
    }
    let malformed = |id, why: &str| Malformed {
        id,
        why: ErrorText::new(why),
        expected,
    };
    // An array would be read as an object without names.
    if !line.trim_ascii_start().starts_with(b"{") {
        return Err(malformed(None, "no object"));
    }
    serde_json::from_slice(line).map_err(|why| {
        let id = serde_json::from_slice(line).ok().map(|Id { id }| id);
        malformed(id, &why.to_string())
    })
}
