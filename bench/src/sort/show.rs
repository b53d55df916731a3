//! What the sort shows while it runs: a progress bar, and events for a program that listens.
//!
//! If `COVEY_DEMO_EVENTS` names a Unix stream socket, each event is one line of JSON on a connection to it.
//! `bench/demo_show.py` describes the events and sends those of the other demos. The end is always the last
//! event, also after a failure. The sort does not depend on the listener: a connection that fails, or that
//! takes nothing for a second, is given up.

use std::io::{IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Result;
use crate::run::progress;

/// A listener that takes nothing for so long is given up.
const PATIENCE: Duration = Duration::from_secs(1);
const DEMO: &str = "sort";

/// The progress and the events of one sort.
pub struct Show {
    listener: Option<UnixStream>,
    steps: usize,
    begun: usize,
    tenth: Option<usize>,
    ended: bool,
}

impl Show {
    /// Connects to the listener, if one is named. [`Show::step`] will be called so many times.
    pub fn new(steps: usize) -> Show {
        let path = std::env::var_os("COVEY_DEMO_EVENTS");
        Show::to(path.as_deref().map(Path::new), steps)
    }

    fn to(path: Option<&Path>, steps: usize) -> Show {
        let listener = path.and_then(|path| UnixStream::connect(path).ok());
        let listener = listener.filter(|listener| listener.set_write_timeout(Some(PATIENCE)).is_ok());
        Show { listener, steps, begun: 0, tenth: None, ended: false }
    }

    /// The next of all steps begins.
    pub fn step(&mut self, what: &str) {
        let done = (self.begun as f64 / self.steps.max(1) as f64).min(1.0);
        self.begun += 1;
        self.progress(done, what);
    }

    fn progress(&mut self, done: f64, step: &str) {
        self.send(json!({ "kind": "progress", "done": done, "step": step }));
        let (tenth, full) = ((done * 10.0) as usize, (done * 24.0) as usize);
        if std::io::stderr().is_terminal() {
            let (full, rest) = ("#".repeat(full), ".".repeat(24 - full));
            progress(&format!("{DEMO} [{full}{rest}] {:3.0} %  {step}", done * 100.0));
        } else if self.tenth.is_none_or(|shown| tenth > shown) {
            self.tenth = Some(tenth);
            eprintln!("{DEMO}: {:.0} %, {step}", done * 100.0);
        }
    }

    /// One value of a chart.
    pub fn point(&mut self, series: &str, node: usize, seconds: f64) {
        self.send(json!({
            "kind": "point", "chart": "seconds", "series": series, "x": node, "y": seconds, "unit": "s",
        }));
    }

    /// The table of the result.
    pub fn table(&mut self, head: &[String], rows: &[Vec<String>]) {
        self.send(json!({ "kind": "table", "head": head, "rows": rows }));
    }

    /// The last event, with the last line of an error.
    pub fn end(mut self, done: &Result<()>) {
        let message = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
        self.finish(message.trim().lines().last().unwrap_or_default());
    }

    fn finish(&mut self, message: &str) {
        if message.is_empty() {
            self.progress(1.0, "done");
        }
        progress("");
        self.send(json!({ "kind": "end", "ok": message.is_empty(), "message": message }));
        self.ended = true;
    }

    fn send(&mut self, mut event: Value) {
        if let Some(listener) = &mut self.listener {
            event["demo"] = DEMO.into();
            if listener.write_all(format!("{event}\n").as_bytes()).is_err() {
                self.listener = None;
            }
        }
    }
}

impl Drop for Show {
    /// Something panicked.
    fn drop(&mut self) {
        if !self.ended {
            self.finish("ended before its end");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_listener_gets_every_event_and_the_end_last() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let listener = UnixListener::bind(&path).unwrap();
        let mut show = Show::to(Some(&path), 2);
        show.step("one");
        show.point("partition", 1, 0.5);
        show.table(&["step".to_owned()], &[vec!["partition".to_owned()]]);
        show.step("two");
        show.end(&Ok(()));
        let (stream, _) = listener.accept().unwrap();
        let events: Vec<Value> = BufReader::new(stream)
            .lines()
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        let kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["progress", "point", "table", "progress", "progress", "end"]);
        let done: Vec<&Value> = events.iter().filter_map(|event| event.get("done")).collect();
        assert_eq!(done, [&json!(0.0), &json!(0.5), &json!(1.0)]);
        assert_eq!(events[5], json!({ "demo": "sort", "kind": "end", "ok": true, "message": "" }));
    }

    #[test]
    fn a_listener_that_goes_away_or_takes_nothing_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let listener = UnixListener::bind(&path).unwrap();
        let mut show = Show::to(Some(&path), 1);
        drop(listener.accept().unwrap());
        show.step("one");
        show.step("two");
        assert!(show.listener.is_none());
        let mut show = Show::to(Some(&path), 1);
        let _takes_nothing = listener.accept().unwrap();
        // More than the socket's buffer, until a write waits for too long.
        while show.listener.is_some() {
            show.table(&["x".repeat(1 << 20)], &[]);
        }
        assert!(Show::to(Some(&folder.path().join("none")), 1).listener.is_none());
    }

    #[test]
    fn a_failure_is_the_message_of_the_end() {
        let (near, far) = UnixStream::pair().unwrap();
        let show = Show { listener: Some(near), ..Show::to(None, 1) };
        show.end(&Err("covey publish: exit status: 1\nno space\n".into()));
        let line = BufReader::new(far).lines().next().unwrap().unwrap();
        let end: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&end["ok"], &end["message"]), (&json!(false), &json!("no space")));
    }
}
