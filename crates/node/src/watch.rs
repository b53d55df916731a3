//! Watching a mount: what `trace`, `stats` and `top` ask of the daemon, and what it answers.
//!
//! ```text
//!   command ──"{"op":"watch",...}\n"──► daemon: holds fuse::watch for it, reads the rings every 20 ms
//!           ◄── notes: requests, figures, tables ──┤    (kernel.rs: when the kernel sent and ended requests)
//!           ── "stop\n" ──►                        │
//!           ◄── done: the summary ─────────────────┘
//! ```
//!
//! The hold ends when the command sends `stop`, when its end of the socket is closed for any reason, and when
//! the mount ends. The memory that watching one mount needs is bounded.

mod kernel;
mod pages;
mod record;
mod stats;
mod top;
mod trace;

use std::collections::HashMap;
use std::time::Duration;

use api::control::Wire;
use api::error::{Failure, Result};
use api::watch::Wish;
use fuse::Session;
use fuse::abi::opcodes;
use serde_json::Value;

pub use self::trace::write_every;
use crate::heat::Counting;
use crate::mount::Mount;

/// How often the rings are read. At 100,000 requests a second a ring lasts eight times as long.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The command receives something at least this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// What a daemon publishes about itself while it serves.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The address of the figures for Prometheus, as ADDRESS:PORT. See docs/METRICS.md.
    pub metrics: Option<String>,
    /// Whether other machines may read them.
    pub metrics_public: bool,
    /// Every n-th request is written to the log. 0 for none.
    pub trace_rate: u32,
    /// Whether accesses are counted, and by what.
    pub heat: Option<Counting>,
}

/// Serves a wish until the command stops it. The result is the summary.
pub fn serve(node: &Mount, session: &Session, wish: &Wish, wire: &Wire<'_>) -> Result<Value> {
    match wish {
        Wish::Trace { every, op, slow_ns } => {
            let only = op.as_deref().map(opcode_of).transpose()?;
            trace::serve(session, *every, only, *slow_ns, wire)
        }
        Wish::Record => record::serve(node, session, wire),
        Wish::Stats { interval_ms } => stats::serve(node, session, interval(*interval_ms), wire),
        Wish::Top { interval_ms } => top::serve(node, session, interval(*interval_ms), wire),
    }
}

fn interval(ms: u64) -> Duration {
    Duration::from_millis(ms.clamp(100, 3_600_000))
}

/// The opcode of an operation, by its name in lower case.
///
/// # Errors
/// There is no operation of that name. The failure lists the names.
pub fn opcode_of(name: &str) -> Result<u32> {
    let known = || opcodes::OPCODES.iter().filter(|line| line.policy == opcodes::Policy::Served);
    let found = known().find(|line| line.name.eq_ignore_ascii_case(name));
    found.map(|line| line.number).ok_or_else(|| {
        let names: Vec<_> = known().map(|line| line.name.to_lowercase()).collect();
        Failure::usage(format!("there is no operation {name}"))
            .next(format!("choose one of: {}", names.join(", ")))
    })
}

/// An operation's name in lower case.
fn op_name(opcode: u32) -> String {
    opcodes::find(opcode).map_or_else(|| format!("opcode-{opcode}"), |line| line.name.to_lowercase())
}

/// Whether the mount has ended.
fn has_ended(session: &Session) -> bool {
    session.wait_for(Duration::ZERO).is_some()
}

/// Names of the threads that send requests, as far as they can be read. The number of remembered names is
/// bounded.
#[derive(Default)]
struct Callers(HashMap<u32, String>);

impl Callers {
    const MOST: usize = 4096;

    fn name(&mut self, pid: u32) -> String {
        if pid == 0 {
            return "kernel".to_owned();
        }
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        let read = || {
            let text = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if text.is_empty() { "?".to_owned() } else { text.trim_end().to_owned() }
        };
        self.0.entry(pid).or_insert_with(read).clone()
    }
}
