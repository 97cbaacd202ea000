//! Moments as people read them.

use justitia_share::num::to_u64;

/// The last second of the year 9999: none that comes later is written so.
const LAST: f64 = 253_402_300_799.0;

/// A moment, seconds since 1970, as UTC.
#[must_use]
pub fn moment(unix: f64) -> String {
    let unix = to_u64(unix.clamp(0.0, LAST));
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(unix);
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
        for far in [1e12, 1e300, f64::INFINITY] {
            assert_eq!(moment(far), "9999-12-31T23:59:59Z");
        }
        assert_eq!(moment(f64::NAN), moment(0.0));
    }
}
