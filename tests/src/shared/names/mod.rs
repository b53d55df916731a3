//! Names under many clients: every history is linearizable.
//!
//! Clients on several nodes create, take, give, remove and read the same few names. Each file is a symbolic
//! link whose target is unique, so that creating it and its contents is one step.
//!
//! Only operations are used that the kernel passes on as one. It is not so for link(2), which finds a file by
//! name and then links it by number, nor for rename(2) between names that others rename too: the kernel looks
//! up both names one after the other, and does nothing if it finds the same file twice. A client therefore
//! renames to and from a name of its own.

mod checker;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use self::checker::{Event, Model, is_linearizable};
use crate::Rng;

/// Names that the clients fight for. A client's own name is above.
const NAMES: u8 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Op {
    Create {
        name: u8,
        id: u32,
    },
    Remove {
        name: u8,
    },
    /// Renames to the client's own name, and replaces what is there.
    Take {
        name: u8,
        own: u8,
    },
    /// Renames the client's own name, and replaces nothing.
    Give {
        own: u8,
        name: u8,
    },
    Read {
        name: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Done,
    Exists,
    Missing,
    Id(u32),
}

struct Names;

/// The file behind each name.
type State = BTreeMap<u8, u32>;

impl Names {
    /// What the operation does, and what it returns.
    fn run(state: &State, op: &Op) -> (State, Seen) {
        let mut after = state.clone();
        let seen = match *op {
            Op::Create { name, .. } if state.contains_key(&name) => Seen::Exists,
            Op::Create { name, id } => {
                after.insert(name, id);
                Seen::Done
            }
            Op::Remove { name } => after.remove(&name).map_or(Seen::Missing, |_| Seen::Done),
            Op::Give { own, name } if state.contains_key(&own) && state.contains_key(&name) => Seen::Exists,
            Op::Take { name: from, own: to } | Op::Give { own: from, name: to } => {
                match after.remove(&from) {
                    None => Seen::Missing,
                    Some(id) => {
                        after.insert(to, id);
                        Seen::Done
                    }
                }
            }
            Op::Read { name } => state.get(&name).map_or(Seen::Missing, |id| Seen::Id(*id)),
        };
        (after, seen)
    }
}

impl Model for Names {
    type State = State;
    type Op = Op;
    type Seen = Seen;

    fn step(&self, state: &State, op: &Op, seen: &Seen) -> Option<State> {
        let (after, expected) = Names::run(state, op);
        (expected == *seen).then_some(after)
    }

    fn blind(&self, state: &State, op: &Op) -> State {
        Names::run(state, op).0
    }
}

fn path(folder: &Path, name: u8) -> PathBuf {
    folder.join(format!("name{name}"))
}

/// Does it. `None`: it is unknown whether it happened.
fn act(folder: &Path, op: &Op) -> Option<Seen> {
    let said = |done: Result<(), Error>| match done {
        Ok(()) => Some(Seen::Done),
        Err(error) => refused(&error),
    };
    let path = |name| path(folder, name);
    match *op {
        Op::Create { name, id } => said(std::os::unix::fs::symlink(id.to_string(), path(name))),
        Op::Remove { name } => said(std::fs::remove_file(path(name))),
        Op::Take { name, own } => said(std::fs::rename(path(name), path(own))),
        Op::Give { own, name } => {
            let flags = RenameFlags::NOREPLACE;
            said(renameat_with(CWD, path(own), CWD, path(name), flags).map_err(Error::from))
        }
        Op::Read { name } => match std::fs::read_link(path(name)) {
            Ok(target) => Some(Seen::Id(target.to_str()?.parse().ok()?)),
            Err(error) => refused(&error),
        },
    }
}

/// An error that is an answer. Others leave it open what happened.
fn refused(error: &Error) -> Option<Seen> {
    match error.kind() {
        ErrorKind::AlreadyExists => Some(Seen::Exists),
        ErrorKind::NotFound => Some(Seen::Missing),
        _ => None,
    }
}

/// Whether the mount below a folder is alive.
fn is_there(folder: &Path) -> bool {
    let gone = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
    std::fs::metadata(folder).map_or_else(|error| !gone.contains(&error.raw_os_error()), |_| true)
}

/// A random operation of a client. `id` is unique.
fn random(rng: &mut Rng, client: usize, id: u32) -> Op {
    let (name, own) = (rng.below(u64::from(NAMES)) as u8, NAMES + client as u8);
    match rng.below(10) {
        0..3 => Op::Create { name, id },
        3 => Op::Remove { name },
        4 | 5 => Op::Take { name, own },
        6 | 7 => Op::Give { own, name },
        _ => Op::Read { name },
    }
}

/// One client per folder and more: each does `count` operations. `work` runs meanwhile. Panics if the history
/// is not linearizable, or if no operation had a result.
pub fn round(folders: &[PathBuf], clients: usize, count: usize, seed: u64, work: impl FnOnce()) {
    round_where(folders, clients, count, seed, false, work);
}

/// The same. `durable`: a result counts only when fsync(2) has returned after it, because a node is killed.
pub fn round_where(
    folders: &[PathBuf],
    clients: usize,
    count: usize,
    seed: u64,
    durable: bool,
    work: impl FnOnce(),
) {
    let start = Instant::now();
    judge(history(start, folders, clients, count, seed, durable, work), seed);
}

/// The same while `work` kills a node and mounts it again before its session ends: each result counts when it
/// is there, and at the end every node sees what the results say.
pub fn round_again(folders: &[PathBuf], clients: usize, count: usize, seed: u64, work: impl FnOnce()) {
    let start = Instant::now();
    let now = || start.elapsed().as_nanos() as u64;
    let mut history = history(start, folders, clients, count, seed, false, work);
    let before = history.len();
    for name in 0..NAMES + clients as u8 {
        for folder in folders {
            let (op, called) = (Op::Read { name }, now());
            let seen = act(folder, &op).unwrap_or_else(|| panic!("seed {seed}: {folder:?} cannot be read"));
            // Nothing happens any more. So what one node sees twice need not be judged twice.
            let is_known = history[before..].iter().any(|event| {
                event.op == op && event.returned.as_ref().is_some_and(|(_, other)| *other == seen)
            });
            if !is_known {
                history.push(Event { op, called, returned: Some((now(), seen)) });
            }
        }
    }
    judge(history, seed);
}

fn history(
    start: Instant,
    folders: &[PathBuf],
    clients: usize,
    count: usize,
    seed: u64,
    durable: bool,
    work: impl FnOnce(),
) -> Vec<Event<Op, Seen>> {
    let now = || start.elapsed().as_nanos() as u64;
    let client = |client: usize| {
        // By the open folder: after the node was killed, its path leads to the folder below the mount.
        let Ok(open) = File::open(&folders[client % folders.len()]) else { return Vec::new() };
        let folder = &PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let mut rng = Rng::new(seed.wrapping_mul(1_000_003).wrapping_add(client as u64));
        // With every other seed the clients of one node change names, and the others only read: so it lends.
        let reads = seed % 2 == 1 && client % folders.len() != (seed as usize) % folders.len();
        let mut one = |n: usize| {
            let op = match reads {
                true => Op::Read { name: rng.below(u64::from(NAMES)) as u8 },
                false => random(&mut rng, client, (client * 1_000 + n) as u32),
            };
            let called = now();
            let seen = act(folder, &op).filter(|_| !durable || open.sync_all().is_ok());
            // A read without a result says nothing.
            let returned = seen.map(|seen| (now(), seen));
            Event { op, called, returned }
        };
        // A client whose node is gone does nothing more. Otherwise there would be too many operations of
        // which nobody knows whether they happened.
        let mut events = Vec::new();
        for n in 0..count {
            events.push(one(n));
            if !is_there(folder) {
                break;
            }
        }
        events
    };
    let client = &client;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..clients).map(|n| scope.spawn(move || client(n))).collect();
        work();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

/// Panics if a history is not linearizable.
fn judge(history: Vec<Event<Op, Seen>>, seed: u64) {
    let is_read = |op: &Op| matches!(op, Op::Read { .. });
    let history: Vec<_> =
        history.into_iter().filter(|event| event.returned.is_some() || !is_read(&event.op)).collect();
    assert!(history.iter().any(|event| event.returned.is_some()), "seed {seed}: nothing had a result");
    if !is_linearizable(&Names, State::new(), &history) {
        let mut lines: Vec<String> = history.iter().map(|event| format!("{event:?}")).collect();
        lines.sort();
        panic!("seed {seed}: this could not have happened one after the other:\n{}", lines.join("\n"));
    }
}
