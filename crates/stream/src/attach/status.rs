//! The figures of a guest's mount, for `covey status` and `covey stats` in the guest.
//!
//! They are sent as lines of a name and a value. A line whose name is not known is passed over, so programs
//! of two releases understand what both know.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Shared;
use super::link::Link;
use crate::hello::{Sharing, VERSION};
use crate::request::{Asked, IN_HEADER, OUT_HEADER, op};

/// The kinds of requests that are counted, in the order of their places.
pub const KINDS: [&str; 10] =
    ["read", "write", "lookup", "attr", "list", "make", "remove", "sync", "lock", "other"];

fn kind_of(opcode: u32) -> usize {
    let name = match opcode {
        op::READ => "read",
        16 => "write",
        op::LOOKUP => "lookup",
        op::GETATTR | 4 | 21 | op::GETXATTR | op::LISTXATTR | 24 | op::STATX => "attr",
        op::READDIR | op::READDIRPLUS => "list",
        op::SYMLINK | op::MKNOD | op::MKDIR | op::LINK | op::CREATE | op::TMPFILE => "make",
        op::UNLINK | op::RMDIR | op::RENAME | op::RENAME2 => "remove",
        20 | 30 | 50 => "sync",
        op::GETLK | op::SETLK | op::SETLKW => "lock",
        _ => "other",
    };
    KINDS.iter().position(|kind| *kind == name).unwrap_or(KINDS.len() - 1)
}

/// What is counted as it happens.
#[derive(Debug, Default)]
pub struct Figures {
    kinds: [AtomicU64; KINDS.len()],
    read: AtomicU64,
    written: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    reconnects: AtomicU64,
}

fn add(to: &AtomicU64, bytes: usize) {
    to.fetch_add(bytes as u64, Ordering::Relaxed);
}

impl Figures {
    /// The kernel sent a request of so many bytes.
    pub fn asked(&self, asked: &Asked, len: usize) {
        const WRITE_ARGUMENTS: usize = 40;
        add(&self.kinds[kind_of(asked.opcode)], 1);
        if asked.opcode == 16 {
            add(&self.written, len.saturating_sub(IN_HEADER + WRITE_ARGUMENTS));
        }
    }

    /// The server answered it with so many bytes.
    pub fn answered(&self, asked: &Asked, len: usize) {
        if asked.opcode == op::READ {
            add(&self.read, len.saturating_sub(OUT_HEADER));
        }
    }

    /// A frame of so many bytes was sent.
    pub fn sent(&self, bytes: usize) {
        add(&self.sent, bytes);
    }

    /// A frame of so many bytes was received.
    pub fn received(&self, bytes: usize) {
        add(&self.received, bytes);
    }

    /// The server answers again.
    pub fn reconnected(&self) {
        add(&self.reconnects, 1);
    }
}

/// What is known of a guest's mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The address of the server.
    pub address: String,
    /// What the server calls what it serves.
    pub source: String,
    /// Whether there is a connection.
    pub connected: bool,
    /// Since when, in milliseconds.
    pub since_ms: u64,
    /// Requests fail, because there has been no connection for too long.
    pub failing: bool,
    /// Connections that are up.
    pub connections: u64,
    /// How many there should be.
    pub connections_wanted: u64,
    /// How often the server answered again after all connections were lost.
    pub reconnects: u64,
    /// Requests so far, by kind ([`KINDS`]).
    pub kinds: BTreeMap<String, u64>,
    /// Requests that have no reply yet.
    pub in_flight: u64,
    /// How many of these wait for a lock.
    pub lock_waits: u64,
    /// Requests that wait because the server grants no more at a time.
    pub waiting: u64,
    /// How many the server grants.
    pub slots: u64,
    /// Bytes that programs read from the server.
    pub read_bytes: u64,
    /// Bytes that programs wrote.
    pub written_bytes: u64,
    /// Bytes of all frames sent.
    pub sent_bytes: u64,
    /// Bytes of all frames received.
    pub received_bytes: u64,
    /// The server's name and version, if it says them.
    pub server: String,
    /// The version of the protocol.
    pub protocol: u64,
    /// What both ends can do beyond it.
    pub features: String,
    /// What the kernel may keep: `frozen`, `one` or `many`.
    pub sharing: String,
    /// Changes are refused.
    pub read_only: bool,
    /// Where locks are decided: `server` or `local`.
    pub locks: String,
    /// Processes and open files that hold locks at the server.
    pub locks_held: u64,
    /// Processes and open files whose locks ended with an earlier run of the server.
    pub locks_lost: u64,
}

impl Status {
    /// The requests of all kinds.
    pub fn requests(&self) -> u64 {
        self.kinds.values().sum()
    }

    fn texts(&mut self) -> [(&'static str, &mut String); 6] {
        [
            ("address", &mut self.address),
            ("source", &mut self.source),
            ("server", &mut self.server),
            ("features", &mut self.features),
            ("sharing", &mut self.sharing),
            ("locks", &mut self.locks),
        ]
    }

    fn numbers(&mut self) -> [(&'static str, &mut u64); 15] {
        [
            ("since_ms", &mut self.since_ms),
            ("connections", &mut self.connections),
            ("connections_wanted", &mut self.connections_wanted),
            ("reconnects", &mut self.reconnects),
            ("in_flight", &mut self.in_flight),
            ("lock_waits", &mut self.lock_waits),
            ("waiting", &mut self.waiting),
            ("slots", &mut self.slots),
            ("read_bytes", &mut self.read_bytes),
            ("written_bytes", &mut self.written_bytes),
            ("sent_bytes", &mut self.sent_bytes),
            ("received_bytes", &mut self.received_bytes),
            ("protocol", &mut self.protocol),
            ("locks_held", &mut self.locks_held),
            ("locks_lost", &mut self.locks_lost),
        ]
    }

    fn switches(&mut self) -> [(&'static str, &mut bool); 3] {
        [
            ("connected", &mut self.connected),
            ("failing", &mut self.failing),
            ("read_only", &mut self.read_only),
        ]
    }

    /// As lines.
    pub fn text(&self) -> String {
        let (mut copy, mut out) = (self.clone(), String::new());
        for (name, switch) in copy.switches() {
            let _ = writeln!(out, "{name} {}", u8::from(*switch));
        }
        for (name, text) in copy.texts() {
            let _ = writeln!(out, "{name} {}", text.replace('\n', " "));
        }
        for (name, number) in copy.numbers() {
            let _ = writeln!(out, "{name} {number}");
        }
        for (kind, count) in &self.kinds {
            let _ = writeln!(out, "requests.{kind} {count}");
        }
        out
    }

    /// Reads such lines. `None`: there is no address among them, or a number is none.
    pub fn parse(text: &str) -> Option<Status> {
        let mut status = Status::default();
        for line in text.lines() {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            if let Some(kind) = name.strip_prefix("requests.") {
                status.kinds.insert(kind.to_owned(), value.parse().ok()?);
            }
            for (_, switch) in status.switches().into_iter().filter(|(of, _)| *of == name) {
                *switch = value == "1";
            }
            for (_, place) in status.texts().into_iter().filter(|(of, _)| *of == name) {
                value.clone_into(place);
            }
            for (_, place) in status.numbers().into_iter().filter(|(of, _)| *of == name) {
                *place = value.parse().ok()?;
            }
        }
        (!status.address.is_empty()).then_some(status)
    }
}

impl Shared {
    /// The figures now.
    pub(super) fn status(&self, name: &str) -> Status {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let figures = &self.figures;
        let kinds = KINDS.iter().zip(&figures.kinds);
        let (in_flight, lock_waits, waiting) = self.flight.figures();
        let (held, lost) = self.locks.lock().figures();
        let (up, down, about) = {
            let state = self.state.lock();
            (state.up_since, state.down_since, state.about.clone())
        };
        let since = up.or(down).map_or(Duration::ZERO, |since| base::time::monotonic().duration_since(since));
        let mut status = Status {
            address: self.options.address.to_string(),
            source: name.to_owned(),
            connected: up.is_some(),
            since_ms: since.as_millis() as u64,
            failing: self.failing.load(Ordering::Relaxed),
            connections: self.links.iter().filter(|link| link.is_up()).count() as u64,
            connections_wanted: self.links.len() as u64,
            reconnects: load(&figures.reconnects),
            kinds: kinds.map(|(kind, count)| ((*kind).to_owned(), load(count))).collect(),
            in_flight: in_flight as u64,
            lock_waits: lock_waits as u64,
            waiting: waiting as u64,
            slots: self.flight.slots() as u64,
            read_bytes: load(&figures.read),
            written_bytes: load(&figures.written),
            sent_bytes: load(&figures.sent),
            received_bytes: load(&figures.received),
            server: about,
            protocol: VERSION.into(),
            locks: if self.has_locks { "server" } else { "local" }.to_owned(),
            locks_held: held as u64,
            locks_lost: lost as u64,
            ..Status::default()
        };
        let features = [("times", self.links.iter().any(Link::has_times)), ("locks", self.has_locks)];
        let features = features.into_iter().chain([("about", !status.server.is_empty())]);
        let features: Vec<&str> = features.filter(|(_, has)| *has).map(|(name, _)| name).collect();
        status.features = features.join(",");
        let sharing = match self.sharing {
            Sharing::Frozen => "frozen",
            Sharing::One => "one",
            Sharing::Many => "many",
        };
        (status.sharing, status.read_only) = (sharing.to_owned(), self.read_only);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_comes_back() {
        let mut status = Status { connected: true, read_only: true, ..Status::default() };
        assert_eq!(Status::parse(&status.text()), None, "there is no address");
        status.texts().into_iter().for_each(|(name, place)| *place = format!("{name} 1"));
        status.numbers().into_iter().zip(1..).for_each(|((_, place), number)| *place = number);
        status.kinds = KINDS.iter().map(|kind| ((*kind).to_owned(), 7)).collect();
        assert_eq!(Status::parse(&format!("new thing\n{}", status.text())), Some(status.clone()));
        assert_eq!(status.requests(), 70);
        assert_eq!(Status::parse("address x\nslots many\n"), None);
    }

    #[test]
    fn requests_and_their_bytes_are_counted_by_kind() {
        let figures = Figures::default();
        let asked = |opcode| Asked { opcode, unique: 1, node: 1, pid: 1 };
        figures.asked(&asked(16), 80 + 4096);
        figures.asked(&asked(op::READ), 80);
        figures.answered(&asked(op::READ), 16 + 512);
        figures.asked(&asked(op::SETLKW), 88);
        figures.asked(&asked(op::RELEASE), 64);
        let counts: Vec<u64> = figures.kinds.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [1, 1, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((figures.read.into_inner(), figures.written.into_inner()), (512, 4096));
    }
}
