//! Tables and paragraphs that fit a terminal.

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

/// The most columns of a line.
pub const WIDTH: u16 = 100;

/// A table of text.
#[must_use]
pub fn table<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Table {
    let mut table = Table::new();
    table
        .load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')))
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(header.into_iter().map(Into::<String>::into));
    table
}

/// A table with numbers in all columns but the first `text`.
#[must_use]
pub fn figures<T: Into<String>>(text: usize, header: impl IntoIterator<Item = T>) -> Table {
    let mut table = table(header);
    for column in table.column_iter_mut().skip(text) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// `mark` and then `text` in lines of at most [`WIDTH`] columns, the later ones indented as far as the
/// text of the first.
#[must_use]
pub fn wrapped(mark: &str, text: &str) -> String {
    let indent = " ".repeat(mark.chars().count());
    let mut lines = vec![mark.to_owned()];
    let mut is_empty = true;
    for word in text.split_whitespace() {
        let length = lines.last().map_or(0, |line| line.chars().count());
        if !is_empty && length + 1 + word.chars().count() > usize::from(WIDTH) {
            lines.push(indent.clone());
            is_empty = true;
        }
        if let Some(line) = lines.last_mut() {
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
        }
        is_empty = false;
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_is_broken_into_lines_that_fit() {
        let mut wide = table(["what", "why"]);
        wide.add_row(["a pool", &"a long reason ".repeat(20)]);
        for line in wide.to_string().lines() {
            assert!(line.chars().count() <= usize::from(WIDTH), "{line}");
        }
    }

    #[test]
    fn a_paragraph_is_indented_below_its_mark() {
        let text = wrapped("method: ", &"word ".repeat(40));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("method: word word"));
        assert!(lines[1].starts_with("        word"));
        assert!(lines.iter().all(|line| line.len() <= usize::from(WIDTH)));
    }
}
