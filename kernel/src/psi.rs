//! Pressure stall information (Documentation/accounting/psi.rst).

use justitia_share::num::to_f64;

use crate::parse::{self, ParseError, Parsed};

/// The resource that tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PsiResource {
    /// Memory: refaults, reclaim, swap.
    Memory,
    /// Block I/O.
    Io,
}

impl PsiResource {
    /// The file in a cgroup's directory.
    #[must_use]
    pub const fn cgroup_file(self) -> &'static str {
        match self {
            Self::Memory => "memory.pressure",
            Self::Io => "io.pressure",
        }
    }

    /// The file in `/proc`.
    #[must_use]
    pub const fn proc_file(self) -> &'static str {
        match self {
            Self::Memory => "pressure/memory",
            Self::Io => "pressure/io",
        }
    }
}

/// One line: a percentage of wall time (0.0..=100.0, steps of 0.01), and the total.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PsiLine {
    /// Over the last 10 seconds, percent.
    pub avg10: f64,
    /// Stalled in all, microseconds.
    pub total: u64,
}

/// The pressure on one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Psi {
    /// Some task was stalled.
    pub some: PsiLine,
    /// All tasks that could run were stalled. Zero where the kernel does not print the line.
    pub full: PsiLine,
}

impl Psi {
    /// Reads `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, then the same with `full`.
    ///
    /// # Errors
    /// When the `some` line is missing, a value is missing or no number. Unknown lines and keys
    /// are passed over.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut some = None;
        let mut full = None;
        for (number, line) in parse::lines(text) {
            let mut words = parse::words(line);
            match words.next() {
                Some(b"some") => some = Some(psi_line(number, line, words)?),
                Some(b"full") => full = Some(psi_line(number, line, words)?),
                _ => {}
            }
        }
        Ok(Self {
            some: some.ok_or_else(|| ParseError::new(1, "a line `some avg10=…`", text))?,
            full: full.unwrap_or_default(),
        })
    }
}

fn psi_line<'a>(
    number: usize,
    line: &[u8],
    words: impl Iterator<Item = &'a [u8]>,
) -> Parsed<PsiLine> {
    const AVERAGE: &str = "a percentage such as avg10=1.25";
    let (mut avg10, mut total) = (None, None);
    for word in words {
        match parse::cut(word, b'=') {
            Some((b"avg10", value)) => {
                avg10 = Some(percent(value).ok_or_else(|| ParseError::new(number, AVERAGE, word))?);
            }
            Some((b"total", value)) => {
                total = Some(
                    parse::number(value)
                        .ok_or_else(|| ParseError::new(number, "total=microseconds", word))?,
                );
            }
            _ => {}
        }
    }
    match (avg10, total) {
        (Some(avg10), Some(total)) => Ok(PsiLine { avg10, total }),
        _ => Err(ParseError::new(number, "avg10= and total=", line)),
    }
}

/// `12.34`, as `LOAD_INT.LOAD_FRAC` prints it: two digits after the point.
fn percent(value: &[u8]) -> Option<f64> {
    let (whole, fraction) = parse::cut(value, b'.')?;
    if fraction.len() != 2 {
        return None;
    }
    let hundredths = parse::number(whole)?
        .checked_mul(100)?
        .checked_add(parse::number(fraction)?)?;
    (hundredths <= 10_000).then(|| to_f64(hundredths) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines() {
        let psi = Psi::parse(
            b"some avg10=1.25 avg60=0.07 avg300=100.00 total=123\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=45\n",
        )
        .unwrap();
        assert_eq!((psi.some.avg10, psi.some.total), (1.25, 123));
        assert_eq!((psi.full.avg10, psi.full.total), (0.5, 45));
    }

    #[test]
    fn full_may_be_missing_some_may_not() {
        let line = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(Psi::parse(line).unwrap().full, PsiLine::default());
        assert!(Psi::parse(b"full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n").is_err());
    }

    #[test]
    fn wrong_values_are_refused() {
        for bad in [
            "",
            "some",
            "some avg10=nan avg60=0.00 avg300=0.00 total=0",
            "some avg10=-1.00 avg60=0.00 avg300=0.00 total=0",
            "some avg10=100.01 avg60=0.00 avg300=0.00 total=0",
            "some avg10=1.0 avg60=0.00 avg300=0.00 total=0",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=99999999999999999999",
            "some avg10=0.00 avg60=0.00 avg300=0.00",
        ] {
            assert!(Psi::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
