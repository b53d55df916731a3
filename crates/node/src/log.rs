//! Log lines for the operator of the node: on the terminal in the foreground, in `VOLUME/covey.log` in the
//! background.
//!
//! Both are standard error. In the background that is the file, and lines carry the time and their level.
//! With `--log-format json` each line is one object: `time`, `level`, `message`, and `volume` once that is
//! open. If standard error is the journal of a service manager, lines begin with a priority in angle
//! brackets, which the journal understands. A panic becomes one line of level `error`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use api::own;
use api::text::{Lines, shown, utc};
use base::Timestamp;
use serde_json::json;

/// A log longer than this, 4 MiB, is set aside when a daemon starts.
const KEEP: u64 = 4 << 20;

/// The importance of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something does not work.
    Error,
    /// Something could go wrong, or went wrong and was handled.
    Warn,
    /// An event.
    Info,
    /// Internal details, for debugging.
    Debug,
}

impl Level {
    /// The name of the level.
    pub fn word(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    /// The corresponding priority of syslog(3).
    fn priority(self) -> u8 {
        match self {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug => 7,
        }
    }
}

/// The format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Format {
    /// The name of the format.
    pub fn word(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Json => "json",
        }
    }
}

static TIMED: AtomicBool = AtomicBool::new(false);
static JSON: AtomicBool = AtomicBool::new(false);
static JOURNAL: AtomicBool = AtomicBool::new(false);
static MOST: AtomicU8 = AtomicU8::new(Level::Info as u8);
static VOLUME: OnceLock<String> = OnceLock::new();
static CLEAR: OnceLock<fn()> = OnceLock::new();

/// Sets the level and the format of all further lines.
pub fn configure(level: Level, format: Format) {
    MOST.store(level as u8, Ordering::Relaxed);
    JSON.store(format == Format::Json, Ordering::Relaxed);
    JOURNAL.store(is_journal(), Ordering::Relaxed);
}

/// The level and the format in force. Passed on to a program that is started to do the work.
pub fn configured() -> (Level, Format) {
    let most = MOST.load(Ordering::Relaxed);
    let level = [Level::Error, Level::Warn, Level::Debug].into_iter().find(|level| *level as u8 == most);
    (level.unwrap_or(Level::Info), if JSON.load(Ordering::Relaxed) { Format::Json } else { Format::Text })
}

/// Whether a program reads the lines. A message for a person at a terminal would then be in the way.
pub fn is_for_programs() -> bool {
    JSON.load(Ordering::Relaxed) || JOURNAL.load(Ordering::Relaxed)
}

/// Sets a function to call before a plain line, for a program that shows something on the same terminal. Only
/// the first call has an effect.
pub fn clear_with(clear: fn()) {
    let _ = CLEAR.set(clear);
}

/// Adds the time to all further lines.
pub fn with_time() {
    TIMED.store(true, Ordering::Relaxed);
}

/// Adds the name of the volume to all further JSON lines. Only the first call has an effect.
pub fn of_volume(name: &str) {
    let _ = VOLUME.set(name.to_owned());
}

/// Writes a line of level info.
pub fn line(text: &str) {
    write(Level::Info, text);
}

/// Writes a line of level warn.
pub fn warn(text: &str) {
    write(Level::Warn, text);
}

/// Writes a line of level error.
pub fn error(text: &str) {
    write(Level::Error, text);
}

/// Writes a line of level debug.
pub fn debug(text: impl FnOnce() -> String) {
    if Level::Debug as u8 <= MOST.load(Ordering::Relaxed) {
        write(Level::Debug, &text());
    }
}

fn write(level: Level, text: &str) {
    if level as u8 > MOST.load(Ordering::Relaxed) {
        return;
    }
    let timed = TIMED.load(Ordering::Relaxed);
    let exact = text;
    // A failure has several lines. Its names are already escaped.
    let text = &*shown(text, Lines::Many);
    // Further lines are indented. So a name with a line end in it cannot imitate a line of the log.
    let text = &text.replace('\n', "\n  ").replace("\n    ", "\n  ");
    let line = match JSON.load(Ordering::Relaxed) {
        true => as_json(level, exact, base::time::now(), VOLUME.get().map(String::as_str)),
        false if JOURNAL.load(Ordering::Relaxed) => on_each_line(&format!("<{}>", level.priority()), text),
        false if timed => {
            let now = utc(base::time::now().seconds());
            on_each_line(&format!("{now} {:5} ", level.word()), text)
        }
        false => {
            if let Some(clear) = CLEAR.get() {
                clear();
            }
            format!("covey: {text}")
        }
    };
    // Daemon and log outlive the terminal, so an error while writing to it is ignored. One write keeps lines
    // of several threads whole.
    let _ = io::stderr().lock().write_all((line + "\n").as_bytes());
}

/// Adds the time and the level to every line of a failure, so that every line of a log can be read by itself.
fn on_each_line(before: &str, text: &str) -> String {
    text.lines().map(|line| format!("{before}{line}")).collect::<Vec<_>>().join("\n")
}

fn as_json(level: Level, text: &str, now: Timestamp, volume: Option<&str>) -> String {
    let seconds = utc(now.seconds());
    let time = format!("{}.{:03}Z", seconds.trim_end_matches('Z'), now.nanos() / 1_000_000);
    let mut line = json!({ "time": time, "level": level.word(), "message": text });
    if let Some(volume) = volume {
        line["volume"] = volume.into();
    }
    line.to_string()
}

/// Whether standard error is the journal of a service manager. `JOURNAL_STREAM` names it by device and inode.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
    let there = fs::metadata("/proc/self/fd/2");
    there.is_ok_and(|there| named == format!("{}:{}", there.dev(), there.ino()))
}

/// [`warn`] as a function for the lower crates. They log only problems.
pub fn sink() -> Arc<dyn Fn(&str) + Send + Sync> {
    Arc::new(warn)
}

/// Makes a panic one clear line with its place and where to report it.
pub fn install_panic_hook() {
    panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let payload = info.payload();
        let said = payload.downcast_ref::<&str>().copied().map(str::to_owned);
        let said = said.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let name = thread.name().unwrap_or("unnamed");
        error(&format!("BUG in thread {name} at {place}: {said} (covey {})", env!("CARGO_PKG_VERSION")));
    }));
}

/// Opens the log of a daemon in the background, readable only by its owner.
pub fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|meta| meta.len() > KEEP) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    own::open(path, OpenOptions::new().create(true).append(true))
}

/// The last lines of a log, for a message.
pub fn tail(path: &Path, lines: usize) -> Vec<String> {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut last: Vec<String> = text.lines().rev().take(lines).map(str::to_owned).collect();
    last.reverse();
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_put_aside() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("covey.log");
        writeln!(open(&path).unwrap(), "one").unwrap();
        writeln!(open(&path).unwrap(), "two").unwrap();
        assert_eq!(tail(&path, 5), ["one", "two"]);
        assert_eq!(tail(&path, 1), ["two"]);
        File::create(&path).unwrap().set_len(KEEP + 1).unwrap();
        open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_line_of_json_is_one_object_whatever_is_said() {
        let now = Timestamp::from_parts(1_767_225_599, 42_999_999);
        let line = as_json(Level::Warn, "a \"b\"\nc", now, Some("/srv/v"));
        assert!(!line.contains('\n'), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let wanted = json!({ "time": "2025-12-31T23:59:59.042Z", "level": "warn", "message": "a \"b\"\nc", "volume": "/srv/v" });
        assert_eq!(value, wanted);
        assert!(!as_json(Level::Info, "x", now, None).contains("volume"));
    }

    #[test]
    fn regression_every_line_of_a_failure_has_time_and_level() {
        let failure = api::error::Failure::new("io", "cannot read x").why("no such file").next("check it");
        let text = on_each_line("2026-11-25T10:00:00Z error ", &failure.to_string());
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().all(|line| line.starts_with("2026-11-25T10:00:00Z error ")), "{text}");
    }

    #[test]
    fn levels_are_in_order() {
        assert!(Level::Error < Level::Warn && Level::Warn < Level::Info && Level::Info < Level::Debug);
    }
}
