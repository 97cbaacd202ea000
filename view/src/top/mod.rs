//! `justitia top`: the tree, live, in a terminal.
//!
//! Statuses come from a thread (see [`source`]), keys from the terminal; [`view`] is what is shown and
//! [`draw`] draws it, and neither of the two does any I/O.

pub mod draw;
pub mod fixture;
pub mod source;
pub mod svg;
pub mod view;

use std::time::{Duration, Instant};

use justitia_common::signals::Signals;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use draw::Theme;
use source::Source;
use view::{Command, Key, View};

/// How long a key waits at most until a new status is looked for.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs until the user leaves, or a signal ends it: then, too, the terminal becomes what it was.
///
/// # Errors
/// If the terminal cannot be used.
pub fn run(mut source: Source, colour: bool) -> std::io::Result<()> {
    let signals = Signals::handle()?;
    let mut terminal = ratatui::try_init()?;
    let done = turn(&mut terminal, &mut source, Theme { colour }, &signals);
    ratatui::try_restore()?;
    done
}

fn turn(
    terminal: &mut ratatui::DefaultTerminal,
    source: &mut Source,
    theme: Theme,
    signals: &Signals,
) -> std::io::Result<()> {
    let mut view = View::of(&source.title());
    let mut stale = true;
    while !signals.has_come() {
        stale |= source.refresh(&mut view, Instant::now());
        if stale {
            terminal.draw(|frame| draw::draw(frame, &mut view, theme))?;
            stale = false;
        }
        if !event::poll(POLL_TIMEOUT)? {
            continue;
        }
        stale = true;
        let command = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
                    return Ok(());
                }
                pressed(key.code).and_then(|key| view.press(key))
            }
            _ => None,
        };
        match command {
            Some(Command::Quit) => return Ok(()),
            Some(command) => source.seek(&mut view, command),
            None => {}
        }
    }
    Ok(())
}

fn pressed(code: KeyCode) -> Option<Key> {
    Some(match code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Char(c) => Key::Char(c),
        _ => return None,
    })
}
