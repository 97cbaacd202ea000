//! A frame, from a view. No I/O.

mod detail;
mod footing;
mod heading;
mod text;
mod tree;

use justitia_api::escape::is_plain;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::widgets::{Paragraph, Wrap};

use super::theme::Theme;
use super::view::{Screen, View};
use detail::detail;
use footing::footing;
use heading::heading;
use tree::tree;

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
/      filter by path                     s      sort siblings
Space  pause                              q      quit
Left, Right, [ ], < >  move in a recording: 10 s, 1 min, its ends";

#[cfg(test)]
mod tests;
