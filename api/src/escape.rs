//! Cgroup names are bytes chosen by others: spaces, newlines, control sequences, no UTF-8. Here they become
//! plain text that can be printed, logged and read back. Other text that others have written stays as it is but for
//! what a terminal would not show, but do.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Every byte outside printable ASCII, and `\`, as `\xNN`.
#[must_use]
pub fn encode(name: &OsStr) -> String {
    let mut text = String::with_capacity(name.len());
    for &byte in name.as_bytes() {
        if shown(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// How long [`encode`] makes a name, bytes.
#[must_use]
pub fn encoded_len(name: &OsStr) -> usize {
    let long = |byte: &u8| if shown(*byte) { 1 } else { r"\xNN".len() };
    name.as_bytes().iter().map(long).sum()
}

/// Whether a byte stays as it is.
const fn shown(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'\\'
}

/// The inverse of [`encode`]; `None` for text that it does not produce.
#[must_use]
pub fn decode(text: &str) -> Option<OsString> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'\\' {
            let (digits, after) = tail.strip_prefix(b"x")?.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    Some(OsString::from_vec(bytes))
}

/// Text for people, on one line: control characters, and those that turn the direction of what follows or are not seen,
/// as `\u{...}` (`\n`, `\t` for those). Not to be read back.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_plain(c) {
            out.push(c);
        } else {
            out.extend(c.escape_debug());
        }
    }
    out
}

/// JSON that says the same, with what [`plain`] would not leave as it is as `\uNNNN`.
#[must_use]
pub fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // Below it is JSON's own: it leaves no control character but between values, where these are.
        if c <= '~' || is_plain(c) {
            out.push(c);
        } else {
            let units = c.encode_utf16(&mut [0; 2]).to_vec();
            out.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    out
}

/// Whether a terminal shows a character, and does nothing else.
#[must_use]
pub fn is_plain(c: char) -> bool {
    // What `Debug` leaves as it is can be seen; quotes and backslashes it marks only to be read back.
    matches!(c, ' '..='~') || c.escape_debug().eq([c])
}

/// The same for text of several lines.
#[must_use]
pub fn plain_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(plain).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_stays_on_one_line() {
        assert_eq!(
            encode(OsStr::from_bytes(b"a b\n\x1b[31m\\\xff/c")),
            r"a b\x0a\x1b[31m\x5c\xff/c"
        );
    }

    #[test]
    fn nothing_reaches_a_terminal_but_what_it_shows() {
        assert_eq!(
            plain("a \"b\" \\ größe 日\x1b[31m\u{9b}2J\u{202e}\u{2066}\u{200b}\x7f\r\n\t"),
            "a \"b\" \\ größe 日\\u{1b}[31m\\u{9b}2J\\u{202e}\\u{2066}\\u{200b}\\u{7f}\\r\\n\\t"
        );
        assert_eq!(
            json("{\n  \"größe\": \"\u{9b}2J\u{202e}\u{7f}\u{e0001}\"\n}"),
            "{\n  \"größe\": \"\\u009b2J\\u202e\\u007f\\udb40\\udc01\"\n}"
        );
        assert_eq!(plain_lines("a\x1b\n\nb\n"), "a\\u{1b}\n\nb\n");
    }

    proptest! {
        #[test]
        fn json_is_plain_and_says_the_same(text in any::<String>()) {
            let shown = json(&serde_json::to_string_pretty(&[&text]).unwrap());
            prop_assert!(shown.chars().all(|c| c == '\n' || is_plain(c)), "{:?}", shown);
            prop_assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [text]);
        }

        #[test]
        fn what_is_plain_stays_so(text in any::<String>()) {
            let once = plain(&text);
            prop_assert!(!once.chars().any(char::is_control));
            prop_assert_eq!(plain(&once), once);
        }

        #[test]
        fn comes_back(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let name = OsString::from_vec(bytes);
            let text = encode(&name);
            prop_assert!(text.chars().all(|c| (' '..='~').contains(&c)));
            prop_assert_eq!(encoded_len(&name), text.len());
            prop_assert_eq!(decode(&text), Some(name));
        }

        #[test]
        fn anything_may_be_decoded(text in ".{0,40}") {
            let _ = decode(&text);
        }
    }
}
