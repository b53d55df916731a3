//! `covey watch status`: which programs this kernel and this user can use.

use api::error::Result;
use watch::status::{Row, status};

use crate::table::Table;
use crate::term::Term;

/// Shows which programs can be used here, and what is not seen without the others
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_: &Args, term: Term) -> Result<u8> {
    let rows = status();
    term.result(&rows, || text(&rows));
    Ok(u8::from(rows.iter().any(|row| !row.usable)))
}

fn text(rows: &[Row]) -> String {
    let mut table = Table::new(&["program ", "called at ", "usable ", "sees"]);
    for row in rows {
        let usable = if row.usable { "yes" } else { "no" };
        table.row([row.program, &row.hook, usable, row.sees].map(str::to_owned).to_vec());
    }
    let mut whys: Vec<&str> = rows.iter().filter_map(|row| row.why.as_deref()).collect();
    whys.dedup();
    let whys: String = whys.iter().map(|why| format!("{why}\n")).collect();
    format!("{}{whys}", table.text())
}
