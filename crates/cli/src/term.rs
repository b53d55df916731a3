//! What is shown while something runs, and how results are printed.
//!
//! Results go to standard output: text for a person, or one JSON value with `--json`. Progress and everything said on the
//! way goes to standard error: bars on a terminal, a plain line now and then elsewhere, nothing with `--json`.
//! Names are of any bytes, and a message may come from another user's daemon or from a store: what could move a terminal's cursor, change its
//! colours or its title is written out in every text for people ([`shown`]). JSON stays exact.
//!
//! A reader that closed its end (`covey df | head -1`) ends the command quietly.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use api::text::{Lines, bytes, count, shown};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// How a command talks.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    json: bool,
    quiet: bool,
}

impl Term {
    /// `json`: machine output. `quiet`: no results, nothing on the way.
    pub fn new(json: bool, quiet: bool) -> Term {
        Term { json, quiet }
    }

    /// Whether results are JSON.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints the result: `value` as JSON, or the text.
    pub fn result(self, value: &impl Serialize, text: impl FnOnce() -> String) {
        self.result_as_is(value, || shown(&text(), Lines::Many).into_owned());
    }

    /// The same for a text whose control characters are its own.
    pub fn result_as_is(self, value: &impl Serialize, text: impl FnOnce() -> String) {
        if self.quiet {
            return;
        }
        let line = if self.json {
            serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
        } else {
            text()
        };
        let mut line = line.trim_end().to_owned();
        if !line.is_empty() {
            line.push('\n');
        }
        let mut out = io::stdout().lock();
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            // Nobody reads any more: what was asked has been done all the same.
            std::process::exit(0);
        }
    }

    /// Prints one of many results as it comes: `value` as JSON on a line of its own, or the text. Without a value, a line for people
    /// only.
    pub fn line<T: Serialize>(self, value: Option<&T>, text: impl FnOnce() -> String) {
        let mut line = match (self.json, value) {
            (true, None) => return,
            (true, Some(value)) => serde_json::to_string(value).unwrap_or_default(),
            (false, _) => shown(&text(), Lines::Many).into_owned(),
        };
        line.push('\n');
        let mut out = io::stdout().lock();
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            std::process::exit(0);
        }
    }

    /// Says something on the way. Not said with `--json`.
    pub fn say(self, line: impl Display) {
        if !self.json && !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{}", shown(&line.to_string(), Lines::One));
        }
    }

    /// Says what is missing from the result. Also said with `--json`: on standard error, beside it.
    pub fn warn(self, line: impl Display) {
        let _ = writeln!(io::stderr().lock(), "{line}");
    }

    /// Starts showing progress.
    pub fn progress(self, label: &str) -> Progress {
        Progress::new(label, self.json || self.quiet)
    }
}

/// Whether a status line can be drawn over.
pub fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Replaces the last line of the terminal. What is too long for it is cut: a line that wraps could not be replaced.
pub fn status_line(line: &str) {
    let cut: String = shown(line, Lines::One).chars().take(columns().saturating_sub(1)).collect();
    let _ = write!(io::stderr().lock(), "\r\x1b[K{cut}");
}

/// How wide the terminal is.
fn columns() -> usize {
    size_of_terminal(libc::STDERR_FILENO).1
}

/// Lines and columns of the terminal that results are printed on.
pub fn size() -> (usize, usize) {
    size_of_terminal(libc::STDOUT_FILENO)
}

fn size_of_terminal(fd: i32) -> (usize, usize) {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is a living value of the type that this request fills.
    let status = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) };
    let known = |n: u16, default: usize| if status == 0 && n > 0 { usize::from(n) } else { default };
    (known(size.ws_row, 24), known(size.ws_col, 80))
}

/// Removes the status line.
pub fn clear_status_line() {
    let _ = write!(io::stderr().lock(), "\r\x1b[K");
}

/// Removes the status line, where there may be one.
pub fn clear_if_terminal() {
    if is_terminal() {
        clear_status_line();
    }
}

/// How often a plain line is printed where there is no terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Progress of one piece of long work: files (or other things) and bytes, with rates.
pub struct Progress {
    label: String,
    bar: Option<ProgressBar>,
    silent: bool,
    started: Instant,
    last: Instant,
    total: Option<u64>,
}

impl Progress {
    fn new(label: &str, silent: bool) -> Progress {
        let label = &*shown(label, Lines::One);
        let bar = (!silent && is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
            bar.set_style(style("{spinner} {prefix} {msg}"));
            bar.set_prefix(label.to_owned());
            bar
        });
        let now = base::time::monotonic();
        Progress { label: label.to_owned(), bar, silent, started: now, last: now, total: None }
    }

    /// The amount of work, once it is known; in the unit of `done` in [`Progress::set`].
    pub fn total(&mut self, total: u64) {
        if self.total == Some(total) {
            return;
        }
        self.total = Some(total);
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_style(style("{prefix} {wide_bar} {percent:>3}% {msg}"));
        }
    }

    /// `done` of the total, and how to say it.
    pub fn set(&mut self, done: u64, message: impl FnOnce(Duration) -> String) {
        if self.silent {
            return;
        }
        let now = base::time::monotonic();
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                if now - self.last >= Duration::from_millis(100) {
                    self.last = now;
                    bar.set_message(shown(&message(now - self.started), Lines::One).into_owned());
                    bar.tick();
                }
            }
            None if now - self.last >= PLAIN_EVERY => {
                self.last = now;
                let percent = match self.total {
                    Some(total) if total > 0 => format!(" {}%", done.saturating_mul(100) / total),
                    _ => String::new(),
                };
                let message = message(now - self.started);
                let message = shown(&message, Lines::One);
                let _ = writeln!(io::stderr().lock(), "{}:{percent} {message}", self.label);
            }
            None => {}
        }
    }

    /// The usual message: files, bytes, rates.
    pub fn set_files(&mut self, done: u64, files: u64, size: u64) {
        self.set(done, |elapsed| files_and_rates(files, size, elapsed));
    }

    /// How long it has taken.
    pub fn elapsed(&self) -> Duration {
        base::time::monotonic() - self.started
    }

    /// Takes the bar away.
    pub fn done(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// "12,345 files, 1.2 GiB, 4,000 files/s, 120 MiB/s".
pub fn files_and_rates(files: u64, size: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    format!(
        "{} files, {}, {} files/s, {}/s",
        count(files),
        bytes(size),
        count((files as f64 / seconds) as u64),
        bytes((size as f64 / seconds) as u64)
    )
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
        .progress_chars("=> ")
}
