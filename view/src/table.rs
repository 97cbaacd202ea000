//! Tables for a terminal.

use std::os::fd::AsFd;

use comfy_table::{CellAlignment, Table, presets};
use justitia_api::escape::plain;
use justitia_api::units::bytes;
use ratatui::text::Span;

/// An amount of bytes, or `-` where it is not known.
#[must_use]
pub fn known(amount: Option<u64>) -> String {
    amount.map_or_else(|| "-".to_owned(), bytes)
}

/// A table without lines, a row a line. `heads` names the columns, with `|` between them and `>` before those of numbers,
/// which stand to the right. Control characters in cells are escaped, so that nothing in them reaches the terminal.
#[must_use]
pub fn table(heads: &str, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    drawn(&heads.split('|').collect::<Vec<_>>(), rows)
}

/// The name of a column, without the mark of numbers.
fn name(head: &str) -> &str {
    head.trim_start_matches('>')
}

fn drawn(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(heads.iter().map(|head| name(head)));
    for row in rows {
        table.add_row(row.iter().map(|cell| plain(cell)));
    }
    for (head, column) in heads.iter().zip(table.column_iter_mut()) {
        column.set_padding((0, 1));
        if head.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines();
    let lines = lines.map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// How many columns standard output shows; `None` where it is no terminal.
#[must_use]
pub fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout().as_fd()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// How many columns a text takes.
fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The least of a text column that stays when it is shortened.
const LEAST: usize = 20;
const LEAST_LAST: usize = 10;

/// As [`table`], but at most `most` columns wide: of the columns those with the highest rank are left out until it fits, and
/// then the first one, a name, and the last one are shortened. Rank 0 is never left out.
#[must_use]
pub fn fitted(
    ranked: &[(&str, u8)],
    rows: impl IntoIterator<Item = Vec<String>>,
    most: usize,
) -> String {
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| row.iter().map(|cell| plain(cell)).collect())
        .collect();
    let mut widths: Vec<usize> = ranked.iter().map(|(head, _)| width(name(head))).collect();
    for row in &rows {
        for (most, cell) in widths.iter_mut().zip(row) {
            *most = (*most).max(width(cell));
        }
    }
    let last = ranked.len().saturating_sub(1);
    let least = |at: usize, width: usize| match at {
        0 => width.min(LEAST),
        at if at == last => width.min(LEAST_LAST),
        _ => width,
    };
    let mut kept: Vec<usize> = (0..ranked.len()).collect();
    let needs =
        |kept: &[usize]| -> usize { kept.iter().map(|at| least(*at, widths[*at]) + 1).sum() };
    while needs(&kept) > most + 1
        && let Some(out) = kept.iter().rev().copied().max_by_key(|at| ranked[*at].1)
        && ranked[out].1 > 0
    {
        kept.retain(|at| *at != out);
    }
    // What is left goes to the name first.
    let mut left = (most + 1).saturating_sub(needs(&kept));
    let mut shown = widths.clone();
    for at in [0, last] {
        let more = (widths[at] - least(at, widths[at])).min(left);
        shown[at] = least(at, widths[at]) + more;
        left -= more;
    }
    let heads: Vec<&str> = kept.iter().map(|at| ranked[*at].0).collect();
    let cut = |row: Vec<String>| {
        let of = |at: &usize| {
            row.get(*at)
                .map_or_else(String::new, |cell| shortened(cell, shown[*at]))
        };
        kept.iter().map(of).collect()
    };
    drawn(&heads, rows.into_iter().map(cut))
}

/// At most `most` columns of a text, with its end, which tells more of a path than its middle.
fn shortened(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let room = most.saturating_sub(1);
    let (mut head, mut tail) = (String::new(), Vec::new());
    let fits = |used: usize, c: char| used + width(c.encode_utf8(&mut [0; 4])) <= room;
    let half = room / 2;
    for c in text.chars() {
        if width(&head) >= half || !fits(width(&head), c) {
            break;
        }
        head.push(c);
    }
    let mut used = width(&head);
    for c in text.chars().rev() {
        if !fits(used, c) {
            break;
        }
        used += width(c.encode_utf8(&mut [0; 4]));
        tail.push(c);
    }
    head.push('…');
    head.extend(tail.iter().rev());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_columns_below_each_other() {
        let rows = [["a", "1", "on"], ["long.service", "12345", ""]];
        let text = table(
            "NAME|>SIZE|STATE",
            rows.map(|row| row.map(str::to_owned).to_vec()),
        );
        let expected = "NAME          SIZE STATE\n\
                        a                1 on\n\
                        long.service 12345\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_table_fits_and_uses_what_there_is() {
        let columns = [
            ("TENANT", 0),
            (">WEIGHT", 0),
            (">RARE", 2),
            (">OFTEN", 1),
            ("STATE", 0),
        ];
        let rows = [
            [
                "a".repeat(50) + ".service",
                "100".into(),
                "7".into(),
                "8".into(),
                "growing, backlogged".into(),
            ],
            [
                "größe\u{202e}日本".into(),
                "1".into(),
                "7".into(),
                "8".into(),
                String::new(),
            ],
        ];
        let rows = rows.map(|row| row.to_vec());
        let mut before = 0;
        for most in [30, 40, 60, 80, 90, 95, 100, 200] {
            let text = fitted(&columns, rows.clone(), most);
            let widest = text.lines().map(width).max().unwrap();
            assert!(widest <= most.max(39), "{most}\n{text}");
            assert!(widest >= before, "{most}\n{text}");
            before = widest;
            assert_eq!(text.contains("RARE"), most >= 60, "{most}\n{text}");
            assert!(
                text.contains(".service") && text.contains("\\u{202e}"),
                "{most}\n{text}"
            );
            assert_eq!(
                text.contains("growing, backlogged"),
                most >= 100,
                "{most}\n{text}"
            );
        }
    }

    #[test]
    fn cells_cannot_control_a_terminal() {
        let text = table("NAME", [vec!["\x1b[2J\n".to_owned()]]);
        assert_eq!(text, "NAME\n\\u{1b}[2J\\n\n");
    }
}
