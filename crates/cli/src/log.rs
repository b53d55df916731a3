//! Lines for whoever runs the node: on the terminal in the foreground, in `VOLUME/covey.log` in the background.
//!
//! Both are standard error; in the background that is the file, and lines carry the time. A panic becomes one such line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::panic;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::table::utc;
use crate::term;

/// A log longer than this is put aside when a daemon starts: 4 MiB.
const KEEP: u64 = 4 << 20;

static TIMED: AtomicBool = AtomicBool::new(false);

/// From now on lines carry the time.
pub fn with_time() {
    TIMED.store(true, Ordering::Relaxed);
}

/// Writes a line.
pub fn line(text: &str) {
    // Daemon and log outlive the terminal: that it cannot be written to any more is no reason to end.
    let mut out = io::stderr().lock();
    let _ = if TIMED.load(Ordering::Relaxed) {
        writeln!(out, "{} {text}", utc(base::time::now().seconds()))
    } else {
        drop(out);
        term::clear_if_terminal();
        out = io::stderr().lock();
        writeln!(out, "covey: {text}")
    };
}

/// The same, as what the rooms below take.
pub fn sink() -> Arc<dyn Fn(&str) + Send + Sync> {
    Arc::new(line)
}

/// A panic is one clear line with its place, and where to report it.
pub fn install_panic_hook() {
    panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let payload = info.payload();
        let said = payload.downcast_ref::<&str>().copied().map(str::to_owned);
        let said = said.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let name = thread.name().unwrap_or("unnamed");
        line(&format!("BUG in thread {name} at {place}: {said} (covey {})", env!("CARGO_PKG_VERSION")));
    }));
}

/// Opens the log for a daemon in the background.
pub fn open(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|meta| meta.len() > KEEP) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    OpenOptions::new().create(true).append(true).open(path)
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
}
