//! Lines of a fixed width beside a mark.

use justitia_kernel::capabilities::State;

/// How wide a line may be: a terminal of 80 columns.
pub(super) const WIDTH: usize = 80;

/// Whether something is there.
pub(super) const fn mark(state: State) -> &'static str {
    match state {
        State::Yes => "yes",
        State::No => "no",
        State::Unknown => "?",
        State::NotApplicable => "n/a",
    }
}

/// `text` in lines beside `mark`; a blank at its beginning indents it further.
pub(super) fn paragraph(mark: &str, text: &str) -> String {
    let deeper = text.len() - text.trim_start().len();
    let indent = " ".repeat(6 + deeper);
    let mut out = format!("{mark:>4}  {}", " ".repeat(deeper));
    let mut column = indent.len();
    for (n, word) in text.split_whitespace().enumerate() {
        let width = word.chars().count();
        if n > 0 && column + 1 + width > WIDTH {
            out.push('\n');
            out += &indent;
            column = indent.len();
        } else if n > 0 {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += width;
    }
    out.push('\n');
    out
}
