//! Numbers for people: three significant digits, in the fitting unit.

use super::schema::Unit;

const MIB: f64 = 1_048_576.0;

/// A factor by which base units are multiplied to be shown, and the name of what comes out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    /// Multiplies the base unit.
    pub factor: f64,
    /// The shown unit; may be empty.
    pub name: &'static str,
}

/// How values up to `largest` are shown.
pub(super) fn scale(unit: Unit, largest: f64) -> Scale {
    let (factor, name) = match unit {
        Unit::Bytes => (MIB.recip(), "MiB"),
        Unit::BytesPerSecond => (1e-6, "MB/s"),
        Unit::Ratio => (100.0, "%"),
        Unit::PerSecond => (1.0, "/s"),
        Unit::Seconds if largest >= 1.0 => (1.0, "s"),
        Unit::Seconds if largest >= 1e-3 => (1e3, "ms"),
        Unit::Seconds => (1e6, "µs"),
        Unit::Count => (1.0, ""),
    };
    Scale { factor, name }
}

/// A value with its unit.
pub(super) fn show(unit: Unit, value: f64) -> String {
    let scale = scale(unit, value.abs());
    let scaled = value * scale.factor;
    let number = if unit == Unit::Count && scaled.fract() == 0.0 {
        format!("{scaled:.0}")
    } else {
        digits(scaled)
    };
    if scale.name.is_empty() {
        number
    } else {
        format!("{number} {}", scale.name)
    }
}

/// A ratio, a normalised value or a PV: at least two decimals where they say something.
pub(super) fn factor(value: f64) -> String {
    if value.is_finite() && value.abs() < 10.0 {
        format!("{value:.2}")
    } else {
        digits(value)
    }
}

/// Jain's index, which differs in the third digit.
pub(super) fn index(value: f64) -> String {
    format!("{value:.3}")
}

/// A fraction in per cent; of what was not measured a dash.
pub(super) fn percent(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{:.1} %", 100.0 * value))
}

/// A ratio to two decimals; of what was not measured a dash.
pub(super) fn times(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.2}"))
}

/// A change in words, to go before what it is a change from.
pub(super) fn change(change: f64) -> String {
    let percent = change * 100.0;
    let amount = digits(percent.abs());
    if percent >= 0.05 {
        format!("{amount} % more than")
    } else if percent <= -0.05 {
        format!("{amount} % less than")
    } else {
        "as much as".into()
    }
}

/// Three significant digits, never fewer than the integer part has.
pub(super) fn digits(value: f64) -> String {
    if value.is_nan() {
        return "–".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.into();
    }
    let magnitude = value.abs();
    let decimals = match magnitude {
        0.0 => 0,
        m if m >= 99.95 => 0,
        m if m >= 9.995 => 1,
        m if m >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Round steps from 0 to at least `largest`, about `wanted` of them. The last is the axis' end.
pub(super) fn ticks(largest: f64, wanted: u32) -> Vec<f64> {
    if !largest.is_finite() || largest <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = largest / f64::from(wanted.max(1));
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|nice| nice * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough);
    let mut ticks = vec![0.0];
    // A tick a hair below the largest value would put the value outside.
    while ticks.last().is_some_and(|last| *last < largest * 0.999_999) {
        ticks.push(step * f64::from(u32::try_from(ticks.len()).unwrap_or(u32::MAX)));
    }
    ticks
}

/// Tick labels: as many decimals as tell them apart.
pub(super) fn tick_label(value: f64, step: f64) -> String {
    let decimals = (0..=6)
        .find(|d| {
            let scaled = step * 10_f64.powi(*d);
            (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1.0)
        })
        .unwrap_or(6);
    let decimals = usize::try_from(decimals).unwrap_or(0);
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_fitting_units() {
        for (unit, value, expected) in [
            (Unit::Bytes, 94.0 * MIB, "94.0 MiB"),
            (Unit::BytesPerSecond, 16_340_000.0, "16.3 MB/s"),
            (Unit::Ratio, 0.9812, "98.1 %"),
            (Unit::PerSecond, 1234.4, "1234 /s"),
            (Unit::Seconds, 0.0015, "1.50 ms"),
            (Unit::Seconds, 14.0, "14.0 s"),
            (Unit::Seconds, 0.000_002, "2.00 µs"),
            (Unit::Count, 1234.5, "1234"),
        ] {
            assert_eq!(show(unit, value), expected);
        }
        assert_eq!(change(-0.015), "1.50 % less than");
        assert_eq!(change(3.41), "341 % more than");
        assert_eq!(change(0.0001), "as much as");
    }
}
