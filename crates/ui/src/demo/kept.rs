//! What a demo said, within bounds. Decides, and does no I/O.
//!
//! A demo writes JSON lines: `{"demo": "cache", "kind": "point", ...}`; the kinds are `progress`, `point`,
//! `table` and `end`. Pages get the same objects without `demo`, and four kinds from the dashboard: `start`,
//! `output`, `ended`, `idle`. Lines that are none of these, or too much, are counted and dropped.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Demo;

/// Bytes in a line.
pub const LINE_MAX: usize = 64 << 10;
/// Points that are kept for pages that come later.
const POINTS_MAX: usize = 20_000;
/// Tables, and lines of charts: more than a demo has, and few enough for a page.
const TABLES_MAX: usize = 32;
const LINES_MAX: usize = 64;
/// Letters of a name in a chart.
const NAME_MAX: usize = 120;

/// A line of a demo.
#[derive(Deserialize)]
struct Said {
    demo: Demo,
    #[serde(flatten)]
    event: Event,
}

#[derive(Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Event {
    Progress {
        done: f64,
        #[serde(default)]
        step: String,
    },
    Point {
        chart: String,
        series: String,
        x: f64,
        y: f64,
        #[serde(default)]
        unit: String,
    },
    Table {
        #[serde(default)]
        title: String,
        head: Vec<String>,
        rows: Vec<Vec<Value>>,
    },
    End {
        ok: bool,
        #[serde(default)]
        message: String,
    },
}

/// A message for pages: JSON.
pub type Message = Arc<str>;

/// What one run of a demo said so far.
pub struct Kept {
    demo: Demo,
    small: bool,
    results: Vec<Message>,
    points: usize,
    tables: usize,
    lines: BTreeSet<(String, String)>,
    progress: Option<Message>,
    output: Option<Message>,
    ended: Option<Message>,
    /// Whether the last `end` was a good one. `None`: there was none.
    end: Option<bool>,
    ignored: u64,
}

impl Kept {
    /// Of a demo that begins.
    pub fn new(demo: Demo, small: bool) -> Kept {
        Kept {
            demo,
            small,
            results: Vec::new(),
            points: 0,
            tables: 0,
            lines: BTreeSet::new(),
            progress: None,
            output: None,
            ended: None,
            end: None,
            ignored: 0,
        }
    }

    /// The demo.
    pub fn demo(&self) -> Demo {
        self.demo
    }

    /// Whether it is the short form.
    pub fn small(&self) -> bool {
        self.small
    }

    /// Whether the last `end` was a good one. `None`: there was none.
    pub fn end(&self) -> Option<bool> {
        self.end
    }

    /// Takes a line. Returns what pages get, or `None` if the line is ignored.
    pub fn take(&mut self, line: &[u8]) -> Option<Message> {
        let message = self.judge(line);
        self.ignored += u64::from(message.is_none());
        message
    }

    /// Counts a line that was too long to read.
    pub fn ignore(&mut self) {
        self.ignored += 1;
    }

    fn judge(&mut self, line: &[u8]) -> Option<Message> {
        let said: Said = serde_json::from_slice(line).ok()?;
        if line.len() > LINE_MAX || said.demo != self.demo {
            return None;
        }
        let event = bounded(said.event)?;
        let message: Message = serde_json::to_string(&event).ok()?.into();
        match event {
            Event::Progress { .. } => self.progress = Some(message.clone()),
            Event::Point { chart, series, .. } => {
                let line = (chart, series);
                let is_new = !self.lines.contains(&line);
                if self.points == POINTS_MAX || (is_new && self.lines.len() == LINES_MAX) {
                    return None;
                }
                self.points += 1;
                self.lines.insert(line);
                self.results.push(message.clone());
            }
            Event::Table { .. } if self.tables == TABLES_MAX => return None,
            Event::Table { .. } => {
                self.tables += 1;
                self.results.push(message.clone());
            }
            Event::End { ok, .. } => {
                self.end = Some(ok && self.end != Some(false));
                self.results.push(message.clone());
                self.tables += 1;
            }
        }
        Some(message)
    }

    /// Takes the latest line of the demo's output.
    pub fn output(&mut self, line: &str) -> Message {
        let message: Message = json!({ "kind": "output", "line": line }).to_string().into();
        self.output = Some(message.clone());
        message
    }

    /// The demo's processes have ended: how, and the last lines of the output.
    pub fn ended(&mut self, how: &str, stopped: bool, good: bool, lines: &[String]) -> Message {
        let ok = good && !stopped && self.end == Some(true);
        let said_end = self.end.is_some();
        let ended = json!({ "kind": "ended", "ok": ok, "stopped": stopped, "said_end": said_end, "how": how,
            "output": lines, "ignored": self.ignored });
        let message: Message = ended.to_string().into();
        self.ended = Some(message.clone());
        message
    }

    /// Everything for a page that comes now, the oldest first.
    pub fn messages(&self) -> Vec<Message> {
        let start = json!({ "kind": "start", "demo": self.demo, "small": self.small });
        let mut all = vec![start.to_string().into()];
        all.extend(self.results.iter().cloned());
        all.extend([&self.progress, &self.output, &self.ended].into_iter().flatten().cloned());
        all
    }
}

/// The event if its values are ones that a page can show.
fn bounded(event: Event) -> Option<Event> {
    let short = |text: &String| text.chars().count() <= NAME_MAX;
    match event {
        Event::Progress { done, step } if done.is_finite() => {
            Some(Event::Progress { done: done.clamp(0.0, 1.0), step: step.chars().take(NAME_MAX).collect() })
        }
        Event::Point { ref chart, ref series, ref unit, .. } => {
            let is_short = short(chart) && short(series) && short(unit);
            is_short.then_some(event)
        }
        Event::Table { title, head, rows } => {
            let cells = |row: Vec<Value>| row.into_iter().map(cell).collect();
            Some(Event::Table { title, head, rows: rows.into_iter().map(cells).collect() })
        }
        other => Some(other),
    }
}

/// A cell as text.
fn cell(value: Value) -> Value {
    match value {
        Value::String(_) => value,
        Value::Null => Value::String(String::new()),
        other => Value::String(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(chart: &str, x: u32) -> Vec<u8> {
        format!(
            r#"{{"demo":"cache","kind":"point","chart":"{chart}","series":"s","x":{x},"y":0.5,"unit":"ms"}}"#
        )
        .into_bytes()
    }

    #[test]
    fn lines_that_are_not_understood_are_counted() {
        let mut kept = Kept::new(Demo::Cache, false);
        let long =
            format!(r#"{{"demo":"cache","kind":"table","head":["{}"],"rows":[]}}"#, "x".repeat(LINE_MAX));
        let name = "n".repeat(NAME_MAX + 1);
        for line in [
            &b"junk"[..],
            b"",
            b"{\"demo\":\"cache\"}",
            b"{\"demo\":\"sort\",\"kind\":\"end\",\"ok\":true}",
            b"{\"demo\":\"cache\",\"kind\":\"point\",\"chart\":\"a\",\"series\":\"b\",\"x\":1,\"y\":NaN}",
            b"{\"demo\":\"cache\",\"kind\":\"start\"}",
            &[0xff, 0xfe],
            long.as_bytes(),
            &point(&name, 1),
        ] {
            assert!(kept.take(line).is_none(), "{}", String::from_utf8_lossy(line));
        }
        let ended: Value = serde_json::from_str(&kept.ended("exit status 2", false, false, &[])).unwrap();
        assert_eq!((&ended["ignored"], &ended["said_end"]), (&9.into(), &false.into()));
    }

    #[test]
    fn points_tables_and_lines_of_charts_have_bounds() {
        let mut kept = Kept::new(Demo::Cache, true);
        let taken = (0..POINTS_MAX as u32 + 5).filter(|x| kept.take(&point("a", *x)).is_some()).count();
        assert_eq!(taken, POINTS_MAX);
        let mut kept = Kept::new(Demo::Cache, true);
        let taken = (0..200).filter(|n| kept.take(&point(&n.to_string(), 1)).is_some()).count();
        assert_eq!(taken, LINES_MAX);
        let table = br#"{"demo":"cache","kind":"table","head":["a"],"rows":[["1 ms",2,null,true]]}"#;
        assert!(kept.take(table).unwrap().contains(r#"["1 ms","2","","true"]"#));
        assert_eq!((0..200).filter(|_| kept.take(table).is_some()).count(), TABLES_MAX - 1);
        for done in 0..9 {
            let line = format!(r#"{{"demo":"cache","kind":"progress","done":{done},"step":"s"}}"#);
            assert!(kept.take(line.as_bytes()).is_some());
        }
        let last = kept.messages().pop().unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&last).unwrap()["done"],
            1.0,
            "only the last progress is kept"
        );
        assert_eq!(kept.messages().len(), 1 + LINES_MAX + TABLES_MAX + 1);
    }
}
