//! A miss-ratio curve as a plot and as a table.

use std::fmt::Write;

use justitia_api::CurveStatus;
use justitia_api::units::{bytes, percent, rate};
use justitia_share::num::to_f64;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::Span;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Widget};

use crate::table::{Column, table};

const WIDTH: u16 = 76;
const HEIGHT: u16 = 16;

/// A curve, and the sizes that are marked below it. Amounts in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Drawing<'a> {
    /// The curve.
    pub curve: &'a CurveStatus,
    /// What the cache holds now.
    pub usage: u64,
    /// The working set, where it is known.
    pub working_set: Option<u64>,
    /// The size of the curve's blocks.
    pub block: f64,
}

impl Drawing<'_> {
    /// What it misses, and reads from the disk, at half, the same and twice the size that it has.
    #[must_use]
    pub fn table(&self) -> String {
        let columns = [
            Column::Text(""),
            Column::Number("SIZE"),
            Column::Number("MISSES"),
            Column::Number("BLOCKS READ"),
        ];
        let sizes = [
            ("half", self.usage / 2),
            ("now", self.usage),
            ("twice", self.usage.saturating_mul(2)),
        ];
        let rows = sizes.map(|(name, size)| {
            let misses = self.curve.miss_ratio(size);
            vec![
                name.to_owned(),
                bytes(size),
                format!("{} %", percent(misses)),
                format!("{}/s", rate(misses * self.curve.accesses * self.block)),
            ]
        });
        table(&columns, rows)
    }

    /// The largest size that is shown: a little more than anything that matters.
    fn right(&self) -> f64 {
        let last = self.curve.points.last().map_or(0, |point| point.0);
        to_f64(
            last.max(self.usage)
                .max(self.working_set.unwrap_or(0))
                .max(1 << 20),
        ) * 1.05
    }

    /// The curve, and below it where some sizes lie.
    #[must_use]
    pub fn plot(&self) -> String {
        self.line() + &self.marks()
    }

    fn line(&self) -> String {
        let right = self.right();
        let steps = u32::from(WIDTH) * 2;
        let points: Vec<(f64, f64)> = (0..=steps)
            .map(|step| right * f64::from(step) / f64::from(steps))
            .map(|size| {
                let misses = self.curve.miss_ratio(justitia_share::num::to_u64(size));
                (size, misses * 100.0)
            })
            .collect();
        let line = Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .data(&points);
        let label = |part: f64| Span::raw(bytes(justitia_share::num::to_u64(right * part)));
        let chart = Chart::new(vec![line])
            .style(Style::default())
            .x_axis(Axis::default().bounds([0.0, right]).labels([
                label(0.0),
                label(0.5),
                label(1.0),
            ]))
            .y_axis(
                Axis::default()
                    .bounds([0.0, 100.0])
                    .labels(["0 %", "50 %", "100 %"]),
            );
        let area = Rect::new(0, 0, WIDTH, HEIGHT);
        let mut buffer = Buffer::empty(area);
        chart.render(area, &mut buffer);
        let rows = buffer.content().chunks(usize::from(WIDTH));
        rows.map(|row| {
            let row: String = row.iter().map(|cell| cell.symbol()).collect();
            format!("{}\n", row.trim_end())
        })
        .collect()
    }

    /// Under the plot, where on its horizontal axis some sizes lie.
    fn marks(&self) -> String {
        // The vertical axis with its labels takes six columns.
        let width = f64::from(WIDTH) - 7.0;
        let mut out = String::new();
        let working_set = self.working_set.map(|size| ("working set", size));
        for (name, size) in std::iter::once(("holds", self.usage)).chain(working_set) {
            let at = (to_f64(size) / self.right() * width).min(width);
            let at = usize::try_from(justitia_share::num::to_u64(at)).unwrap_or(0) + 6;
            let text = format!("{name} {}", bytes(size));
            // To the left of its mark where it would not fit to the right.
            if at + 2 + text.len() > usize::from(WIDTH) {
                let indent = at.saturating_sub(text.len() + 1);
                let _ = writeln!(out, "{:indent$}{text} ▲", "");
            } else {
                let _ = writeln!(out, "{:at$}▲ {text}", "");
            }
        }
        out
    }
}
