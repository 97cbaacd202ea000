//! A frame, from a view. No I/O.

#[cfg(test)]
mod tests;

use crate::clock::clock;
use crate::explain::{CurrentValues, explain};
use crate::table::known;
use crate::top::view::{Row, Screen, View};
use justitia_api::escape::is_plain;
use justitia_api::units::{bytes, percent, pv, rate, seconds};
use justitia_api::{AppStatus, KnobOwner, Status, TenantStatus};
use justitia_share::num::{to_f64, to_u64};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, Wrap};

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, view: &mut View, theme: Theme) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Min(1),
        Constraint::Length(2),
    ])
    .areas(frame.area());
    let status = view.status.clone();
    frame.render_widget(heading(view, status.as_deref(), head.width, theme), head);
    match (view.screen, &status) {
        (Screen::Help, _) => {
            frame.render_widget(Paragraph::new(HELP).wrap(Wrap { trim: false }), body);
        }
        (_, None) => {
            let text = view
                .trouble
                .clone()
                .unwrap_or_else(|| "waiting for the first status".to_owned());
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), body);
        }
        (Screen::Detail, Some(status)) => detail(frame, view, status, body, theme),
        (Screen::Tree, Some(status)) => {
            view.fit(usize::from(body.height.saturating_sub(1)));
            frame.render_widget(tree(view, status, body, theme), body);
        }
    }
    frame.render_widget(footing(view, foot.width, theme), foot);
    // What was told by a socket or a recording may hold anything.
    for cell in &mut frame.buffer_mut().content {
        if !cell.symbol().chars().all(is_plain) {
            cell.set_symbol("?");
        }
    }
}

const HELP: &str = "\
A tenant is a cgroup. The page cache is divided among siblings by WEIGHT
(io.weight, or io.bfq.weight): working sets first, then the rest.
* behind the weight: backlogged: in the last 10 s stalled on I/O 80 % of the
time, or busy 80 % and stalled 10 %.

CACHE   file pages that are charged to it
WSS     working set size: the cache that it uses again and again; - not known
ENTIT   its entitlement: the cache that it is entitled to now
bar     ==== its cache, | its entitlement; what is beyond is reclaimed first
READ    bytes per second that applications read, from the cache or the disk
HIT%    the part of the bytes read that came from the cache
PV      how far its children are from their weights; 0 is exact
LOW     memory.low of the agent; (x would be set; !x external; ! given up

Enter  explain this tenant                c      fold children
/      filter by path or name             s      sort siblings
a      empty tenants, too                 Space  pause
q      quit
Left, Right, [ ], < >  move in a recording: 10 s, 1 min, its ends";

fn detail(frame: &mut Frame<'_>, view: &View, status: &Status, area: Rect, theme: Theme) {
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

fn footing(view: &View, width: u16, theme: Theme) -> Paragraph<'static> {
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

fn heading(view: &View, status: Option<&Status>, width: u16, theme: Theme) -> Paragraph<'static> {
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

/// A text that has `width` columns at most.
fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{}...", kept.trim_end())
}

/// The end of a name tells more than its beginning.
fn shorten(name: &str, width: usize) -> String {
    let length = name.chars().count();
    if length <= width {
        return name.to_owned();
    }
    let begin: String = name.chars().take(width / 3).collect();
    let end: String = name.chars().skip(length + 1 + width / 3 - width).collect();
    format!("{begin}~{end}")
}

/// Its working set, or `-` where nothing shows it.
fn working_set(tenant: &TenantStatus) -> String {
    known(tenant.known_working_set())
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

fn tree(view: &View, status: &Status, area: Rect, theme: Theme) -> Paragraph<'static> {
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
    let label = tenant.display_name();
    let label = match tenant.name.is_empty() {
        true => label.rsplit('/').next().unwrap_or_default(),
        false => &label,
    };
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

// How a frame looks.

/// How things look: colour only ever repeats what text says.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    /// Whether there is colour.
    pub colour: bool,
}

impl Theme {
    /// Text of a colour, where there is colour.
    pub(crate) fn tinted(self, colour: Color) -> Style {
        if self.colour {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }
}
