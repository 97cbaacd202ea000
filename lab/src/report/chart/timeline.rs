//! A value of every tenant over time, or over the size of its page cache; one configuration to a drawing.

use justitia_share::num::to_f64;
use maud::{Markup, html};

use super::super::number::{Scale, digits};
use super::frame::{Axis, Frame, grid_y, px, svg};

/// More points than this are averaged: a drawing has only so many pixels.
const POINTS: usize = 200;

const FRAME: Frame = Frame {
    width: 250.0,
    height: 164.0,
    left: 38.0,
    right: 8.0,
    top: 18.0,
    bottom: 32.0,
};

const SECONDS: Scale = Scale {
    factor: 1.0,
    name: "seconds",
};

/// One tenant's line.
pub(crate) struct Line<'a> {
    /// Its style class.
    pub class: String,
    /// Its name, for the description.
    pub name: &'a str,
    /// Where on the horizontal axis, and the value there, in base units.
    pub points: &'a [(f64, f64)],
}

/// What all drawings of a metric share.
pub(crate) struct Panel {
    /// How its values are shown.
    pub scale: Scale,
    /// How the horizontal axis is shown.
    pub across: Scale,
    /// Where the horizontal axis ends, in its base unit.
    pub right: f64,
    /// Where the value axis ends; what is higher is cut off, and said.
    pub end: f64,
}

impl Panel {
    /// For drawings of these lines, one drawing each: where one towers over all others, its spikes are
    /// cut off, so that they do not flatten them. What it mostly is, is shown.
    pub(crate) fn over_time(scale: Scale, seconds: f64, drawings: &[&[Line<'_>]]) -> Self {
        let mut sorted: Vec<(f64, f64)> = drawings.iter().map(|lines| heights(lines)).collect();
        sorted.sort_by(|a, b| b.0.total_cmp(&a.0));
        let end = match sorted.as_slice() {
            [(peak, mostly), (second, _), ..] if *peak > 3.0 * second && *second > 0.0 => {
                mostly.max(1.5 * second)
            }
            [(peak, _), ..] => *peak,
            [] => 0.0,
        };
        Self {
            scale,
            across: SECONDS,
            right: seconds,
            end,
        }
    }
}

/// The largest value of the lines, and the largest that any of them stays below for nine tenths of its time.
fn heights(lines: &[Line<'_>]) -> (f64, f64) {
    let of = |line: &Line<'_>| {
        let mut values: Vec<f64> = line.points.iter().map(|point| point.1).collect();
        values.sort_by(f64::total_cmp);
        let mostly = values.len().saturating_sub(1) * 9 / 10;
        let at = |place: Option<&f64>| place.copied().unwrap_or(0.0);
        (at(values.last()), at(values.get(mostly)))
    };
    lines
        .iter()
        .map(of)
        .fold((0.0, 0.0), |a, b| (f64::max(a.0, b.0), f64::max(a.1, b.1)))
}

/// One configuration's drawing.
pub(crate) fn timeline(id: &str, title: &str, panel: &Panel, lines: &[Line<'_>]) -> Markup {
    let axis = Axis::new(panel.end * panel.scale.factor, 4);
    let values = lines
        .iter()
        .flat_map(|line| line.points.iter().map(|p| p.1));
    let peak = values.fold(0.0, f64::max) * panel.scale.factor;
    // The axis ends with the run, not with a round number: empty space would look like silence.
    let right = (panel.right * panel.across.factor).max(f64::MIN_POSITIVE);
    let across = Axis::new(right, 4);
    let description: Vec<String> = lines
        .iter()
        .filter_map(|line| {
            let (_, last) = line.points.last()?;
            let last = digits(last * panel.scale.factor);
            Some(format!("{} ends at {last} {}", line.name, panel.scale.name))
        })
        .collect();
    let floor = FRAME.height - FRAME.bottom;
    let body = html! {
        (grid_y(FRAME, &axis))
        text.axis x="0" y="8" { (panel.scale.name) }
        @if peak > axis.end * 1.000_001 {
            text.value x=(px(FRAME.width - FRAME.right)) y="9" text-anchor="end" {
                "▲ up to " (digits(peak))
            }
        }
        @for tick in across.ticks.iter().filter(|tick| **tick <= right) {
            text.tick x=(px(FRAME.x(*tick, right))) y=(px(floor + 14.0)) text-anchor="middle" {
                (across.label(*tick))
            }
        }
        text.axis x=(px(FRAME.left + FRAME.inner_width() / 2.0)) y=(px(FRAME.height - 3.0))
            text-anchor="middle" { (panel.across.name) }
        @for line in lines {
            polyline.line.(line.class) points=(path(line.points, panel, &axis)) {
                title { (line.name) }
            }
        }
    };
    svg(id, FRAME, title, &description, &body)
}

fn path(points: &[(f64, f64)], panel: &Panel, axis: &Axis) -> String {
    let right = panel.right.max(f64::MIN_POSITIVE);
    let coordinates: Vec<String> = thin(points)
        .into_iter()
        .filter(|(at, value)| at.is_finite() && value.is_finite())
        .map(|(at, value)| {
            let y = FRAME.y(value * panel.scale.factor, axis.end);
            format!("{},{}", px(FRAME.x(at, right)), px(y))
        })
        .collect();
    coordinates.join(" ")
}

/// Means of consecutive points, so that at most [`POINTS`] remain.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let together = points.len().div_ceil(POINTS).max(1);
    points
        .chunks(together)
        .map(|chunk| {
            let (t, value) = chunk
                .iter()
                .fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
            let count = to_f64(chunk.len() as u64);
            (t / count, value / count)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_mean() {
        let points: Vec<_> = (0..1000)
            .map(|i| (f64::from(i), f64::from(i % 2)))
            .collect();
        let thinned = thin(&points);
        assert!(thinned.len() <= POINTS);
        assert!(thinned.iter().all(|(_, v)| (0.3..0.7).contains(v)));
        assert_eq!(thin(&points[..3]), points[..3]);
    }
}
