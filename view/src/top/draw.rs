//! A frame, from a view. No I/O.

use justitia_api::escape::is_plain;
use justitia_api::{KnobOwner, Status, TenantStatus};
use justitia_share::num::to_f64;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, Wrap};

use super::view::{Row, Screen, View};
use crate::clock::clock;
use crate::explain::{Standing, explain};
use justitia_api::units::{bytes, latency, percent, pv, rate, seconds};

/// How things look: colour only ever repeats what text says.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether there is colour.
    pub colour: bool,
}

impl Look {
    fn tinted(self, colour: Color) -> Style {
        if self.colour {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, view: &mut View, look: Look) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Min(1),
        Constraint::Length(2),
    ])
    .areas(frame.area());
    let status = view.status.clone();
    frame.render_widget(heading(view, status.as_deref(), head.width, look), head);
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
        (Screen::Detail, Some(status)) => detail(frame, view, status, body, look),
        (Screen::Tree, Some(status)) => {
            view.fit(usize::from(body.height.saturating_sub(1)));
            frame.render_widget(tree(view, status, body, look), body);
        }
    }
    frame.render_widget(footing(view, foot.width, look), foot);
    // What was told by a socket or a recording may hold anything.
    for cell in &mut frame.buffer_mut().content {
        if !cell.symbol().chars().all(is_plain) {
            cell.set_symbol("?");
        }
    }
}

fn heading(view: &View, status: Option<&Status>, width: u16, look: Look) -> Paragraph<'static> {
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
        "cache {} divided by weight; {} free, reserve {}; agent {:.1} % CPU, {}",
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
            let blind = status.app_io_unavailable.as_ref()?;
            Some(format!("applications are not seen: {blind}"))
        })
        .or_else(|| status.limitations.first().map(|l| format!("limited: {l}")));
    let third = match (&trouble, status.external.len()) {
        (Some(trouble), _) => Line::styled(
            shortened(trouble, usize::from(width)),
            look.tinted(Color::Yellow),
        ),
        (None, 0) => Line::raw(""),
        (None, n) => Line::styled(
            format!("{n} knobs were written by others and are left to them"),
            look.tinted(Color::Yellow),
        ),
    };
    Paragraph::new(vec![
        Line::styled(format!("{left}{}{time}", " ".repeat(gap)), bold),
        Line::raw(second),
        third,
    ])
}

/// What it uses of its cache, or that this is not known: nothing was watched yet, or recorded.
fn useful(tenant: &TenantStatus) -> String {
    if tenant.working_set == 0 && tenant.observed_for == 0.0 {
        "-".to_owned()
    } else {
        bytes(tenant.working_set)
    }
}

/// A text that has `width` columns at most.
fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{}...", kept.trim_end())
}

/// The widths that depend on the screen's: name, bar, and whether latencies have room.
fn widths(width: u16) -> (usize, usize, bool) {
    let width = usize::from(width);
    let latencies = width >= 110;
    // WEIGHT, USED, USEFUL, ENTIT, READ/s, WRIT/s, HIT%, PV, LOW, each with a space; then the flags.
    let fixed = 5 + 6 + 7 + 6 + 6 + 6 + 5 + 5 + 6 + if latencies { 12 } else { 0 };
    let rest = width.saturating_sub(fixed + 1);
    let bar = (rest / 3).clamp(8, 30);
    (rest.saturating_sub(bar).max(8), bar, latencies)
}

fn tree(view: &View, status: &Status, area: Rect, look: Look) -> Paragraph<'static> {
    let (name, bar, latencies) = widths(area.width);
    // A weight's column has five digits; its name is longer by one, which names of tenants end before.
    let head = name - 1;
    let timed = if latencies { "  R99   W99 " } else { "" };
    let mut lines = vec![Line::styled(
        format!(
            "{:head$}{:>6} {:bar$.bar$}{:>6}{:>7}{:>6}{:>6}{:>6}{:>5}{:>5}{:>6}{timed}",
            "TENANT",
            "WEIGHT",
            "USED|ENTITLED",
            "USED",
            "USEFUL",
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
        let line = tenant_line(tenant, row, (name, bar, latencies), scale, look);
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
    (name_width, bar_width, latencies): (usize, usize, bool),
    scale: u64,
    look: Look,
) -> Line<'static> {
    let fold = match (tenant.leaf, row.folded) {
        (false, true) => "+",
        (false, false) => "-",
        (true, _) => " ",
    };
    let label = tenant.path.rsplit('/').next().unwrap_or_default();
    let label = if tenant.path == "-" {
        "(outside)"
    } else {
        label
    };
    let indent = " ".repeat(row.depth.min(6));
    let name = shorten(
        &format!("{indent}{fold}{label}"),
        name_width.saturating_sub(1),
    );
    let over = tenant.usage > tenant.entitlement;
    let (bar, colour) = bar(tenant, scale, bar_width, over);
    let app = tenant.app.as_ref();
    let of_app =
        |value: fn(&justitia_api::AppStatus) -> String| app.map_or_else(|| "-".to_owned(), value);
    let low = tenant.knobs.iter().find(|k| k.knob == "memory.low");
    let low = low.map_or_else(
        || "-".to_owned(),
        |k| {
            let stands = k.value.parse().map_or_else(|_| "?".to_owned(), bytes);
            match k.owner {
                KnobOwner::Agent => stands,
                KnobOwner::Proposed => format!("({stands}"),
                KnobOwner::External => format!("!{stands}"),
            }
        },
    );
    let timed = match (latencies, app.and_then(|a| a.latency)) {
        (false, _) => String::new(),
        (true, None) => format!("{:>6}{:>6}", "-", "-"),
        (true, Some(l)) => format!("{:>6}{:>6}", latency(l.read_p99), latency(l.write_p99)),
    };
    let contends = if tenant.backlogged { "*" } else { " " };
    Line::from(vec![
        Span::raw(format!("{name:name_width$}{:>5}{contends}", tenant.weight)),
        Span::styled(bar, look.tinted(colour)),
        Span::raw(format!(
            "{:>6}{:>7}{:>6}{:>6}{:>6}{:>5}{:>5}{:>6}{timed}",
            bytes(tenant.usage),
            useful(tenant),
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

fn detail(frame: &mut Frame<'_>, view: &View, status: &Status, area: Rect, look: Look) {
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
        look.tinted(Color::Green),
    );
    let fastest = moments.iter().map(|m| m.bandwidth).fold(0.0, f64::max);
    history(
        frame,
        right,
        &format!("applications, at most {}/s", rate(fastest)),
        moments
            .iter()
            .map(|m| justitia_share::num::to_u64(m.bandwidth / 1024.0))
            .collect(),
        look.tinted(Color::Cyan),
    );
    let why = explain(status, row.index, &Standing::default());
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

fn footing(view: &View, width: u16, look: Look) -> Paragraph<'static> {
    let teach = match (view.screen, view.chosen()) {
        _ if view.typing => format!("show only paths that contain: {}_", view.filter),
        (Screen::Tree, Some(tenant)) => teach(tenant),
        _ => String::new(),
    };
    let keys = match (view.screen, view.typing, view.replay) {
        (_, true, _) => "Enter done  Esc all again".to_owned(),
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
        Line::styled(cut(teach), look.tinted(Color::Cyan)),
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
            format!("; PV {} (0: all by weight)", pv(tenant.pv))
        });
        return format!("its children hold {of_what} of its entitlement{far}");
    }
    if let Some(why) = &tenant.exempt {
        return format!("nothing is taken from it now: {why}");
    }
    if over > 0 {
        format!(
            "holds {of_what} of its entitlement: {} are lent, and given back first",
            bytes(over)
        )
    } else {
        format!("holds {of_what} of its entitlement: nothing is taken from it")
    }
}

const HELP: &str = "\
A tenant is a cgroup. The page cache is divided among siblings by WEIGHT
(io.weight, or io.bfq.weight): what they use first, then the rest.
A * behind the weight: it contends, that is, it waits for I/O.

USED    file pages that it holds
USEFUL  what of them it uses again; entitlements give this first
ENTIT   what it is entitled to now
bar     ==== held, | the entitlement; what is beyond it is lent
READ    what applications got per second, from the cache or the disk
HIT%    the part of what was read that was cached
PV      how far its children are from their weights; 0 is perfect
LOW     memory.low that the agent set; (x would set; !x someone else's
R99     99 of 100 reads took at most this (wide screens, trace_latency = true)

Enter  why all stands where it stands     c      fold children
/      filter by path                     s      sort siblings
Space  pause                              q      quit
Left, Right, [ ], < >  move in a recording: 10 s, 1 min, its ends";

#[cfg(test)]
mod tests;
