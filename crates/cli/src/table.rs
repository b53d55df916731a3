//! Numbers and columns as people read them.

use crate::term::{Lines, shown};

/// Bytes with a binary unit: `17 B`, `1.5 KiB`, `20.0 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A count with commas: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time span: `0.4 s`, `35 s`, `4 min 5 s`, `3 h 2 min`, `5 d 1 h`.
pub fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..10 => format!("{:.1} s", seconds.max(0.0)),
        10..60 => format!("{whole} s"),
        60..3_600 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..86_400 => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

/// Two columns: names, and values to their right.
#[derive(Debug, Default)]
pub struct Pairs(Vec<(String, String)>);

impl Pairs {
    /// Nothing yet.
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

/// A table: a head and rows; columns whose head ends in a space are aligned to the right.
#[derive(Debug)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|&cell| cell.to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
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

/// A moment as `2026-11-20T11:30:00Z`; `seconds` since 1970.
pub fn utc(seconds: i64) -> String {
    // SAFETY: `tm` is plain numbers and a pointer that gmtime_r sets; all zeros is a value of it.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to living values of the right types; the call keeps neither.
    if unsafe { libc::gmtime_r(&seconds, &mut parts) }.is_null() {
        return format!("{seconds} s");
    }
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        parts.tm_year + 1900,
        parts.tm_mon + 1,
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [bytes(0), bytes(1023), bytes(1024), bytes(1536), bytes(20 << 30)],
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "20.0 GiB"]
        );
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB", "never 1024.0 KiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(
            [count(0), count(999), count(1_000), count(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [span(0.42), span(35.4), span(245.0), span(10_920.0)],
            ["0.4 s", "35 s", "4 min 5 s", "3 h 2 min"]
        );
    }

    #[test]
    fn moments_read_well() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

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
