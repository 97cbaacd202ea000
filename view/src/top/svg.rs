//! A frame as a picture: what a terminal shows, as SVG.

use std::fmt::Write;

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

/// A character's size, in the picture's units.
const WIDTH: u16 = 8;
const HEIGHT: u16 = 17;
const INK: &str = "#d8dee9";
const PAPER: &str = "#1d2128";

/// Draws a buffer: one text for each run of characters that look alike.
#[must_use]
pub fn svg(buffer: &Buffer) -> String {
    let (columns, lines) = (buffer.area.width, buffer.area.height);
    let (width, height) = (columns * WIDTH + 16, lines * HEIGHT + 16);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans Mono, monospace\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{PAPER}\"/>\n"
    );
    for y in 0..lines {
        let mut x = 0;
        while x < columns {
            let look = look(buffer, x, y);
            let begin = x;
            let mut text = String::new();
            while x < columns && self::look(buffer, x, y) == look {
                text.push_str(buffer.cell((x, y)).map_or(" ", |cell| cell.symbol()));
                x += 1;
            }
            run(&mut out, begin, y, &text, look);
        }
    }
    out.push_str("</svg>\n");
    out
}

/// Ink, paper, and whether it is bold.
type Look = (&'static str, Option<&'static str>, bool);

fn look(buffer: &Buffer, x: u16, y: u16) -> Look {
    let Some(cell) = buffer.cell((x, y)) else {
        return (INK, None, false);
    };
    let ink = colour(cell.fg).unwrap_or(INK);
    let paper = colour(cell.bg);
    let bold = cell.modifier.contains(Modifier::BOLD);
    if cell.modifier.contains(Modifier::REVERSED) {
        (paper.unwrap_or(PAPER), Some(ink), bold)
    } else if cell.modifier.contains(Modifier::DIM) {
        ("#7b8494", paper, bold)
    } else {
        (ink, paper, bold)
    }
}

const fn colour(colour: Color) -> Option<&'static str> {
    Some(match colour {
        Color::Black => "#2e3440",
        Color::Red | Color::LightRed => "#e06c75",
        Color::Green | Color::LightGreen => "#98c379",
        Color::Yellow | Color::LightYellow => "#e5c07b",
        Color::Blue | Color::LightBlue => "#61afef",
        Color::Magenta | Color::LightMagenta => "#c678dd",
        Color::Cyan | Color::LightCyan => "#56b6c2",
        Color::White | Color::Gray => "#e5e9f0",
        Color::DarkGray => "#7b8494",
        _ => return None,
    })
}

fn run(out: &mut String, x: u16, y: u16, text: &str, (ink, paper, bold): Look) {
    let count = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
    let (left, top) = (8 + x * WIDTH, 8 + y * HEIGHT);
    if let Some(paper) = paper {
        let _ = writeln!(
            out,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{HEIGHT}\" fill=\"{paper}\"/>",
            count.saturating_mul(WIDTH)
        );
    }
    if text.trim().is_empty() {
        return;
    }
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    // The length makes it fit whatever monospaced font there is.
    let _ = writeln!(
        out,
        "<text x=\"{left}\" y=\"{}\" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{ink}\"{weight} xml:space=\"preserve\">{text}</text>",
        top + 13,
        count.saturating_mul(WIDTH)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn runs_are_told_as_they_look() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, 2));
        buffer.set_string(0, 0, "a<b", Style::new().fg(Color::Red));
        buffer.set_string(4, 1, "x", Style::new().add_modifier(Modifier::REVERSED));
        let svg = svg(&buffer);
        assert!(
            svg.contains("fill=\"#e06c75\" xml:space=\"preserve\">a&lt;b</text>"),
            "{svg}"
        );
        assert!(svg.contains("<rect x=\"40\" y=\"25\" width=\"8\""), "{svg}");
        assert_eq!(
            svg.matches("<text").count(),
            2,
            "blanks are not drawn: {svg}"
        );
    }
}
