//! Block traces: what a line of each format says, and where a line says nothing that can be done.

use std::io::{self, BufRead, Read};

use clap::ValueEnum;

use super::line::{Line, Request};
use super::{blkparse, csv};

/// Longest line that is read, in bytes.
const LONGEST_LINE: u64 = 4096;
/// How much of a wrong line an error shows, in characters.
const SHOWN: usize = 100;

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// MSR Cambridge (SNIA IOTTA): time in 100 ns, host, disk, Read or Write, offset and size in bytes,
    /// response time.
    Msr,
    /// SPC (UMass): unit, first 512-byte block, size in bytes, R or W, time in seconds.
    Spc,
    /// The text that blkparse prints; what was queued (Q) counts.
    Blkparse,
    /// `CloudPhysics` samples: version, time in seconds, SCSI operation in hexadecimal, size in bytes, first
    /// 512-byte block.
    Cloudphysics,
}

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceError {
    /// A line that says nothing in its format.
    #[error("line {line}: expected {expected}; found {found:?}")]
    Line {
        /// From 1.
        line: u64,
        /// What should be there.
        expected: String,
        /// What is, or its beginning.
        found: String,
    },
    /// The file cannot be read.
    #[error("line {line}: {source}")]
    Io {
        /// From 1.
        line: u64,
        /// Why.
        source: io::Error,
    },
    /// There is no request in it.
    #[error("expected requests, found none in {lines} lines")]
    Empty {
        /// How many lines were read.
        lines: u64,
    },
}

/// Reads at most `most` requests. Times count from the first; one before its predecessor's is taken as that.
///
/// # Errors
/// At the first line that is none of its format; if there is no request at all.
pub(super) fn read(
    mut from: impl BufRead,
    format: Format,
    most: usize,
) -> Result<Vec<Request>, TraceError> {
    let mut requests: Vec<Request> = Vec::new();
    let mut first = None;
    let mut raw = Vec::new();
    let mut line = 0;
    while requests.len() < most {
        line += 1;
        raw.clear();
        let count = from
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut raw)
            .map_err(|source| TraceError::Io { line, source })?;
        if count == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&raw);
        let text = text.trim();
        let wrong = |expected: String| TraceError::Line {
            line,
            expected,
            found: text.chars().take(SHOWN).collect(),
        };
        if raw.len() as u64 == LONGEST_LINE && !raw.ends_with(b"\n") {
            return Err(wrong(format!("a line shorter than {LONGEST_LINE} bytes")));
        }
        let parsed = match format {
            Format::Msr => csv::msr(text),
            Format::Spc => csv::spc(text),
            Format::Cloudphysics => csv::cloudphysics(text, line == 1),
            Format::Blkparse => blkparse::line(text),
        };
        match parsed.map_err(wrong)? {
            Line::Other => {}
            Line::End => break,
            Line::Request(request) => {
                let begin = *first.get_or_insert(request.at);
                let before = requests.last().map_or(0, |last| last.at);
                requests.push(Request {
                    at: request.at.saturating_sub(begin).max(before),
                    ..request
                });
            }
        }
    }
    if requests.is_empty() {
        return Err(TraceError::Empty { lines: line });
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::super::line::MAX_REQUEST_BYTES;
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str, format: Format) -> Result<Vec<Request>, String> {
        read(text.as_bytes(), format, 1000).map_err(|error| error.to_string())
    }

    fn request(at: u64, write: bool, offset: u64, bytes: u64) -> Request {
        Request {
            at,
            write,
            offset,
            bytes,
        }
    }

    #[test]
    fn every_format_says_the_same() {
        let wanted = [
            request(0, true, 8192, 4096),
            request(1_500_000, false, 1024, 512),
        ];
        let msr = "128166372003061629,usr,0,Write,8192,4096,1331\r\n\
                   128166372003076629,usr,0,Read,1024,512,9\r\n";
        let spc = "0,16,4096,W,0.011413\n0,2,512,r,0.012913,extra\n";
        let blk = "  8,0    1        1     0.000000000   697  G   W 16 + 8 [kworker/1:1]\n\
                   \x20 8,0    1        2     0.000001000   697  Q   W 16 + 8 [kworker/1:1]\n\
                   \x20 8,0    1        3     0.000009000     0  m   N cfq workload slice:100\n\
                   \x20 8,0    3        4     0.001501000   697  Q   R 2 + 1 [cat]\n\
                   \x20 8,0    3        5     0.001601000   697  Q FWS [fsync]\n\
                   \x20 8,0    3        6     0.001701000   697  Q   D 0 + 4096 [fstrim]\n\
                   CPU1 (8,0):\n Reads Queued:  1, 1KiB\n";
        let cloud = "version,time,op,size,lbn\n1,7.0,2a,4096,16\n1,7.0015,28,512,2\n1,8,35,0,0\n";
        for (text, format) in [
            (msr, Format::Msr),
            (spc, Format::Spc),
            (blk, Format::Blkparse),
            (cloud, Format::Cloudphysics),
        ] {
            assert_eq!(parse(text, format).unwrap(), wanted, "{format:?}");
        }
    }

    #[test]
    fn errors_say_the_line_and_what_was_expected() {
        for (text, format, line, expected) in [
            ("1,h,0,Read,0,512,1\nsecond\n", Format::Msr, 2, "time"),
            ("1,h,0,Reed,0,512,1", Format::Msr, 1, "Read or Write"),
            ("1,h,0,Read,-1,512,1", Format::Msr, 1, "offset"),
            (
                "1,h,0,Read,0,999999999999,1",
                Format::Msr,
                1,
                "at most 67108864 bytes",
            ),
            (
                "1,h,0,Read,18446744073709551615,512,1",
                Format::Msr,
                1,
                "below 16 EiB",
            ),
            ("0,0,512,R,nan", Format::Spc, 1, "time"),
            ("0,99999999999999999999,512,R,1", Format::Spc, 1, "block"),
            (
                "0,18446744073709551615,512,R,1",
                Format::Spc,
                1,
                "below 16 EiB",
            ),
            ("0,0,512,X,1", Format::Spc, 1, "R or W"),
            (
                "version,time,op,size,lbn\nversion,time,op,size,lbn",
                Format::Cloudphysics,
                2,
                "time",
            ),
            ("1,1,zz,512,0", Format::Cloudphysics, 1, "hexadecimal"),
            (
                "8,0 1 1 0.0 1 Q R 5 - 8 [x]",
                Format::Blkparse,
                1,
                "sector + sectors",
            ),
            ("8,0 1 1 later 1 Q R 5 + 8 [x]", Format::Blkparse, 1, "time"),
            ("Hello", Format::Blkparse, 1, "major,minor"),
            ("", Format::Spc, 1, ""),
        ] {
            let error = parse(text, format).unwrap_err();
            if text.is_empty() {
                assert!(error.contains("expected requests, found none"), "{error}");
                continue;
            }
            assert!(
                error.starts_with(&format!("line {line}: expected ")),
                "{text}: {error}"
            );
            assert!(error.contains(expected), "{text}: {error}");
        }
        let long = "x".repeat(10_000);
        let error = parse(&long, Format::Msr).unwrap_err();
        assert!(error.contains("shorter than 4096"), "{error}");
        assert!(error.len() < 300, "{error}");
    }

    #[test]
    fn times_never_go_back_and_the_number_is_bounded() {
        let text = "0,0,512,R,5\n0,8,512,R,4\n0,16,512,R,6\n0,24,512,R,7\n";
        let ats: Vec<u64> = read(text.as_bytes(), Format::Spc, 3)
            .unwrap()
            .iter()
            .map(|request| request.at)
            .collect();
        assert_eq!(ats, [0, 0, 1_000_000_000]);
    }

    fn check(requests: &[Request]) {
        let mut before = 0;
        for request in requests {
            assert!(request.at >= before);
            before = request.at;
            assert!((1..=MAX_REQUEST_BYTES).contains(&request.bytes));
            assert!(request.offset.checked_add(request.bytes).is_some());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            for format in Format::value_variants() {
                if let Ok(requests) = read(&*bytes, *format, 100) {
                    check(&requests);
                }
            }
        }

        /// Lines that nearly are of a format reach further into the parsers than noise does.
        #[test]
        fn damaged_lines_are_read_or_refused(
            fields in proptest::collection::vec("[0-9]{0,21}|-?[0-9]+\\.[0-9e+-]{0,6}|Read|Write|[RWQFDNrw]{1,3}|\\+|2a|28|é|nan|inf|8,0|\\[x\\]", 0..12),
            comma in any::<bool>(),
        ) {
            let line = fields.join(if comma { "," } else { " " });
            for format in Format::value_variants() {
                match read(line.as_bytes(), *format, 100) {
                    Ok(requests) => check(&requests),
                    Err(error) => prop_assert!(error.to_string().contains("expected"), "{error}"),
                }
            }
        }
    }
}
