//! Moments as people read them.

use justitia_share::num::to_u64;

/// A moment, seconds since 1970, as UTC.
#[must_use]
pub fn moment(unix: f64) -> String {
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(to_u64(unix.max(0.0)));
    humantime::format_rfc3339_seconds(at).to_string()
}

/// The time of day of a moment, UTC.
#[must_use]
pub fn clock(unix: f64) -> String {
    moment(unix).get(11..19).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_utc() {
        assert_eq!(clock(86_400.0 + 3661.0), "01:01:01");
    }
}
