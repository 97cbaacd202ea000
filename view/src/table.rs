//! Tables for a terminal.

use comfy_table::{CellAlignment, Table, presets};
use justitia_api::escape::plain;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column<'a> {
    /// A name or words.
    Text(&'a str),
    /// A number.
    Number(&'a str),
}

/// A table without lines, a row a line. Control characters in cells are escaped, so that nothing in them reaches the
/// terminal.
#[must_use]
pub fn table(columns: &[Column<'_>], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().map(|column| match column {
        Column::Text(name) | Column::Number(name) => *name,
    }));
    for row in rows {
        table.add_row(row.iter().map(|cell| plain(cell)));
    }
    for (column, drawn) in columns.iter().zip(table.column_iter_mut()) {
        drawn.set_padding((0, 1));
        if matches!(column, Column::Number(_)) {
            drawn.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines();
    let lines = lines.map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_columns_below_each_other() {
        let rows = [["a", "1", "on"], ["long.service", "12345", ""]];
        let text = table(
            &[
                Column::Text("NAME"),
                Column::Number("SIZE"),
                Column::Text("STATE"),
            ],
            rows.map(|row| row.map(str::to_owned).to_vec()),
        );
        let expected = "NAME          SIZE STATE\n\
                        a                1 on\n\
                        long.service 12345\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn cells_cannot_control_a_terminal() {
        let text = table(&[Column::Text("NAME")], [vec!["\x1b[2J\n".to_owned()]]);
        assert_eq!(text, "NAME\n\\u{1b}[2J\\n\n");
    }
}
