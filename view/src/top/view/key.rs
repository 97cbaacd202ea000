//! Keys, and what they ask of whoever drives the view.

/// What the keys mean to do beyond the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Leave.
    Quit,
    /// In a recording: forward or back by so many statuses.
    Seek(i64),
    /// In a recording: to its beginning (false) or end (true).
    SeekTo(bool),
}

/// A key, as far as the view is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what their names say")]
pub enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Enter,
    Escape,
    Backspace,
    Char(char),
}
