//! PV by configuration, the paper's beside ours.

use justitia_share::num::to_f64;
use maud::{Markup, html};

use super::super::number::factor;
use super::super::spread::Spread;
use super::frame::{Axis, Frame, px, short, svg};

/// One configuration's PV.
pub(crate) struct Bar<'a> {
    /// The configuration's name.
    pub label: &'a str,
    /// Its style class.
    pub class: String,
    /// Ours; `None` if it was not measured.
    pub own: Option<Spread>,
    /// The paper's.
    pub paper: Option<f64>,
}

const ROW: f64 = 42.0;
/// A letter of a label is about so wide, and this many are shown at most.
const LETTER: f64 = 6.8;
const LETTERS: usize = 30;

/// The drawing; lower is better.
pub(crate) fn variation(id: &str, title: &str, bars: &[Bar<'_>]) -> Markup {
    let longest = bars.iter().map(|bar| bar.label.chars().count()).max();
    let letters = longest.unwrap_or(0).clamp(12, LETTERS);
    let frame = Frame {
        width: 520.0,
        height: ROW * to_f64(bars.len() as u64) + 40.0,
        left: LETTER * to_f64(letters as u64) + 8.0,
        right: 46.0,
        top: 4.0,
        bottom: 36.0,
    };
    let finite = |value: f64| Some(value).filter(|v| v.is_finite());
    let largest = bars
        .iter()
        .flat_map(|bar| {
            [
                bar.own.and_then(|own| finite(own.high)),
                bar.paper.and_then(finite),
            ]
        })
        .flatten()
        .fold(0.0, f64::max);
    let axis = Axis::new(largest, 5);
    let description: Vec<String> = bars.iter().map(describe).collect();
    let floor = frame.height - frame.bottom;
    let body = html! {
        @for tick in &axis.ticks {
            @let x = px(frame.x(*tick, axis.end));
            line.grid x1=(x) x2=(x) y1=(px(frame.top)) y2=(px(floor)) {}
            text.tick x=(x) y=(px(floor + 14.0)) text-anchor="middle" { (axis.label(*tick)) }
        }
        text.axis x=(px(frame.left + frame.inner_width() / 2.0)) y=(px(frame.height - 4.0))
            text-anchor="middle" { "PV (0 is ideal)" }
        @for (position, bar) in bars.iter().enumerate() {
            (row(frame, &axis, frame.top + ROW * to_f64(position as u64), bar))
        }
    };
    svg(id, frame, title, &description, &body)
}

fn describe(bar: &Bar<'_>) -> String {
    let own = bar
        .own
        .map_or("not measured".into(), |own| factor(own.median));
    let paper = bar.paper.map(|p| format!(", paper {}", factor(p)));
    format!("{}: {own}{}", bar.label, paper.unwrap_or_default())
}

fn row(frame: Frame, axis: &Axis, top: f64, bar: &Bar<'_>) -> Markup {
    // Ours above, the paper's below it; ours alone sits in the middle.
    let own_y = if bar.paper.is_some() {
        top + 4.0
    } else {
        top + 13.0
    };
    let paper_y = top + 25.0;
    html! {
        text.label x=(px(frame.left - 8.0)) y=(px(top + ROW / 2.0)) dy="0.32em" text-anchor="end" {
            (short(bar.label, LETTERS))
        }
        @if let Some(own) = bar.own {
            @let end = frame.x(own.median, axis.end);
            rect.bar.(bar.class) x=(px(frame.left)) y=(px(own_y))
                width=(px((end - frame.left).max(1.0))) height="16" {
                title { (bar.label) ": " (factor(own.median)) " (" (factor(own.low)) " to " (factor(own.high)) ")" }
            }
            @let reach = if own.high > own.low { frame.x(own.high, axis.end) } else { end };
            @if own.high > own.low {
                @let (low, y) = (px(frame.x(own.low, axis.end)), own_y + 8.0);
                line.whisker x1=(low) x2=(px(reach)) y1=(px(y)) y2=(px(y)) {}
                line.whisker x1=(low) x2=(low) y1=(px(y - 4.0)) y2=(px(y + 4.0)) {}
                line.whisker x1=(px(reach)) x2=(px(reach)) y1=(px(y - 4.0)) y2=(px(y + 4.0)) {}
            }
            text.value x=(px(end.max(reach) + 5.0)) y=(px(own_y + 8.0)) dy="0.32em" {
                (factor(own.median))
            }
        } @else {
            text.value x=(px(frame.left + 5.0)) y=(px(own_y + 8.0)) dy="0.32em" { "not measured" }
        }
        @if let Some(paper) = bar.paper {
            @let end = frame.x(paper, axis.end);
            rect.paper x=(px(frame.left)) y=(px(paper_y)) width=(px((end - frame.left).max(1.0)))
                height="9" {}
            text.note x=(px(end + 5.0)) y=(px(paper_y + 4.5)) dy="0.32em" {
                "paper " (factor(paper))
            }
        }
    }
}
