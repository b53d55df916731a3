//! The same records sorted by programs that everybody has, in one file on this machine's disk.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

use base::time::monotonic;

use super::check::{Summary, fill};
use super::records::Maker;
use super::show::Show;
use super::{Args, Form, TOTAL};
use crate::Result;
use crate::run::Bench;
use crate::sheet::Sheet;

/// Its column.
pub const GNU: &str = "GNU sort, one file";
/// Its column.
pub const DUCKDB: &str = "DuckDB, one file";
/// One column, with a separator that no record has.
const SCRIPT: &str = "import sys, duckdb
source, target = sys.argv[1:]
lines = f\"read_csv('{source}', columns={{'line': 'VARCHAR'}}, header=false, sep='\\x01', quote='', escape='', auto_detect=false)\"
duckdb.sql(f\"COPY (SELECT line FROM {lines} ORDER BY line) TO '{target}' (HEADER false, QUOTE '', DELIMITER '\\x01')\")
";

/// Measures those that are asked for. The records are made before, and what was sorted is made durable.
///
/// # Errors
/// A program failed, or sorted wrongly.
pub fn measure(args: &Args, bench: &Bench, records: u64, sheet: &mut Sheet, show: &mut Show) -> Result<()> {
    if !args.gnu && args.duckdb.is_none() {
        return Ok(());
    }
    let input = bench.scratch().join("lines");
    make(records, &input)?;
    let whole = Summary::of_files(Form::Gensort, [input.as_path()])?;
    let sorted = bench.scratch().join("sorted");
    if args.gnu {
        let mut sort = Command::new("sort");
        sort.env("LC_ALL", "C").args(["-S", "2G", "--parallel=2", "-T"]).arg(bench.scratch());
        sort.arg("-o").arg(&sorted).arg(&input);
        show.step(GNU);
        time(GNU, sort, &sorted, sheet)?;
        Summary::of_files(Form::Gensort, [sorted.as_path()])?.must_be_sorted_from(&whole)?;
    }
    if let Some(python) = &args.duckdb {
        let mut sort = Command::new(python);
        sort.args(["-c", SCRIPT]).args([&input, &sorted]);
        show.step(DUCKDB);
        time(DUCKDB, sort, &sorted, sheet)?;
        // It writes other line ends than gensort, so only their number can be compared.
        let lines = lines(&sorted)?;
        if lines != whole.records() {
            return Err(format!("DuckDB wrote {lines} lines of {}", whole.records()).into());
        }
    }
    std::fs::remove_file(&sorted)?;
    Ok(std::fs::remove_file(&input)?)
}

fn make(records: u64, path: &Path) -> Result<()> {
    let (mut maker, mut buf) = (Maker::new(Form::Gensort, 0), Vec::new());
    let mut file = BufWriter::new(File::create(path)?);
    for _ in 0..records {
        buf.clear();
        maker.push(&mut buf);
        file.write_all(&buf)?;
    }
    Ok(file.into_inner()?.sync_all()?)
}

/// The number of lines.
fn lines(path: &Path) -> Result<u64> {
    let (mut file, mut buf, mut lines) = (File::open(path)?, vec![0; 1 << 20], 0);
    loop {
        let len = fill(&mut file, &mut buf)?;
        if len == 0 {
            return Ok(lines);
        }
        lines += buf[..len].iter().filter(|&&byte| byte == b'\n').count() as u64;
    }
}

fn time(name: &'static str, mut command: Command, sorted: &Path, sheet: &mut Sheet) -> Result<()> {
    sheet.columns([name.to_owned()]);
    let begun = monotonic();
    let done = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !done.status.success() {
        return Err(format!("{name}: {}\n{}", done.status, String::from_utf8_lossy(&done.stderr)).into());
    }
    File::open(sorted)?.sync_all()?;
    sheet.add(TOTAL, name, &[("", "s", begun.elapsed().as_secs_f64())], 0.0);
    Ok(())
}
