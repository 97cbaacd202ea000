//! The files of the cgroup core (Documentation/admin-guide/cgroup-v2.rst, "Core Interface Files").

use crate::parse::{self, ParseError, Parsed};

/// `cgroup.events`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupEvents {
    /// The cgroup or a descendant holds a process.
    pub populated: bool,
    /// The cgroup is frozen. `false` where the kernel does not print it.
    pub frozen: bool,
}

impl CgroupEvents {
    /// Reads `populated 1` and `frozen 0`.
    ///
    /// # Errors
    /// When `populated` is missing or a value is neither 0 nor 1.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut populated = None;
        let mut frozen = false;
        for (number, line) in parse::lines(text) {
            let value = |word: &[u8]| match word {
                b"0" => Ok(false),
                b"1" => Ok(true),
                _ => Err(ParseError::new(number, "0 or 1", line)),
            };
            match parse::cut(line, b' ') {
                Some((b"populated", word)) => populated = Some(value(word)?),
                Some((b"frozen", word)) => frozen = value(word)?,
                _ => {}
            }
        }
        Ok(Self {
            populated: populated
                .ok_or_else(|| ParseError::new(1, "a line `populated 0` or `1`", text))?,
            frozen,
        })
    }
}

/// The controllers that `cgroup.controllers` or `cgroup.subtree_control` lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controllers(Vec<String>);

impl Controllers {
    /// Reads names separated by blanks; an empty file is an empty list.
    ///
    /// # Errors
    /// When a name holds anything but lower-case letters, digits and `_`.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut names = Vec::new();
        for (number, line) in parse::lines(text) {
            for word in parse::words(line) {
                let plain =
                    |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_';
                if !word.iter().all(plain) {
                    return Err(ParseError::new(number, "names of controllers", word));
                }
                names.push(String::from_utf8_lossy(word).into_owned());
            }
        }
        Ok(Self(names))
    }

    /// Whether `controller` is listed.
    #[must_use]
    pub fn has(&self, controller: &str) -> bool {
        self.0.iter().any(|name| name == controller)
    }

    /// Their names, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

/// The value of one key of a flat-keyed file.
pub(super) fn keyed_number(text: &[u8], key: &[u8], expected: &'static str) -> Parsed<u64> {
    parse::lines(text)
        .find_map(|(number, line)| {
            let (found, value) = parse::cut(line, b' ')?;
            (found == key).then(|| {
                parse::number(value).ok_or_else(|| ParseError::new(number, expected, line))
            })
        })
        .unwrap_or_else(|| Err(ParseError::new(1, expected, text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events() {
        let events = CgroupEvents::parse(b"populated 1\nfrozen 0\n").unwrap();
        assert!(events.populated && !events.frozen);
        assert!(CgroupEvents::parse(b"frozen 1\n").is_err());
        assert!(CgroupEvents::parse(b"populated 2\n").is_err());
        assert!(CgroupEvents::parse(b"populated\n").is_err());
    }

    #[test]
    fn controllers() {
        let all = Controllers::parse(b"cpuset cpu io memory hugetlb pids\n").unwrap();
        assert!(all.has("memory") && all.has("io") && !all.has("mem"));
        assert_eq!(all.iter().count(), 6);
        assert_eq!(Controllers::parse(b"\n"), Ok(Controllers::default()));
        assert!(Controllers::parse(b"memory \xff\n").is_err());
    }

    #[test]
    fn one_key_of_many() {
        let text = b"usage_usec 12\nuser_usec 7\n";
        assert_eq!(keyed_number(text, b"user_usec", "x"), Ok(7));
        assert!(keyed_number(text, b"usage", "x").is_err());
        assert!(keyed_number(b"usage_usec -1\n", b"usage_usec", "x").is_err());
    }
}
