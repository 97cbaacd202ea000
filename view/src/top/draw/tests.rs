//! What frames show.

use std::sync::Arc;

use super::shortened;
use super::*;
use crate::top::fixture;
use crate::top::view::Key;
use justitia_api::escape::is_plain;
use justitia_api::{Action, Reason};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

fn shown(view: &mut View, width: u16, height: u16, colour: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw(frame, view, Theme { colour }))
        .unwrap();
    terminal
}

fn text(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width);
    let lines = buffer.content().chunks(width).map(|line| {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

fn view(tenants: usize) -> View {
    let mut view = View::default();
    for second in 100..160 {
        view.take(Arc::new(fixture::status(tenants, second)));
    }
    view
}

/// A screen has these words.
fn shows(view: &mut View, facts: &[&str]) {
    let told = text(&shown(view, 140, 24, false));
    for fact in facts {
        assert!(told.contains(fact), "{fact:?} is not in\n{told}");
    }
}

#[test]
fn the_tree_a_tenant_and_the_help_are_shown() {
    let mut view = view(12);
    shows(
        &mut view,
        &[
            "acting 2 min  15 tenants  PV 0.23 (top level 0.20)",
            "-slice0.slice ",
            "  docker-0001-db.scope ",
            "282M  212M 45.0M 6.84M 1.71M 81.5",
        ],
    );
    view.press(Key::Down);
    view.press(Key::Enter);
    shows(
        &mut view,
        &[
            "pages held, at most 282M",
            "Page cache: holds 282M, entitled to 45.0M",
        ],
    );
    view.press(Key::Char('?'));
    shows(&mut view, &["ENTIT   its entitlement"]);
}

#[test]
fn the_tree_is_sorted_filtered_and_folded() {
    let mut view = view(24);
    let all = view.rows.len();
    view.press(Key::Char('s'));
    let tenants = &view.status.as_ref().unwrap().tenants;
    let in_first_slice = view.rows[1..9].iter();
    let usage: Vec<u64> = in_first_slice.map(|row| tenants[row.index].usage).collect();
    assert!(usage.is_sorted_by(|a, b| a >= b), "{usage:?}");
    view.press(Key::Char('/'));
    for c in "BATCH".chars() {
        view.press(Key::Char(c));
    }
    assert_eq!(view.rows.len(), 6, "one in each slice, and the slices");
    view.press(Key::Escape);
    view.press(Key::Home);
    view.press(Key::Char('c'));
    assert_eq!(view.rows.len(), all - 8);
}

#[test]
fn what_is_not_known_is_said() {
    let mut blind = fixture::status(6, 50);
    blind.app_io_unavailable = Some("no BTF".to_owned());
    blind
        .tenants
        .iter_mut()
        .for_each(|tenant| tenant.app = None);
    let mut view = View::default();
    view.take(Arc::new(blind));
    let told = text(&shown(&mut view, 80, 16, false));
    assert!(told.contains("get is not known: no BTF"), "{told}");
    let mut none = View::of("/run/justitia/justitia.sock");
    none.trouble = Some("no agent answers".to_owned());
    let told = text(&shown(&mut none, 80, 6, false));
    assert!(told.contains("no agent answers"), "{told}");
}

#[test]
fn colour_repeats_what_text_says() {
    let with = shown(&mut view(12), 80, 24, true);
    let without = shown(&mut view(12), 80, 24, false);
    assert_eq!(text(&with), text(&without));
    let coloured = |t: &Terminal<TestBackend>| {
        let cells = t.backend().buffer().content();
        cells.iter().filter(|c| c.fg != Color::Reset).count()
    };
    assert!(coloured(&with) > 100);
    assert_eq!(coloured(&without), 0);
}

#[test]
fn any_size_and_any_key_will_do() {
    let keys = [
        Key::Up,
        Key::Down,
        Key::PageDown,
        Key::End,
        Key::Home,
        Key::Enter,
        Key::Escape,
        Key::Char('s'),
        Key::Char('c'),
        Key::Char('/'),
        Key::Char('x'),
        Key::Backspace,
        Key::Char(' '),
        Key::Char('?'),
        Key::Right,
        Key::Char('['),
    ];
    let mut state = 7u64;
    let mut view = view(20);
    for step in 0..3000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let random = usize::try_from(state >> 33).unwrap();
        view.press(keys[random % keys.len()]);
        if step % 10 == 0 {
            view.take(Arc::new(fixture::status(random % 30, step)));
        }
        let (width, height) = (1 + random % 150, 1 + random % 40);
        let size = (
            u16::try_from(width).unwrap(),
            u16::try_from(height).unwrap(),
        );
        shown(&mut view, size.0, size.1, step % 2 == 0);
    }
}

#[test]
fn what_a_status_holds_does_nothing_to_a_terminal() {
    let bad = "x\x1b]0;\u{9b}2J\u{202e}\r\u{200d}a\u{200d}\u{202e}y";
    let mut status = fixture::status(6, 10);
    for tenant in &mut status.tenants {
        tenant.path = bad.to_owned();
        tenant.exempt = Some(Reason::Text(bad.into()));
        for knob in &mut tenant.knobs {
            (knob.knob, knob.value) = (bad.into(), bad.into());
            knob.reason = Some(Reason::Text(bad.into()));
        }
    }
    for decision in &mut status.decisions {
        decision.path = bad.into();
        decision.action = Action::Text(bad.into());
        decision.reason = Reason::Text(bad.into());
    }
    status.limitations = vec![bad.to_owned()];
    let mut view = View::of(bad);
    view.trouble = Some(bad.to_owned());
    for key in [
        Key::Down,
        Key::Enter,
        Key::Escape,
        Key::Char('/'),
        Key::Char('x'),
    ] {
        view.press(key);
        let terminal = shown(&mut view, 120, 40, true);
        for cell in terminal.backend().buffer().content() {
            let symbol = cell.symbol();
            assert!(symbol.chars().all(is_plain), "{symbol:?}");
        }
        view.take(Arc::new(status.clone()));
    }
}

#[test]
fn a_pause_holds_the_picture_and_shows_the_latest_after_it() {
    let mut view = view(6);
    let before = view.status.clone().unwrap().time;
    view.press(Key::Char(' '));
    view.take(Arc::new(fixture::status(6, 500)));
    assert!((view.status.as_ref().unwrap().time - before).abs() < 0.1);
    view.press(Key::Char(' '));
    assert!((view.status.as_ref().unwrap().time - before - 341.0).abs() < 0.1);
}

#[test]
fn the_agents_cost_is_that_of_the_last_seconds() {
    let mut view = View::default();
    assert!(view.agents_part().abs() < 1e-9);
    // Ten seconds of a processor to begin with, then a tenth of one.
    for second in 1..60 {
        let mut status = fixture::status(2, second);
        status.agent_usage.cpu = 10.0 + 0.1 * status.uptime;
        view.take(Arc::new(status));
        if second == 1 {
            assert!(view.agents_part() > 10.0, "all that there is to tell");
        } else {
            assert!((view.agents_part() - 0.1).abs() < 1e-6, "at {second}");
        }
    }
    // Another agent.
    let mut status = fixture::status(2, 4);
    status.agent_usage.cpu = 2.0;
    let uptime = status.uptime;
    view.take(Arc::new(status));
    assert!((view.agents_part() - 2.0 / uptime).abs() < 1e-9);
}

#[test]
fn siblings_come_by_name_and_what_is_outside_last() {
    let mut status = fixture::status(6, 100);
    let last = status.tenants.len() - 1;
    assert_eq!(status.tenants[last].path, "-");
    // As a directory lists them; parents are told by position, so only leaves change places.
    let leaves: Vec<usize> = (0..last).filter(|i| status.tenants[*i].leaf).collect();
    let (first, second) = (leaves[0], leaves[1]);
    assert_eq!(status.tenants[first].parent, status.tenants[second].parent);
    status.tenants.swap(first, second);
    let mut view = View::default();
    view.take(Arc::new(status.clone()));
    let shown: Vec<&str> = view
        .rows
        .iter()
        .map(|row| status.tenants[row.index].path.as_str())
        .collect();
    let mut sorted = shown.clone();
    sorted.sort_unstable_by_key(|path| (*path == "-", *path));
    assert_eq!(shown, sorted);
}

#[test]
fn what_is_too_long_says_so() {
    assert_eq!(shortened("as it is", 8), "as it is");
    assert_eq!(shortened("one too many", 8), "one t...");
}

#[test]
fn a_recordings_keys_fit_80_columns() {
    let mut view = view(2);
    view.replay = Some((3598, 3600));
    let shown = text(&shown(&mut view, 80, 24, false));
    assert!(
        shown.contains("3599/3600") && shown.trim_end().ends_with("q quit"),
        "{shown}"
    );
}
