//! The few formats in which the kernel prints numbers.

/// A text that does not have the kernel's format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected {expected}, found \"{found}\"")]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// What was expected.
    pub expected: &'static str,
    /// What was found: printable, and not much longer than 48 bytes of it.
    pub found: String,
}

/// How many bytes of a text an error quotes.
const EXCERPT: usize = 48;

/// What a parser returns.
pub(crate) type Parsed<T> = Result<T, ParseError>;

impl ParseError {
    /// An error about `found` on `line` (counted from 1).
    pub(crate) fn new(line: usize, expected: &'static str, found: &[u8]) -> Self {
        let shown = found.get(..EXCERPT).unwrap_or(found);
        let mut text = shown.escape_ascii().to_string();
        if shown.len() < found.len() {
            text.push('…');
        }
        Self {
            line,
            expected,
            found: text,
        }
    }
}

/// The lines of `text`, counted from 1, without their newlines; empty lines are left out, and the
/// last newline may be missing.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> + Clone {
    text.split(|byte| *byte == b'\n')
        .enumerate()
        .map(|(index, line)| (index.saturating_add(1), line))
        .filter(|(_, line)| !line.is_empty())
}

/// The words of `line`, separated by any number of blanks.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|byte| *byte == b' ' || *byte == b'\t')
        .filter(|word| !word.is_empty())
}

/// `word` cut at its first `at`.
pub(crate) fn cut(word: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = word.iter().position(|byte| *byte == at)?;
    Some((word.get(..index)?, word.get(index.checked_add(1)?..)?))
}

/// `word` as a number: decimal digits only, and no more than a `u64` holds.
pub(crate) fn number(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// One line of a flat-keyed file (`key value`).
pub(crate) struct Keyed<'a> {
    /// The line, counted from 1.
    number: usize,
    line: &'a [u8],
    /// The text before the first blank.
    pub(crate) key: &'a [u8],
    value: &'a [u8],
}

impl Keyed<'_> {
    /// The value, which is all that follows the blank, as a number.
    pub(crate) fn value(&self) -> Parsed<u64> {
        number(self.value).ok_or_else(|| ParseError::new(self.number, "`key number`", self.line))
    }
}

/// The lines of a flat-keyed file.
pub(crate) fn keyed(text: &[u8]) -> impl Iterator<Item = Parsed<Keyed<'_>>> {
    lines(text).map(|(number, line)| {
        let (key, value) =
            cut(line, b' ').ok_or_else(|| ParseError::new(number, "`key value`", line))?;
        Ok(Keyed {
            number,
            line,
            key,
            value,
        })
    })
}

/// The file's only line, without trailing blanks. Everything after it must be blank.
pub(crate) fn only_line<'a>(text: &'a [u8], expected: &'static str) -> Parsed<&'a [u8]> {
    let line = text.trim_ascii();
    if line.is_empty() || line.contains(&b'\n') {
        return Err(ParseError::new(1, expected, text));
    }
    Ok(line)
}

/// The number that is the whole file.
pub(crate) fn only_number(text: &[u8]) -> Parsed<u64> {
    const EXPECTED: &str = "one number";
    let line = only_line(text, EXPECTED)?;
    number(line).ok_or_else(|| ParseError::new(1, EXPECTED, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_that_fit() {
        assert_eq!(number(b"0"), Some(0));
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for bad in [
            &b""[..],
            b"-1",
            b"+1",
            b"1 ",
            b"1\0",
            b"18446744073709551616",
            b"0x1",
            b"\xff",
        ] {
            assert_eq!(number(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn excerpts_are_bounded_and_printable() {
        let error = ParseError::new(3, "a number", &[0xff; 10_000]);
        assert!(error.found.len() < 4 * EXCERPT + 4);
        assert!(error.found.starts_with(r"\xff\xff"));
        assert!(error.to_string().starts_with("line 3: expected a number"));
    }

    #[test]
    fn one_line_means_one() {
        assert_eq!(only_number(b"12\n"), Ok(12));
        assert_eq!(only_number(b"12"), Ok(12));
        for bad in [&b""[..], b"\n", b"1\n2\n", b"1 2\n"] {
            assert!(only_number(bad).is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn lines_keep_their_number() {
        let all: Vec<_> = lines(b"a\n\nb").collect();
        assert_eq!(all, [(1, &b"a"[..]), (3, &b"b"[..])]);
    }
}
