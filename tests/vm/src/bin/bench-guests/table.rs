//! Tables of figures: rows of measurements, columns of places, and ratios of two columns.

/// A table that grows.
pub struct Table {
    title: String,
    rows: Vec<String>,
    columns: Vec<String>,
    cells: Vec<(usize, usize, f64)>,
    ratios: Vec<(String, String)>,
}

/// The lines of `in-guest`: a name, a tabulator, a number.
pub fn read_lines(said: &str) -> impl Iterator<Item = (&str, f64)> {
    said.lines().map(move |line| {
        let (name, number) = line.split_once('\t').unwrap_or_else(|| panic!("no figure: {said}"));
        (name, number.parse().unwrap_or_else(|_| panic!("no number: {line}")))
    })
}

fn place(list: &mut Vec<String>, name: &str) -> usize {
    list.iter().position(|known| known == name).unwrap_or_else(|| {
        list.push(name.to_owned());
        list.len() - 1
    })
}

impl Table {
    /// An empty table.
    pub fn new(title: &str) -> Table {
        Table { title: title.to_owned(), rows: vec![], columns: vec![], cells: vec![], ratios: vec![] }
    }

    fn put(&mut self, row: &str, column: &str, figure: f64, better: fn(f64, f64) -> f64) {
        let (row, column) = (place(&mut self.rows, row), place(&mut self.columns, column));
        match self.cells.iter_mut().find(|cell| (cell.0, cell.1) == (row, column)) {
            Some(cell) => cell.2 = better(cell.2, figure),
            None => self.cells.push((row, column, figure)),
        }
    }

    /// Enters a figure of which the least counts.
    pub fn least(&mut self, row: &str, column: &str, figure: f64) {
        self.put(row, column, figure, f64::min);
    }

    /// Enters a figure of which the most counts.
    pub fn most(&mut self, row: &str, column: &str, figure: f64) {
        self.put(row, column, figure, f64::max);
    }

    /// Adds a column with a ratio of two others, if both are there.
    pub fn ratio(&mut self, one: &str, other: &str) {
        if [one, other].iter().all(|name| self.columns.iter().any(|known| known == name)) {
            self.ratios.push((one.to_owned(), other.to_owned()));
        }
    }

    fn get(&self, row: usize, column: &str) -> Option<f64> {
        let column = self.columns.iter().position(|known| known == column)?;
        self.cells.iter().find(|cell| (cell.0, cell.1) == (row, column)).map(|cell| cell.2)
    }

    /// Prints it as Markdown.
    pub fn print(&self) {
        let ratios = self.ratios.iter().map(|(one, other)| format!("{one} / {other}"));
        let heads: Vec<String> = self.columns.iter().cloned().chain(ratios).collect();
        println!("\n{}\n\n| | {} |\n|---|{}", self.title, heads.join(" | "), "---|".repeat(heads.len()));
        for (at, row) in self.rows.iter().enumerate() {
            let figures = self.columns.iter().map(|column| self.get(at, column).map_or("-".into(), shown));
            let ratios = self.ratios.iter().map(|(one, other)| {
                self.get(at, one)
                    .zip(self.get(at, other))
                    .map_or("-".into(), |(a, b)| format!("{:.2}", a / b))
            });
            let cells: Vec<String> = figures.chain(ratios).collect();
            println!("| {row} | {} |", cells.join(" | "));
        }
    }
}

fn shown(figure: f64) -> String {
    if figure < 10.0 { format!("{figure:.1}") } else { format!("{figure:.0}") }
}
