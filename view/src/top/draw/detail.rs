//! One tenant: its history, and why all is as it is.

use justitia_api::Status;
use justitia_api::units::{bytes, rate};
use justitia_share::num::to_u64;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::widgets::{Paragraph, Sparkline, Wrap};

use crate::explain::{CurrentValues, explain};
use crate::top::theme::Theme;
use crate::top::view::View;

pub(super) fn detail(
    frame: &mut Frame<'_>,
    view: &View,
    status: &Status,
    area: Rect,
    theme: Theme,
) {
    let Some(row) = view.rows.get(view.chosen) else {
        return;
    };
    let Some(tenant) = status.tenants.get(row.index) else {
        return;
    };
    let [chart, text] = Layout::vertical([Constraint::Length(4), Constraint::Min(1)]).areas(area);
    let halves = Layout::horizontal([Constraint::Ratio(1, 2), Constraint::Ratio(1, 2)]).spacing(1);
    let [left, right] = halves.areas(chart);
    let moments: Vec<_> = view.history(tenant.id).copied().collect();
    let most = moments.iter().map(|m| m.usage).max().unwrap_or(0);
    history(
        frame,
        left,
        &format!("pages held, at most {}", bytes(most)),
        moments.iter().map(|m| m.usage >> 12).collect(),
        theme.tinted(Color::Green),
    );
    let fastest = moments.iter().map(|m| m.bandwidth).fold(0.0, f64::max);
    history(
        frame,
        right,
        &format!("applications, at most {}/s", rate(fastest)),
        moments
            .iter()
            .map(|m| to_u64(m.bandwidth / 1024.0))
            .collect(),
        theme.tinted(Color::Cyan),
    );
    let why = explain(status, row.index, &CurrentValues::default());
    let lines = u16::try_from(why.lines().count()).unwrap_or(u16::MAX);
    let scrolled = view.scrolled.min(lines.saturating_sub(1));
    let paragraph = Paragraph::new(why)
        .wrap(Wrap { trim: false })
        .scroll((scrolled, 0));
    frame.render_widget(paragraph, text);
}

/// The latest moments, as many as there are columns, the newest at the right.
fn history(frame: &mut Frame<'_>, area: Rect, title: &str, values: Vec<u64>, style: Style) {
    let [line, bars] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    let begin = values.len().saturating_sub(usize::from(bars.width));
    let latest = values.get(begin..).unwrap_or_default();
    frame.render_widget(Paragraph::new(title), line);
    frame.render_widget(Sparkline::default().data(latest).style(style), bars);
}
