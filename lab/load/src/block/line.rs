//! What a line of a trace says.

use justitia_share::num::to_u64;

/// Largest request, in bytes: a larger one is a mistake in the file, or in the choice of the format.
pub(super) const MAX_REQUEST_BYTES: u64 = 64 << 20;
/// What block traces count in, in bytes.
pub(super) const SECTOR: u64 = 512;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// When, in nanoseconds since the first.
    pub at: u64,
    /// Whether it writes.
    pub write: bool,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, 1 to [`MAX_REQUEST_BYTES`] bytes.
    pub bytes: u64,
}

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A request; its time is since an epoch of the format's own.
    Request(Request),
    /// Something that is no read and no write.
    Other,
    /// That the requests are over.
    End,
}

/// A request from what a line says, if that is possible; `None` bytes are too many to count.
pub(super) fn request(
    at: u64,
    write: bool,
    offset: Option<u64>,
    bytes: Option<u64>,
) -> Result<Line, String> {
    let Some(bytes) = bytes.filter(|bytes| *bytes <= MAX_REQUEST_BYTES) else {
        return Err(format!("a size of at most {MAX_REQUEST_BYTES} bytes"));
    };
    let end = offset.and_then(|offset| offset.checked_add(bytes));
    let (Some(offset), Some(_)) = (offset, end) else {
        return Err("an offset below 16 EiB".to_owned());
    };
    if bytes == 0 {
        return Ok(Line::Other);
    }
    Ok(Line::Request(Request {
        at,
        write,
        offset,
        bytes,
    }))
}

/// Seconds as nanoseconds; `None` for what is no time since some beginning.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let seconds: f64 = text.parse().ok()?;
    // Until the year 2262 in nanoseconds since 1970.
    (0.0..9.2e9)
        .contains(&seconds)
        .then(|| to_u64(seconds * 1e9))
}
