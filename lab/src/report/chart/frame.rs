//! What all drawings share: the frame, axes, the SVG around the drawing.

use justitia_share::num::to_f64;
use maud::{Markup, html};

use super::super::number::{tick_label, ticks};

/// A drawing's size and the part of it inside the axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub width: f64,
    pub height: f64,
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

impl Frame {
    pub(super) fn inner_width(&self) -> f64 {
        self.width - self.left - self.right
    }

    pub(super) fn inner_height(&self) -> f64 {
        self.height - self.top - self.bottom
    }

    /// Where the value lies, of an axis from 0 at the bottom to `end` at the top; held inside.
    pub(super) fn y(&self, value: f64, end: f64) -> f64 {
        let fraction = (value / end).clamp(0.0, 1.0);
        self.height - self.bottom - fraction * self.inner_height()
    }

    /// Where the value lies, of an axis from 0 at the left to `end` at the right; held inside.
    pub(super) fn x(&self, value: f64, end: f64) -> f64 {
        let fraction = (value / end).clamp(0.0, 1.0);
        self.left + fraction * self.inner_width()
    }
}

/// An axis from 0: its ticks, and their distance.
pub(super) struct Axis {
    pub ticks: Vec<f64>,
    step: f64,
    pub end: f64,
}

impl Axis {
    pub(super) fn new(largest: f64, wanted: u32) -> Self {
        let ticks = ticks(largest, wanted);
        let end = ticks.last().copied().unwrap_or(1.0);
        let step = ticks.get(1).copied().unwrap_or(end);
        Self { ticks, step, end }
    }

    pub(super) fn label(&self, value: f64) -> String {
        tick_label(value, self.step)
    }
}

/// The drawing around `body`, which sentences describe.
pub(super) fn svg(
    id: &str,
    frame: Frame,
    title: &str,
    description: &[String],
    body: &Markup,
) -> Markup {
    let title_id = format!("{id}-title");
    let description_id = format!("{id}-desc");
    html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img"
            viewBox={ "0 0 " (px(frame.width)) " " (px(frame.height)) }
            aria-labelledby={ (title_id) " " (description_id) } {
            title id=(title_id) { (title) }
            desc id=(description_id) { (description.join("; ")) "." }
            (body)
        }
    }
}

/// Horizontal grid lines with their labels.
pub(super) fn grid_y(frame: Frame, axis: &Axis) -> Markup {
    html! {
        @for tick in &axis.ticks {
            @let y = px(frame.y(*tick, axis.end));
            line.grid x1=(px(frame.left)) x2=(px(frame.width - frame.right)) y1=(y) y2=(y) {}
            text.tick x=(px(frame.left - 5.0)) y=(y) dy="0.32em" text-anchor="end" {
                (axis.label(*tick))
            }
        }
    }
}

/// A coordinate: a tenth of a pixel is enough.
pub(super) fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(Into::into).unwrap_or(text)
}

/// `position` of `count` slots over `width`: where it begins and how wide it is.
pub(super) fn slot(position: usize, count: usize, width: f64) -> (f64, f64) {
    let each = width / to_f64(count.max(1) as u64);
    (each * to_f64(position as u64), each)
}

/// At most `limit` letters, with an ellipsis if some are left out.
pub(super) fn short(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.into();
    }
    let kept: String = text.chars().take(limit.saturating_sub(1)).collect();
    format!("{kept}…")
}
