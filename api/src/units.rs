//! Amounts as people read them: the one place that formats bytes, rates, fractions and durations.

use justitia_share::num::{to_f64, to_u64};

/// Bytes with three significant digits and a binary unit, at most 5 columns: `512M`, `1.25G`.
#[must_use]
pub fn bytes(amount: u64) -> String {
    if amount >= u64::MAX / 2 {
        return "all".to_owned();
    }
    scaled(to_f64(amount))
}

/// Bytes per second, the same way.
#[must_use]
pub fn rate(per_second: f64) -> String {
    scaled(per_second)
}

fn scaled(value: f64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let mut value = value.max(0.0);
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let unit_name = UNITS.get(unit).copied().unwrap_or_default();
    if unit == 0 || value >= 99.5 {
        format!("{value:.0}{unit_name}")
    } else if value >= 9.95 {
        format!("{value:.1}{unit_name}")
    } else {
        format!("{value:.2}{unit_name}")
    }
}

/// A part, 0 to 1, as a percentage of at most 4 columns.
#[must_use]
pub fn percent(part: f64) -> String {
    let percent = 100.0 * part;
    if percent >= 99.95 {
        "100".to_owned()
    } else {
        format!("{percent:.1}")
    }
}

/// PV, or `-` where there is none.
#[must_use]
pub fn pv(pv: Option<f64>) -> String {
    match pv {
        None => "-".to_owned(),
        Some(pv) if pv >= 1000.0 => "inf".to_owned(),
        Some(pv) if pv >= 9.95 => format!("{pv:.0}"),
        Some(pv) => format!("{pv:.2}"),
    }
}

/// A duration in seconds, in its largest unit.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    let whole = to_u64(seconds.max(0.0));
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7199 => format!("{} min", whole / 60),
        7200..=172_799 => format!("{} h", whole / 3600),
        _ => format!("{} d", whole / 86_400),
    }
}

/// How long a call took, in at most 5 columns.
#[must_use]
pub fn latency(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(s) if s < 0.001 => format!("{:.0}us", s * 1e6),
        Some(s) if s < 1.0 => format!("{:.0}ms", s * 1e3),
        Some(s) => format!("{s:.0}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_fit_their_columns() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "0.98K"),
            (10 << 20, "10.0M"),
            (1023 << 20, "1.00G"),
            (512 << 20, "512M"),
            (5 << 40, "5.00T"),
            (u64::MAX, "all"),
        ];
        for (amount, text) in cases {
            assert_eq!(bytes(amount), text);
        }
        assert!((0..63).all(|n| bytes(1 << n).len() <= 5));
        assert_eq!((percent(1.0), percent(0.5)), ("100".into(), "50.0".into()));
        assert_eq!(pv(Some(1e9)), "inf");
    }
}
