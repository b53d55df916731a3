//! `covey status` and `covey stats` of a mount that `covey attach` has made, in the guest: the program that
//! attached says what it knows. Everything else about the mount is known where `covey serve` runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use api::error::{Failure, Result};
use api::text::{bytes, count, span};
use fuse::mount::Mounted;
use node::signals;
use serde::Serialize;
use stream::address::Address;
use stream::attach::ear;
use stream::attach::status::{KINDS, Status};

use crate::table::Pairs;
use crate::term::Term;

/// The head is repeated after so many lines.
const HEAD_EVERY: u64 = 20;

/// What is shown of a guest's mount.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// Tells it from the status of other mounts.
    guest: bool,
    address: String,
    source: String,
    connected: bool,
    /// Since when it is connected, or not.
    since_seconds: f64,
    /// Requests fail with EIO.
    failing: bool,
    connections: u64,
    connections_wanted: u64,
    reconnects: u64,
    requests: u64,
    requests_by_kind: BTreeMap<String, u64>,
    in_flight: u64,
    lock_waits: u64,
    waiting: u64,
    slots: u64,
    read_bytes: u64,
    written_bytes: u64,
    sent_bytes: u64,
    received_bytes: u64,
    server: Option<String>,
    protocol: u64,
    features: Vec<String>,
    sharing: String,
    read_only: bool,
    locks: String,
    locks_held: u64,
    locks_lost: u64,
}

impl From<Status> for Shown {
    fn from(of: Status) -> Shown {
        Shown {
            guest: true,
            requests: of.requests(),
            address: of.address,
            source: of.source,
            connected: of.connected,
            since_seconds: of.since_ms as f64 / 1e3,
            failing: of.failing,
            connections: of.connections,
            connections_wanted: of.connections_wanted,
            reconnects: of.reconnects,
            requests_by_kind: of.kinds,
            in_flight: of.in_flight,
            lock_waits: of.lock_waits,
            waiting: of.waiting,
            slots: of.slots,
            read_bytes: of.read_bytes,
            written_bytes: of.written_bytes,
            sent_bytes: of.sent_bytes,
            received_bytes: of.received_bytes,
            server: Some(of.server).filter(|server| !server.is_empty()),
            protocol: of.protocol,
            features: of.features.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            sharing: of.sharing,
            read_only: of.read_only,
            locks: of.locks,
            locks_held: of.locks_held,
            locks_lost: of.locks_lost,
        }
    }
}

/// The figures of the mount that a path is on, if a program on this machine has attached it.
pub fn of(path: &Path) -> Option<Shown> {
    ear::status(path).ok().map(Shown::from)
}

/// Fails for a guest's mount: what a command wants to know of it is known elsewhere.
pub fn no_guests_mount(mount: &Mounted) -> Result<()> {
    let Ok(address) = mount.source.parse::<Address>() else { return Ok(()) };
    let path = mount.path.display();
    Err(Failure::new("guest-mount", format!("{path} is a guest's mount, which {address} serves"))
        .why("only the machine that serves it has what this command asks for")
        .next("run it where covey serve runs, with the source that is served")
        .next(format!("here, as the user that attached it: covey status, covey stats or covey trace {path}")))
}

/// The figures as text.
pub fn text(shown: &Shown) -> String {
    let since = span(shown.since_seconds);
    let connected = match (shown.connected, shown.failing) {
        (true, _) => format!("yes, for {since}"),
        (false, false) => format!("no, for {since}: requests wait"),
        (false, true) => format!("no, for {since}: requests fail with EIO until a server answers"),
    };
    let sharing = match shown.sharing.as_str() {
        "frozen" => "any number, and nothing changes",
        "one" => "one at a time",
        "many" => "any number",
        other => other,
    };
    let waits = format!("{} in flight of {}", shown.in_flight, shown.slots);
    let mut pairs = Pairs::new();
    pairs
        .row("source", shown.source.clone() + if shown.read_only { " (read-only)" } else { "" })
        .row("server", &shown.address)
        .row("runs", shown.server.as_deref().unwrap_or("it does not say what"))
        .row("protocol", format!("{} ({})", shown.protocol, shown.features.join(", ")))
        .row("connected", connected)
        .row(
            "connections",
            format!(
                "{} of {}; connected again {} times",
                shown.connections,
                shown.connections_wanted,
                count(shown.reconnects)
            ),
        )
        .row("guests", sharing)
        .row("requests", format!("{}; {waits}, {} waiting", count(shown.requests), shown.waiting))
        .row("read", bytes(shown.read_bytes))
        .row("written", bytes(shown.written_bytes))
        .row(
            "over the wire",
            format!("{} sent, {} received", bytes(shown.sent_bytes), bytes(shown.received_bytes)),
        );
    let locks = match shown.locks.as_str() {
        "server" => format!(
            "of the server: {} hold some, {} requests wait",
            count(shown.locks_held),
            count(shown.lock_waits)
        ),
        _ => "local: they exclude the programs of this guest".to_owned(),
    };
    pairs.row("locks", locks);
    if shown.locks_lost > 0 {
        pairs.row("locks lost", format!("{}, with an earlier run of the server", count(shown.locks_lost)));
    }
    pairs.text()
}

/// What happened between two looks.
#[derive(Debug, Serialize)]
struct Line {
    seconds: f64,
    requests: BTreeMap<String, u64>,
    read_bytes: u64,
    written_bytes: u64,
    sent_bytes: u64,
    received_bytes: u64,
    reconnects: u64,
    connected: bool,
    in_flight: u64,
    waiting: u64,
}

impl Line {
    fn between(before: &Shown, now: &Shown, seconds: f64) -> Line {
        let had = |kind: &str| before.requests_by_kind.get(kind).copied().unwrap_or(0);
        let more = |pick: fn(&Shown) -> u64| pick(now).saturating_sub(pick(before));
        let kinds = now.requests_by_kind.iter();
        Line {
            seconds,
            requests: kinds.map(|(kind, count)| (kind.clone(), count.saturating_sub(had(kind)))).collect(),
            read_bytes: more(|shown| shown.read_bytes),
            written_bytes: more(|shown| shown.written_bytes),
            sent_bytes: more(|shown| shown.sent_bytes),
            received_bytes: more(|shown| shown.received_bytes),
            reconnects: more(|shown| shown.reconnects),
            connected: now.connected,
            in_flight: now.in_flight,
            waiting: now.waiting,
        }
    }

    fn text(&self) -> String {
        let rate = |number: u64| (number as f64 / self.seconds.max(0.001)).round() as u64;
        let kind =
            |kind: &&str| format!("{:>8}", count(rate(self.requests.get(*kind).copied().unwrap_or(0))));
        let kinds: String = KINDS.iter().map(kind).collect();
        format!(
            "{kinds} |{:>11}{:>11} |{:>11}{:>11} |{:>7}{:>6}{:>6}",
            bytes(rate(self.read_bytes)),
            bytes(rate(self.written_bytes)),
            bytes(rate(self.sent_bytes)),
            bytes(rate(self.received_bytes)),
            self.in_flight,
            self.waiting,
            if self.connected { "up" } else { "down" }
        )
    }
}

fn head() -> String {
    let kinds: String = KINDS.iter().map(|kind| format!("{kind:>8}")).collect();
    format!(
        "{kinds} |{:>11}{:>11} |{:>11}{:>11} |{:>7}{:>6}{:>6}",
        "read/s", "written/s", "sent/s", "received/s", "flight", "wait", "link"
    )
}

/// Shows a line for each interval, until Ctrl-C, until there have been so many, or until the mount is gone.
pub fn stats(path: &Path, interval: Duration, most: Option<u64>, term: Term) -> Result<u8> {
    let gone = |error| Failure::io("the program that has attached the mount does not answer", &error);
    signals::block();
    let look = || ear::status(path).map(Shown::from).map_err(gone);
    let (mut before, mut at) = (look()?, base::time::monotonic());
    let mut shown = 0;
    while most.is_none_or(|most| shown < most) {
        if signals::next_within(Some(interval)) {
            break;
        }
        let (now, then) = (look()?, base::time::monotonic());
        if shown % HEAD_EVERY == 0 {
            term.line(None::<&()>, head);
        }
        let line = Line::between(&before, &now, then.duration_since(at).as_secs_f64());
        term.line(Some(&line), || line.text());
        (before, at) = (now, then);
        shown += 1;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown() -> Shown {
        let mut kinds = BTreeMap::new();
        kinds.insert("read".to_owned(), 1_000);
        Shown::from(Status { address: "vsock:5001".to_owned(), kinds, connected: true, ..Status::default() })
    }

    #[test]
    fn figures_stand_under_their_heads() {
        let before = shown();
        let mut now = before.clone();
        now.requests_by_kind.insert("read".to_owned(), 5_000);
        now.read_bytes = 8 << 20;
        let line = Line::between(&before, &now, 2.0);
        let text = line.text();
        assert_eq!(text.len(), head().len());
        assert!(text.contains("2,000") && text.contains("4.0 MiB") && text.ends_with("up"), "{text}");
    }

    #[test]
    fn a_mount_says_whether_there_is_a_server() {
        let mut guest = shown();
        assert!(text(&guest).contains("yes, for"), "{}", text(&guest));
        (guest.connected, guest.failing) = (false, true);
        assert!(text(&guest).contains("fail with EIO"), "{}", text(&guest));
        (guest.locks, guest.locks_lost) = ("server".to_owned(), 2);
        assert!(text(&guest).contains("of the server") && text(&guest).contains("earlier run"));
    }
}
