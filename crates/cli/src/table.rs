//! Tables and columns for people.

use api::text::{Lines, shown};

/// Two columns: names, and values to their right.
#[derive(Debug, Default)]
pub struct Pairs(Vec<(String, String)>);

impl Pairs {
    /// Creates an empty list.
    pub fn new() -> Pairs {
        Pairs::default()
    }

    /// Adds a line.
    pub fn row(&mut self, name: &str, value: impl Into<String>) -> &mut Pairs {
        self.0.push((name.to_owned(), shown(&value.into(), Lines::One).into_owned()));
        self
    }

    /// The text.
    pub fn text(&self) -> String {
        let width = self.0.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        self.0.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
    }
}

/// A table with a head and rows. Columns whose head ends in a space are right-aligned.
#[derive(Debug)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these columns.
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|&cell| cell.to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row. It has one cell per column.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| shown(cell, Lines::One).into_owned()).collect());
    }

    /// The text.
    pub fn text(&self) -> String {
        let columns = self.head.len();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.max(self.head[column].trim_end().chars().count())
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |cells: &[String]| {
            let mut out = String::new();
            for (column, cell) in cells.iter().enumerate().take(columns) {
                let (cell, width) = (cell.trim_end(), widths[column]);
                if self.head[column].ends_with(' ') {
                    out.push_str(&format!("{cell:>width$}"));
                } else {
                    out.push_str(&format!("{cell:width$}"));
                }
                out.push_str("  ");
            }
            out.trim_end().to_owned() + "\n"
        };
        let mut text = line(&self.head);
        self.rows.iter().for_each(|row| text.push_str(&line(row)));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", "size "]);
        table.row(vec!["a".into(), "1".into()]);
        table.row(vec!["long".into(), "100000".into()]);
        assert_eq!(table.text(), "name    size\na          1\nlong  100000\n");
        let mut pairs = Pairs::new();
        pairs.row("files", "3").row("id", "x");
        assert_eq!(pairs.text(), "files  3\nid     x\n");
    }
}
