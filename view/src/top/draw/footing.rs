//! The last lines: a sentence on the chosen tenant, and the keys.

use justitia_api::TenantStatus;
use justitia_api::units::{bytes, pv};
use justitia_share::num::to_f64;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::text::shortened;
use crate::top::theme::Theme;
use crate::top::view::{Screen, View};

pub(super) fn footing(view: &View, width: u16, theme: Theme) -> Paragraph<'static> {
    let teach = match (view.screen, view.chosen()) {
        _ if view.typing => format!("show only paths that contain: {}_", view.filter),
        (Screen::Tree, Some(tenant)) => teach(tenant),
        _ => String::new(),
    };
    let keys = match (view.screen, view.typing, view.replay) {
        (_, true, _) => "Enter apply  Esc clear".to_owned(),
        (Screen::Help, ..) => "any key: back".to_owned(),
        (Screen::Detail, ..) => "Up/Down scroll  Space pause  Esc back  q quit".to_owned(),
        (Screen::Tree, _, Some((at, of))) => format!(
            "{}/{of}  Left/Right 10 s  [ ] 1 min  < > ends  Space pause  Enter why  q quit",
            at + 1
        ),
        (Screen::Tree, ..) => format!(
            "Enter why  / filter  s sort ({})  c fold  Space pause  ? help  q quit",
            view.sort.title()
        ),
    };
    let cut = |text: String| shortened(&text, usize::from(width));
    Paragraph::new(vec![
        Line::styled(cut(teach), theme.tinted(Color::Cyan)),
        Line::styled(cut(keys), Style::new().add_modifier(Modifier::DIM)),
    ])
}

/// What there is to say of the chosen tenant, in a sentence.
fn teach(tenant: &TenantStatus) -> String {
    let over = tenant.usage.saturating_sub(tenant.entitlement);
    let of_what = if tenant.entitlement > 0 {
        format!(
            "{:.0} %",
            100.0 * to_f64(tenant.usage) / to_f64(tenant.entitlement)
        )
    } else {
        "more".to_owned()
    };
    if !tenant.leaf {
        let far = tenant.pv.map_or_else(String::new, |_| {
            format!("; PV {} (0: exactly by weight)", pv(tenant.pv))
        });
        return format!("its children hold {of_what} of its entitlement{far}");
    }
    if let Some(why) = &tenant.exempt {
        return format!("nothing is reclaimed from it now: {why}");
    }
    if over > 0 {
        format!(
            "holds {of_what} of its entitlement: the excess of {} is reclaimed first",
            bytes(over)
        )
    } else {
        format!("holds {of_what} of its entitlement: nothing is reclaimed from it")
    }
}
