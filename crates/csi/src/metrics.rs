//! Figures for Prometheus: the calls, how they ended and how long they took, and what is mounted.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::Code;

use crate::Driver;
use crate::records::{Made, Staged};

/// Upper ends of the buckets of durations, in seconds.
const BUCKETS: [f64; 8] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0];

#[derive(Clone, Debug, Default)]
struct Calls {
    by_code: BTreeMap<i32, u64>,
    in_bucket: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
}

/// The calls so far.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<BTreeMap<&'static str, Calls>>);

impl Metrics {
    /// Counts a call.
    pub fn count(&self, call: &'static str, code: Code, took: Duration) {
        let mut all = self.0.lock();
        let calls = all.entry(call).or_default();
        *calls.by_code.entry(code as i32).or_default() += 1;
        calls.count += 1;
        calls.seconds += took.as_secs_f64();
        for (end, count) in BUCKETS.iter().zip(&mut calls.in_bucket) {
            *count += u64::from(took.as_secs_f64() <= *end);
        }
    }
}

impl Driver {
    /// The page at this moment.
    pub fn page(&self) -> String {
        let mut page = String::new();
        let calls = self.metrics.0.lock().clone();
        head(&mut page, "covey_csi_calls_total", "counter", "Calls, by method and by code of gRPC.");
        for (method, calls) in &calls {
            for (code, count) in &calls.by_code {
                let code = format!("{:?}", Code::from_i32(*code));
                let _ =
                    writeln!(page, "covey_csi_calls_total{{method=\"{method}\",code=\"{code}\"}} {count}");
            }
        }
        const NAME: &str = "covey_csi_call_duration_seconds";
        head(&mut page, NAME, "histogram", "Time from a call to its answer.");
        for (method, calls) in &calls {
            for (end, count) in BUCKETS.iter().zip(calls.in_bucket) {
                let _ = writeln!(page, "{NAME}_bucket{{method=\"{method}\",le=\"{end}\"}} {count}");
            }
            let Calls { count, seconds, .. } = calls;
            let _ = writeln!(page, "{NAME}_bucket{{method=\"{method}\",le=\"+Inf\"}} {count}");
            let _ = writeln!(page, "{NAME}_sum{{method=\"{method}\"}} {seconds}");
            let _ = writeln!(page, "{NAME}_count{{method=\"{method}\"}} {count}");
        }
        let staged = self.staged.all::<Staged>().unwrap_or_default();
        let published: usize = staged.iter().map(|(_, staged)| staged.targets.len()).sum();
        let made = self.made.all::<Made>().unwrap_or_default().len();
        for (name, help, value) in [
            ("covey_csi_mounts", "Sources that are mounted on this node.", self.mounts.count()),
            ("covey_csi_staged_volumes", "Volumes that are staged on this node.", staged.len()),
            ("covey_csi_published_volumes", "Places where volumes are published on this node.", published),
            ("covey_csi_made_volumes", "Volumes that this controller made, and did not delete.", made),
        ] {
            head(&mut page, name, "gauge", help);
            let _ = writeln!(page, "{name} {value}");
        }
        page
    }
}

fn head(page: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
