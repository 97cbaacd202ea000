//! The first lines: the mode, the memory, and what is limited.

use justitia_api::Status;
use justitia_api::units::{bytes, pv, seconds};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::text::shortened;
use crate::clock::clock;
use crate::top::theme::Theme;
use crate::top::view::View;

pub(super) fn heading(
    view: &View,
    status: Option<&Status>,
    width: u16,
    theme: Theme,
) -> Paragraph<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let Some(status) = status else {
        return Paragraph::new(Line::styled(format!("justitia top  {}", view.source), bold));
    };
    let mode = if status.observe {
        "observing"
    } else {
        "acting"
    };
    let paused = match (view.paused, view.replay) {
        (true, _) => "  PAUSED",
        (false, Some(_)) => "  replay",
        (false, None) => "",
    };
    let left = format!(
        "justitia top  {mode} {}  {} tenants  PV {} (top level {}){paused}",
        seconds(status.uptime),
        status.tenants.len(),
        pv(status.pv),
        pv(status.pv_top),
    );
    let time = clock(status.time);
    let gap = usize::from(width).saturating_sub(left.chars().count() + time.len());
    let memory = &status.memory;
    let second = format!(
        "cache {} by weight; {} free ({} headroom); agent {:.1} % CPU, {}",
        bytes(memory.cache_divisible),
        bytes(memory.free),
        bytes(memory.free_headroom),
        100.0 * view.agents_part(),
        bytes(status.agent_usage.resident),
    );
    let trouble = view
        .trouble
        .clone()
        .or_else(|| {
            let unavailable = status.app_io_unavailable.as_ref()?;
            Some(format!("what applications get is not known: {unavailable}"))
        })
        .or_else(|| Some(format!("limitation: {}", status.limitations.first()?)));
    let third = match (&trouble, status.external.len() + status.given_up.len()) {
        (Some(trouble), _) => Line::styled(
            shortened(trouble, usize::from(width)),
            theme.tinted(Color::Yellow),
        ),
        (None, 0) => Line::raw(""),
        (None, n) => Line::styled(
            format!("{n} knobs external or given up: see `justitia status`"),
            theme.tinted(Color::Yellow),
        ),
    };
    Paragraph::new(vec![
        Line::styled(format!("{left}{}{time}", " ".repeat(gap)), bold),
        Line::raw(second),
        third,
    ])
}
