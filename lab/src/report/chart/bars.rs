//! What each tenant got over what the lowest weight got, beside the ideal.

use justitia_share::num::to_f64;
use maud::{Markup, html};

use super::super::number::factor;
use super::super::spread::Spread;
use super::frame::{Axis, Frame, grid_y, px, short, slot, svg};

/// Bars higher than this many times the largest ideal are cut off, and say so: one runaway must
/// not flatten everything else.
const CUT: f64 = 1.5;

/// A letter of a label is about so wide.
const LETTER: f64 = 6.2;

const FRAME: Frame = Frame {
    width: 250.0,
    height: 176.0,
    left: 28.0,
    right: 4.0,
    top: 16.0,
    bottom: 34.0,
};

/// The axis that several such drawings share: where it ends.
pub(crate) fn common_end<'a>(
    ideal: &[f64],
    results: impl Iterator<Item = &'a [Option<Spread>]>,
) -> f64 {
    let largest_ideal = ideal.iter().copied().fold(0.0, f64::max);
    let largest = results
        .flatten()
        .flatten()
        .map(|spread| spread.high)
        .filter(|value| value.is_finite())
        .fold(largest_ideal, f64::max);
    largest.min(largest_ideal * CUT)
}

/// One configuration's results. `labels` name the tenants below the bars.
pub(crate) fn bars(
    id: &str,
    title: &str,
    class: &str,
    labels: &[String],
    ideal: &[f64],
    results: &[Option<Spread>],
    end: f64,
) -> Markup {
    let axis = Axis::new(end, 5);
    let description: Vec<String> = labels
        .iter()
        .zip(ideal)
        .zip(results)
        .map(|((label, ideal), result)| {
            let got = result.map_or("nothing measured".into(), |r| factor(r.median));
            format!("weight {label}: {got}, ideal {}", factor(*ideal))
        })
        .collect();
    let shown = shown(labels);
    let columns = shown.iter().zip(ideal).zip(results).enumerate();
    let body = html! {
        (grid_y(FRAME, &axis))
        @for (position, ((label, ideal), result)) in columns {
            @let (start, width) = slot(position, labels.len(), FRAME.inner_width());
            (column(FRAME.left + start, width, class, label, *ideal, *result, &axis))
        }
        @if results.iter().all(Option::is_none) {
            // Top left, where no ideal is drawn.
            text.value x=(px(FRAME.left + 6.0)) y=(px(FRAME.top + 12.0)) { "not measured" }
        }
        text.axis x=(px(FRAME.left + FRAME.inner_width() / 2.0)) y=(px(FRAME.height - 4.0))
            text-anchor="middle" { "weight" }
    };
    svg(id, FRAME, title, &description, &body)
}

/// The labels as they are shown: where they would run into each other, one that repeats the label before it
/// is left out.
fn shown(labels: &[String]) -> Vec<&str> {
    let longest = labels.iter().map(|label| label.chars().count()).max();
    let (_, width) = slot(0, labels.len(), FRAME.inner_width());
    let crowded = (to_f64(longest.unwrap_or(0) as u64) + 1.0) * LETTER > width;
    let before = std::iter::once("").chain(labels.iter().map(String::as_str));
    labels
        .iter()
        .zip(before)
        .map(|(label, before)| {
            if crowded && label == before {
                ""
            } else {
                label
            }
        })
        .collect()
}

fn column(
    start: f64,
    width: f64,
    class: &str,
    label: &str,
    ideal: f64,
    result: Option<Spread>,
    axis: &Axis,
) -> Markup {
    let middle = start + width / 2.0;
    let bar = width * 0.62;
    let floor = FRAME.y(0.0, axis.end);
    let ideal_y = px(FRAME.y(ideal, axis.end));
    html! {
        @if let Some(result) = result {
            @let top = FRAME.y(result.median, axis.end);
            rect.bar.(class) x=(px(middle - bar / 2.0)) y=(px(top))
                width=(px(bar)) height=(px((floor - top).max(0.5))) {
                title { (factor(result.median)) " (" (factor(result.low)) " to " (factor(result.high)) ")" }
            }
            @if result.median > axis.end {
                // Ends with its column: the last one has no room to its right.
                text.value x=(px(start + width)) y=(px(FRAME.top - 5.0)) text-anchor="end" {
                    "▲ " (factor(result.median))
                }
            } @else if result.high > result.low {
                (whisker(middle, FRAME.y(result.low, axis.end), FRAME.y(result.high, axis.end)))
            }
        }
        line.ideal x1=(px(start + width * 0.08)) x2=(px(start + width * 0.92))
            y1=(ideal_y) y2=(ideal_y) {}
        text.tick x=(px(middle)) y=(px(floor + 14.0)) text-anchor="middle" { (short(label, 8)) }
    }
}

fn whisker(x: f64, low: f64, high: f64) -> Markup {
    let line = |x1: f64, x2: f64, y1: f64, y2: f64| {
        html! { line.whisker x1=(px(x1)) x2=(px(x2)) y1=(px(y1)) y2=(px(y2)) {} }
    };
    html! {
        (line(x, x, low, high))
        (line(x - 4.0, x + 4.0, low, low))
        (line(x - 4.0, x + 4.0, high, high))
    }
}
