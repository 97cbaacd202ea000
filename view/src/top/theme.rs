//! How a frame looks.

use ratatui::style::{Color, Style};

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
