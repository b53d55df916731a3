//! Progress display and result output.
//!
//! Results go to standard output, as text or, with `--json`, as one JSON value. Progress and messages go to
//! standard error. On a terminal, progress is a bar. Elsewhere it is an occasional plain line. With `--json`
//! it is not shown.
//!
//! Names can hold any bytes, and a message can come from another user's daemon or from a store. So text for
//! people has control characters escaped, because they could move the cursor or change colours or the title
//! ([`shown`]). JSON stays exact.
//!
//! If the reader closes its end (`covey df | head -1`), the command ends quietly.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use api::text::{Lines, bytes, count, shown};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// How a command prints.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    json: bool,
    quiet: bool,
}

impl Term {
    /// `json`: machine-readable output. `quiet`: neither results nor messages.
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

    /// Prints the result: `value` as JSON, or the text, whose control characters are intended.
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
            // The reader has closed its end. The command's work is done all the same.
            std::process::exit(0);
        }
    }

    /// Prints one of many results as it arrives: `value` as a line of JSON, or the text. Without a value, the
    /// line is for people only.
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

    /// Prints a part of a long text result.
    pub fn part(self, text: &str) {
        self.part_as_is(&shown(text, Lines::Many));
    }

    /// Prints a part of a long result: of a text whose control characters are intended, or of JSON.
    pub fn part_as_is(self, text: &str) {
        if self.quiet {
            return;
        }
        let mut out = io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            std::process::exit(0);
        }
    }

    /// Prints a message to standard error. With `--json` it is not printed.
    pub fn say(self, line: impl Display) {
        if !self.json && !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{}", shown(&line.to_string(), Lines::One));
        }
    }

    /// Prints to standard error what is missing from the result. With `--json` it is printed too.
    pub fn warn(self, line: impl Display) {
        let _ = writeln!(io::stderr().lock(), "{}", one_line(line));
    }

    /// Starts showing progress.
    pub fn progress(self, label: &str) -> Progress {
        Progress::new(label, self.json || self.quiet)
    }
}

/// One line for a person, with control characters escaped: parts of it can come from another user.
fn one_line(line: impl Display) -> String {
    shown(&line.to_string(), Lines::One).into_owned()
}

/// Whether standard error is a terminal, so that a status line can be redrawn.
pub fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Replaces the last line of the terminal. A text that is too long is cut, because a line that wraps could
/// not be replaced.
pub fn status_line(line: &str) {
    let cut: String = shown(line, Lines::One).chars().take(columns().saturating_sub(1)).collect();
    let _ = write!(io::stderr().lock(), "\r\x1b[K{cut}");
}

/// The width of the terminal.
fn columns() -> usize {
    size_of_terminal(libc::STDERR_FILENO).1
}

/// Lines and columns of the terminal that results are printed on.
pub fn size() -> (usize, usize) {
    size_of_terminal(libc::STDOUT_FILENO)
}

fn size_of_terminal(fd: i32) -> (usize, usize) {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is alive during the call, and its type is the one that this request fills.
    let status = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) };
    let known = |n: u16, default: usize| if status == 0 && n > 0 { usize::from(n) } else { default };
    (known(size.ws_row, 24), known(size.ws_col, 80))
}

/// Removes the status line.
pub fn clear_status_line() {
    let _ = write!(io::stderr().lock(), "\r\x1b[K");
}

/// Removes the status line if standard error is a terminal.
pub fn clear_if_terminal() {
    if is_terminal() {
        clear_status_line();
    }
}

/// The interval of plain progress lines without a terminal.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Progress of one long piece of work: files (or other things) and bytes, with rates.
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

    /// Sets the amount of work once it is known, in the unit of `done` in [`Progress::set`].
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

    /// Sets the progress: `done` of the total, and a message.
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

    /// Sets the progress with the usual message: files, bytes, rates.
    pub fn set_files(&mut self, done: u64, files: u64, size: u64) {
        self.set(done, |elapsed| files_and_rates(files, size, elapsed));
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        base::time::monotonic() - self.started
    }

    /// Removes the bar.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_warning_is_one_line_without_control_characters() {
        assert_eq!(
            one_line("/mnt/a\n\x1b[2Jb: it does not answer"),
            "/mnt/a\\n\\x1b[2Jb: it does not answer"
        );
    }
}
