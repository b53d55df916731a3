//! Synthetic limit-order-book data in LOBSTER's format: a message file and an order-book file for each stock
//! and day.
//!
//! ```text
//!   TICKER_DATE_BEGIN_END_message_LEVELS.csv     time, type, order, size, price, direction
//!   TICKER_DATE_BEGIN_END_orderbook_LEVELS.csv   for each level: ask price, ask size, bid price, bid size
//! ```
//!
//! Row *n* of one file belongs to row *n* of the other: the book after the event. Times are seconds after
//! midnight, BEGIN and END are milliseconds. Prices are in ten-thousandths of a dollar. The same arguments
//! give the same bytes. Figures from these files are figures of synthetic data, and say so.

mod book;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use base::dice::{Dice, mix};

use crate::Result;
use book::{Book, Event, Side};

/// The price and size of a level that does not exist.
const NO_ASK: &str = "9999999999,0";
const NO_BID: &str = "-9999999999,0";
/// The first day, and the days of each month that are used.
const FIRST_YEAR: u64 = 2012;
const DAYS: u64 = 28;

/// Writes synthetic order-book data in LOBSTER's format
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder to write to
    to: PathBuf,
    /// The stocks
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "AAPL")]
    tickers: Vec<String>,
    /// Days for each stock
    #[arg(long, default_value_t = 1)]
    days: u64,
    /// Events a day
    #[arg(long, default_value_t = 91_997)]
    rows: u64,
    /// Levels of the book on each side
    #[arg(long, default_value_t = 50)]
    levels: usize,
    /// Seconds after midnight of the first event
    #[arg(long, default_value_t = 34_200)]
    begin: u64,
    /// Seconds after midnight of the end
    #[arg(long, default_value_t = 37_800)]
    end: u64,
    /// The seed. Another one gives other data.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    check(args)?;
    fs::create_dir_all(&args.to)?;
    let mut bytes = 0;
    for (n, ticker) in (0..).zip(&args.tickers) {
        for day in 0..args.days {
            bytes += write_day(args, ticker, n, day)?;
        }
    }
    let files = 2 * args.tickers.len() as u64 * args.days;
    println!(
        "Wrote {files} files of synthetic LOBSTER-format data, {} MB, to {}.",
        bytes / 1_000_000,
        args.to.display()
    );
    Ok(())
}

fn check(args: &Args) -> Result<()> {
    let is_name = |name: &String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let wrong = match args {
        _ if !args.tickers.iter().all(is_name) => "--tickers: letters and digits, with commas between names",
        _ if args.begin >= args.end || args.end > 86_400 => {
            "--begin must be before --end, and both within a day"
        }
        _ if !(1..=200).contains(&args.levels) => "--levels: 1 to 200",
        _ if args.rows == 0 || args.days == 0 => "--rows and --days: at least 1",
        _ if args.days > 12 * DAYS * 50 => "--days: at most 16,800",
        _ => return Ok(()),
    };
    Err(wrong.into())
}

/// Writes the two files of a day. Returns their bytes.
fn write_day(args: &Args, ticker: &str, number: u64, day: u64) -> Result<u64> {
    let date = date(day);
    let span = format!("{}_{}", args.begin * 1000, args.end * 1000);
    let open = |what: &str| -> Result<BufWriter<File>> {
        let name = format!("{ticker}_{date}_{span}_{what}_{}.csv", args.levels);
        Ok(BufWriter::with_capacity(1 << 20, File::create(args.to.join(name))?))
    };
    let (mut messages, mut books) = (open("message")?, open("orderbook")?);
    let seed = mix(mix(args.seed) ^ mix(number << 32 | day));
    let centre = centre(number, seed);
    let mut book = Book::new(seed, centre);
    for time in times(seed, args) {
        let event = book.next();
        write_event(&mut messages, time, &event)?;
        write_book(&mut books, &book, args.levels)?;
    }
    let (messages, books) = (messages.into_inner()?, books.into_inner()?);
    Ok(messages.metadata()?.len() + books.metadata()?.len())
}

/// The first stock begins near 582 dollars, others between 20 and 420.
fn centre(number: u64, seed: u64) -> i64 {
    let cents = Dice::new(seed ^ 1).below(1000) as i64;
    let dollars = if number == 0 { 577 } else { 20 + (mix(number) % 400) as i64 };
    dollars * 10_000 + cents * book::TICK
}

/// The times of the events in nanoseconds: random steps that fill the span.
fn times(seed: u64, args: &Args) -> impl Iterator<Item = u64> {
    let step = |dice: &mut Dice| -(1.0 - dice.unit()).ln();
    let mut first = Dice::new(seed ^ 2);
    let whole: f64 = (0..args.rows).map(|_| step(&mut first)).sum::<f64>() + step(&mut first);
    let (begin, span) = (args.begin * 1_000_000_000, (args.end - args.begin) as f64 * 1e9);
    let (mut dice, mut at) = (Dice::new(seed ^ 2), 0.0);
    (0..args.rows).map(move |_| {
        at += step(&mut dice);
        begin + (at / whole * span) as u64
    })
}

fn date(day: u64) -> String {
    let month = day / DAYS;
    format!("{}-{:02}-{:02}", FIRST_YEAR + month / 12, month % 12 + 1, day % DAYS + 1)
}

fn write_event(out: &mut impl Write, time: u64, event: &Event) -> Result<()> {
    let Event { kind, order, size, price, side } = event;
    let (seconds, nanos) = (time / 1_000_000_000, time % 1_000_000_000);
    Ok(writeln!(out, "{seconds}.{nanos:09},{},{order},{size},{price},{}", *kind as u8, *side as i8)?)
}

fn write_book(out: &mut impl Write, book: &Book, levels: usize) -> Result<()> {
    let (mut asks, mut bids) = (book.levels(Side::Sell), book.levels(Side::Buy));
    for n in 0..levels {
        if n > 0 {
            out.write_all(b",")?;
        }
        match asks.next() {
            Some((price, size)) => write!(out, "{price},{size},")?,
            None => write!(out, "{NO_ASK},")?,
        }
        match bids.next() {
            Some((price, size)) => write!(out, "{price},{size}")?,
            None => out.write_all(NO_BID.as_bytes())?,
        }
    }
    Ok(out.write_all(b"\n")?)
}
