//! What keys do to a view.

use super::{Command, Key, Screen, View};

impl View {
    /// Does what a key says; what is beyond the view is returned.
    pub fn press(&mut self, key: Key) -> Option<Command> {
        if self.typing {
            self.type_filter(key);
            return None;
        }
        match (self.screen, key) {
            (_, Key::Char('q')) => return Some(Command::Quit),
            (Screen::Tree, Key::Escape) if self.filter.is_empty() => return Some(Command::Quit),
            (Screen::Tree, Key::Escape) => {
                self.filter.clear();
                self.rearrange();
            }
            (_, Key::Escape | Key::Backspace) => self.screen = Screen::Tree,
            (Screen::Help, _) => self.screen = Screen::Tree,
            (_, Key::Char('?' | 'h')) => self.screen = Screen::Help,
            (_, Key::Char(' ' | 'p')) => self.pause(),
            (_, Key::Left) if self.replay.is_some() => return Some(Command::Seek(-10)),
            (_, Key::Right) if self.replay.is_some() => return Some(Command::Seek(10)),
            (_, Key::Char('[')) => return Some(Command::Seek(-60)),
            (_, Key::Char(']')) => return Some(Command::Seek(60)),
            (_, Key::Char('<')) => return Some(Command::SeekTo(false)),
            (_, Key::Char('>')) => return Some(Command::SeekTo(true)),
            (Screen::Detail, Key::Enter) => self.screen = Screen::Tree,
            (Screen::Detail, Key::Up) => self.scrolled = self.scrolled.saturating_sub(1),
            (Screen::Detail, Key::Down) => self.scrolled = self.scrolled.saturating_add(1),
            (Screen::Tree, key) => self.press_in_tree(key),
            _ => {}
        }
        None
    }

    fn press_in_tree(&mut self, key: Key) {
        let last = self.rows.len().saturating_sub(1);
        match key {
            Key::Up => self.chosen = self.chosen.saturating_sub(1),
            Key::Down => self.chosen = (self.chosen + 1).min(last),
            Key::PageUp => self.chosen = self.chosen.saturating_sub(10),
            Key::PageDown => self.chosen = (self.chosen + 10).min(last),
            Key::Home => self.chosen = 0,
            Key::End => self.chosen = last,
            Key::Enter if self.chosen().is_some() => {
                self.screen = Screen::Detail;
                self.scrolled = 0;
            }
            Key::Char('s') => {
                self.sort = self.sort.next();
                self.rearrange();
            }
            Key::Char('/') => self.typing = true,
            Key::Char('c') => {
                if let Some(id) = self.chosen().map(|t| t.id) {
                    if !self.folded.remove(&id) {
                        self.folded.insert(id);
                    }
                    self.rearrange();
                }
            }
            _ => {}
        }
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.rearrange();
    }
}
