//! What tests and measurements run in a guest: one static program. The same program runs on the host for
//! comparison.
//!
//! ```text
//!   in-guest churn DIR STOP          make files until STOP exists, and say which were acknowledged
//!   in-guest check DIR LOG           compare the files with what churn said
//!   in-guest hold DIR                lock DIR/locked, open DIR/gone and unlink it, and stay
//!   in-guest lock FILE               lock a file, or fail if it is locked
//!   in-guest operations DIR          the time of each operation in nanoseconds, one per line
//!   in-guest parallel DIR W F        W workers write and read F files of 4 KiB
//!   in-guest streams DIR N SIZE      N streams read and write in pieces of SIZE bytes
//!   in-guest fsync DIR N             N writes of 4 KiB, each with fsync
//! ```
// It measures, so it reads the clock. It ends with a message if anything fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod churn;
mod many;
mod measure;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("{text} is no number"));
    match words[..] {
        ["churn", dir, stop] => churn::run(Path::new(dir), Path::new(stop)),
        ["check", dir, log] => churn::check(Path::new(dir), Path::new(log)),
        ["hold", dir] => churn::hold(Path::new(dir)),
        ["lock", file] => drop(churn::lock(Path::new(file))),
        ["operations", dir] => measure::operations(Path::new(dir)),
        ["fsync", dir, count] => measure::fsync(Path::new(dir), number(count)),
        ["parallel", dir, workers, files] => many::parallel(Path::new(dir), number(workers), number(files)),
        ["streams", dir, count, size] => many::streams(Path::new(dir), number(count), number(size)),
        _ => {
            eprintln!("usage: in-guest churn|check|hold|lock|operations|fsync|parallel|streams ...");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
