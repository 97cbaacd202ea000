//! The tree: a line for each tenant.

use justitia_api::units::{bytes, percent, pv, rate};
use justitia_api::{AppStatus, KnobOwner, Status, TenantStatus};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::text::shorten;
use crate::top::theme::Theme;
use crate::top::view::{Row, View};

/// Its working set, or `-` where nothing shows it.
fn working_set(tenant: &TenantStatus) -> String {
    let known = tenant.known_working_set();
    known.map_or_else(|| "-".to_owned(), bytes)
}

/// The widths that depend on the screen's: name and bar.
fn widths(width: u16) -> (usize, usize) {
    let width = usize::from(width);
    // WEIGHT, CACHE, WSS, ENTIT, READ, WRITE, HIT%, PV, LOW, each with a space; then the flags.
    let fixed = 5 + 6 + 6 + 6 + 6 + 6 + 5 + 5 + 6;
    let rest = width.saturating_sub(fixed + 1);
    let bar = (rest / 3).clamp(8, 30);
    (rest.saturating_sub(bar).max(8), bar)
}

pub(super) fn tree(view: &View, status: &Status, area: Rect, theme: Theme) -> Paragraph<'static> {
    let (name, bar) = widths(area.width);
    // A weight's column has five digits; its name is longer by one, which names of tenants end before.
    let head = name - 1;
    let mut lines = vec![Line::styled(
        format!(
            "{:head$}{:>6} {:bar$.bar$}{:>6}{:>6}{:>6}{:>6}{:>6}{:>5}{:>5}{:>6}",
            "TENANT",
            "WEIGHT",
            "CACHE|ENTIT",
            "CACHE",
            "WSS",
            "ENTIT",
            "READ",
            "WRITE",
            "HIT%",
            "PV",
            "LOW"
        )
        .chars()
        .take(usize::from(area.width))
        .collect::<String>(),
        Style::new().add_modifier(Modifier::UNDERLINED),
    )];
    let shown = usize::from(area.height.saturating_sub(1));
    let rows = view.rows.iter().enumerate().skip(view.first).take(shown);
    let scale = view
        .rows
        .iter()
        .filter_map(|r| status.tenants.get(r.index))
        .filter(|t| t.leaf)
        .map(|t| t.usage.max(t.entitlement.min(t.usage.saturating_mul(2))))
        .max()
        .unwrap_or(1);
    for (at, row) in rows {
        let Some(tenant) = status.tenants.get(row.index) else {
            continue;
        };
        let line = tenant_line(tenant, row, (name, bar), scale, theme);
        lines.push(if at == view.chosen {
            line.patch_style(Style::new().add_modifier(Modifier::REVERSED))
        } else {
            line
        });
    }
    if view.rows.is_empty() {
        lines.push(Line::raw(format!(
            "no tenant's path contains {:?}",
            view.filter
        )));
    }
    Paragraph::new(lines)
}

fn tenant_line(
    tenant: &TenantStatus,
    row: &Row,
    (name_width, bar_width): (usize, usize),
    scale: u64,
    theme: Theme,
) -> Line<'static> {
    let fold = match (tenant.leaf, row.folded) {
        (false, true) => "+",
        (false, false) => "-",
        (true, _) => " ",
    };
    let label = tenant.display_name().rsplit('/').next();
    let label = label.unwrap_or_default();
    let indent = " ".repeat(row.depth.min(6));
    let name = shorten(
        &format!("{indent}{fold}{label}"),
        name_width.saturating_sub(1),
    );
    let over = tenant.usage > tenant.entitlement;
    let (bar, colour) = bar(tenant, scale, bar_width, over);
    let app = tenant.app.as_ref();
    let of_app = |value: fn(&AppStatus) -> String| app.map_or_else(|| "-".to_owned(), value);
    let low = tenant.knobs.iter().find(|k| k.knob == "memory.low");
    let low = low.map_or_else(
        || "-".to_owned(),
        |k| {
            let stands = k.value.parse().map_or_else(|_| "?".to_owned(), bytes);
            match k.owner {
                KnobOwner::Agent => stands,
                KnobOwner::Proposed => format!("({stands}"),
                KnobOwner::External => format!("!{stands}"),
                KnobOwner::GivenUp => "!".to_owned(),
            }
        },
    );
    let backlogged = if tenant.backlogged { "*" } else { " " };
    Line::from(vec![
        Span::raw(format!(
            "{name:name_width$}{:>5}{backlogged}",
            tenant.weight
        )),
        Span::styled(bar, theme.tinted(colour)),
        Span::raw(format!(
            "{:>6}{:>6}{:>6}{:>6}{:>6}{:>5}{:>5}{:>6}",
            bytes(tenant.usage),
            working_set(tenant),
            bytes(tenant.entitlement),
            of_app(|a| rate(a.read_rate)),
            of_app(|a| rate(a.write_rate)),
            of_app(|a| a.hit_ratio.map_or_else(|| "-".to_owned(), percent)),
            pv(tenant.pv),
            low,
        )),
    ])
}

/// Usage as `=`, the entitlement as `|`, both on the scale of the largest leaf; `>` where it goes beyond.
fn bar(tenant: &TenantStatus, scale: u64, width: usize, over: bool) -> (String, Color) {
    let columns = |amount: u64| {
        let width = u64::try_from(width).unwrap_or(0);
        let column = u128::from(amount) * u128::from(width) / u128::from(scale.max(1));
        usize::try_from(column).unwrap_or(usize::MAX)
    };
    let (used, entitled) = (columns(tenant.usage), columns(tenant.entitlement));
    let bar: String = (0..width)
        .map(|at| {
            let last = at + 1 == width;
            if at == entitled.min(width - 1) && entitled < width {
                '|'
            } else if last && used > width {
                '>'
            } else if at < used {
                '='
            } else {
                ' '
            }
        })
        .collect();
    (bar, if over { Color::Yellow } else { Color::Green })
}
