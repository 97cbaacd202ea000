//! Why a request is refused.

use super::proto::{Errno, MAX_PAYLOAD};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It would change an export that is read-only.
    ReadOnly,
    /// Its range ends beyond the export.
    BeyondEnd {
        /// Bytes of the export.
        size: u64,
        /// It would change the export.
        writes: bool,
    },
    /// It would read more than a reply can hold.
    TooLong,
    /// The command is not known, has flags that it does not know, or needs a length.
    Form {
        /// The command's number.
        kind: u16,
        /// Its flags.
        flags: u16,
    },
    /// It asks for the allocation, which was not negotiated.
    NoAllocation,
}

impl Refusal {
    /// The error that the client gets.
    #[must_use]
    pub const fn errno(self) -> Errno {
        match self {
            Self::ReadOnly => Errno::Perm,
            Self::BeyondEnd { writes: true, .. } => Errno::NoSpc,
            Self::TooLong => Errno::Overflow,
            Self::BeyondEnd { .. } | Self::Form { .. } | Self::NoAllocation => Errno::Inval,
        }
    }

    /// In words, for a request of so many bytes at this offset.
    #[must_use]
    pub fn reason(self, offset: u64, length: u64) -> String {
        match self {
            Self::ReadOnly => format!(
                "expected no change of a read-only export, found one of {length} bytes at {offset}"
            ),
            Self::BeyondEnd { size, .. } => format!(
                "expected a range inside the {size} bytes of the export, found {length} bytes at {offset}"
            ),
            Self::TooLong => {
                format!("expected a read of at most {MAX_PAYLOAD} bytes, found {length}")
            }
            Self::Form { kind, flags } => format!(
                "expected a known command with its flags and at least one byte, found command {kind} with flags {flags:#x} and {length} bytes"
            ),
            Self::NoAllocation => {
                "expected `base:allocation` to be negotiated, found BLOCK_STATUS without".into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Refusal;

    #[test]
    fn a_reason_says_what_was_found_and_fits_a_reply() {
        let (kind, flags) = (u16::MAX, u16::MAX);
        for (refusal, found) in [
            (Refusal::ReadOnly, "one of 9 bytes at 7"),
            (
                Refusal::BeyondEnd {
                    size: 8,
                    writes: true,
                },
                "the 8 bytes of the export, found 9 bytes at 7",
            ),
            (Refusal::TooLong, "33554432 bytes, found 9"),
            (
                Refusal::Form { kind, flags },
                "command 65535 with flags 0xffff and 9 bytes",
            ),
            (Refusal::NoAllocation, "BLOCK_STATUS"),
        ] {
            let reason = refusal.reason(7, 9);
            assert!(reason.contains(found), "{reason}");
            // As much of it is sent.
            assert!(refusal.reason(u64::MAX, u64::MAX).len() <= 200, "{reason}");
        }
    }
}
