//! The lines of the journal.

use justitia_kernel::knob::Knob;
use serde::{Deserialize, Serialize};

use super::error::JournalError;

/// The kernel's id of this boot: cgroup ids mean nothing in another one.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// One write to one knob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// The cgroup's id.
    pub cgroup: u64,
    /// Its path below the cgroup2 mount; bytes outside printable ASCII and `\` as `\xNN`.
    pub path: String,
    /// Which knob.
    pub knob: Knob,
    /// The value before our first write.
    #[serde(rename = "before")]
    pub original: String,
    /// The value that is about to be written.
    #[serde(rename = "ours")]
    pub applied: String,
}

impl JournalEntry {
    /// The memory that it takes, bytes.
    pub(super) const fn size(&self) -> usize {
        size_of::<Self>() + self.path.len() + self.original.len() + self.applied.len()
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The first line: the boot in which the journal was written.
    Boot(String),
    /// A knob is about to be written.
    Write(JournalEntry),
    /// The knob is no longer ours: it was restored, or is external.
    Done { cgroup: u64, knob: Knob },
    /// A record of a newer version, intact: its JSON.
    #[serde(skip)]
    Unknown(String),
}

/// The kernel's id of this boot.
///
/// # Errors
/// If it cannot be read. Without it nobody knows whether a journal is of this boot.
pub fn boot_id() -> Result<String, JournalError> {
    match std::fs::read_to_string(BOOT_ID) {
        Ok(id) => Ok(id.trim().to_owned()),
        Err(source) => Err(JournalError::Boot {
            path: BOOT_ID.into(),
            source,
        }),
    }
}

pub(super) fn render(line: &Line) -> String {
    let json = match line {
        Line::Unknown(json) => json.clone(),
        // A struct of strings and numbers always serializes.
        line => serde_json::to_string(line).unwrap_or_default(),
    };
    format!("{} {json}\n", checksum(&json))
}

fn checksum(json: &str) -> String {
    format!("{:08x}", crc32fast::hash(json.as_bytes()))
}

/// Parses a line, or says what was expected.
pub(super) fn parse_line(line: &[u8]) -> Result<Line, &'static str> {
    let line = line.strip_suffix(b"\n").ok_or("a whole line")?;
    let line = std::str::from_utf8(line).map_err(|_| "text")?;
    let (sum, json) = line.split_once(' ').ok_or("a checksum and an entry")?;
    // Compared as text: read as a number, `A` would pass for `a`, and a changed bit go unnoticed.
    if sum != checksum(json) {
        return Err("an entry that matches its checksum");
    }
    if let Ok(line) = serde_json::from_str(json) {
        return Ok(line);
    }
    let object: Result<serde_json::Map<_, _>, _> = serde_json::from_str(json);
    object
        .map(|_| Line::Unknown(json.to_owned()))
        .map_err(|_| "an entry in JSON")
}
