//! The server: it listens, takes clones, and knows what the last of them touched.
//!
//! ```text
//!   memory-accept ─► memory-hello: receives the regions, and is then one of the clone's threads, which take
//!                    turns: memory-hello, memory-1, memory-2, ...
//!                    memory-fill: brings what the list says
//!   memory-clock: notices clones that are gone, and what they touch
//!   memory-list: stores the list, while there is a newer one than the last that was stored
//! ```
//!
//! **The list.** A clone that starts gets what the clones before it touched in their first 30 s, without
//! asking. Then it does not fault there, and so does not show whether it touched that. So each sixteenth
//! clone starts without the list, and what it touches becomes the new one. What the others touch besides is
//! added. A disk that hangs while the list is stored holds up nothing else.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::places::{Limits, Peer, Place, Places};
use parking_lot::Mutex;

use crate::clone::{Clone, Common, End, Level, Log};
use crate::list::{List, ListFile, Span};
use crate::receive::{NoClone, peer, process, receive, tell};
use crate::source::Source;

/// How long a VMM may take to say which memory it has.
pub const GREETING: Duration = Duration::from_secs(5);
/// How often clones are looked at.
const TICK: Duration = Duration::from_millis(250);
/// The most connections that have not said it yet. A further one takes the place of one of them.
const STRANGERS_MOST: usize = 64;
/// So many clones are completed at a time, so that one that cannot be completed holds up no other.
const RESTS: usize = 16;
/// Each clone of this number starts without the list.
const MEASURED: u64 = 16;

/// How to serve.
#[derive(Clone)]
pub struct Options {
    /// The most clones at a time.
    pub clones: usize,
    /// Threads for each clone.
    pub threads: usize,
    /// How long the snapshot may be unreadable before a clone is given up.
    pub patience: Duration,
    /// How long a VMM may take to say which memory it has.
    pub greeting: Duration,
    /// The file of the list. Without it, the list is only in memory.
    pub list: Option<ListFile>,
    /// Receives the lines of the log.
    pub log: Log,
}

impl Options {
    /// The defaults.
    pub fn new(log: Log) -> Options {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            clones: 1024,
            threads: cores.clamp(2, 4),
            patience: Duration::from_secs(60),
            greeting: GREETING,
            list: None,
            log,
        }
    }
}

struct Shared {
    common: Arc<Common>,
    options: Options,
    clones: Mutex<BTreeMap<u64, Entry>>,
    /// Clones that are over, and whose end is being told.
    leaving: AtomicUsize,
    started: AtomicU64,
    strangers: Places,
    list: Mutex<Arc<List>>,
    storing: Mutex<Storing>,
    ended: AtomicBool,
}

/// What becomes of the list's file.
#[derive(Default)]
struct Storing {
    /// The list has changed since a thread last took it.
    wanted: bool,
    /// A thread stores it.
    runs: bool,
}

/// A clone, and whether it started without the list.
#[derive(Clone)]
struct Entry {
    clone: Arc<Clone>,
    measures: bool,
}

/// Serves a snapshot to clones.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<(Arc<UnixListener>, PathBuf)>,
}

impl Server {
    /// A server that does not listen yet. A list that is of no use is replaced, after a warning.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(source: Arc<dyn Source>, options: Options) -> io::Result<Server> {
        let list = options.list.as_ref().map_or(Ok(None), ListFile::load);
        let list = list.unwrap_or_else(|why| {
            let path = options.list.as_ref().map(|file| file.path.display().to_string()).unwrap_or_default();
            let line = format!("the list {path} is not used: {why}; the first clone makes a new one");
            (options.log)(Level::Warn, &line);
            None
        });
        let (patience, log) = (options.patience, Arc::clone(&options.log));
        let common = Arc::new(Common { source, patience, log, buffers: Default::default() });
        let shared = Shared {
            common,
            options,
            clones: Mutex::default(),
            leaving: AtomicUsize::new(0),
            started: AtomicU64::new(0),
            strangers: Places::new(Limits::of(STRANGERS_MOST)),
            list: Mutex::new(Arc::new(list.unwrap_or_default())),
            storing: Mutex::default(),
            ended: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        let clock = Arc::clone(&shared);
        base::thread::spawn("memory-clock", move || clock.run_clock())?;
        Ok(Server { shared, listeners: Vec::new() })
    }

    /// Takes clones from one more socket. Its path is removed at the end.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(&mut self, listener: UnixListener, path: PathBuf) -> io::Result<()> {
        let listener = Arc::new(listener);
        let (shared, accepting) = (Arc::clone(&self.shared), Arc::clone(&listener));
        base::thread::spawn("memory-accept", move || shared.accept(&accepting))?;
        self.listeners.push((listener, path));
        Ok(())
    }

    /// The number of clones that are served.
    pub fn clones(&self) -> usize {
        self.shared.clones.lock().len()
    }

    /// What a clone gets before it asks: ranges and bytes.
    pub fn list(&self) -> (usize, u64) {
        let list = self.shared.list.lock();
        (list.spans().len(), list.bytes())
    }

    /// Takes no more clones.
    pub fn close(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        for (listener, path) in self.listeners.drain(..) {
            let _ = std::fs::remove_file(path);
            let _ = rustix::net::shutdown(&*listener, rustix::net::Shutdown::Both);
        }
    }

    /// Begins to bring all that the clones miss, so that they need the server no more. The thread returns how
    /// many did not get it: they failed, or [`Server::end`] was called.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn complete(&self) -> io::Result<JoinHandle<usize>> {
        let entries = self.shared.entries();
        base::thread::spawn("memory-rest", move || {
            let lacking = AtomicUsize::new(0);
            let complete = |Entry { clone, .. }: &Entry| {
                if !clone.complete() && clone.end() != Some(&End::Gone) {
                    lacking.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), Infallible>(())
            };
            let Ok(()) = base::thread::for_each("memory-rest", RESTS, &entries, complete);
            lacking.into_inner()
        })
    }

    /// Ends: serves nothing any more. A clone that misses memory waits for it from now on.
    pub fn end(&mut self) {
        self.close();
        self.shared.entries().iter().for_each(|entry| entry.clone.stop(End::Stopped));
        let until = base::Deadline::after(Duration::from_secs(10));
        // In this order, because one leads to the next.
        let leaves = || self.clones() > 0 || self.shared.leaving.load(Ordering::Acquire) > 0;
        while (leaves() || self.shared.storing.lock().runs) && !until.is_over() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn log(&self, level: Level, line: &str) {
        (self.options.log)(level, line);
    }

    fn entries(&self) -> Vec<Entry> {
        self.clones.lock().values().map(Entry::clone).collect()
    }

    /// The body of the clock. It goes on until the last clone has ended.
    fn run_clock(self: &Arc<Self>) {
        while !self.ended.load(Ordering::Acquire) || !self.clones.lock().is_empty() {
            for entry in self.entries() {
                entry.clone.look();
                self.learn(&entry);
            }
            std::thread::sleep(TICK);
        }
    }

    /// The body of a thread that accepts connections.
    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        loop {
            let accepted = listener.accept();
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    // Such as too many open files: it passes, or goes on, and must not fill the log at once.
                    self.log(Level::Warn, &format!("accepting a clone failed: {error}"));
                    std::thread::sleep(Duration::from_secs(1));
                    continue;
                }
            };
            // Without a second handle it cannot be ended: too many files are open.
            let Ok(cut) = socket.try_clone() else { continue };
            let user = rustix::net::sockopt::socket_peercred(&socket).ok().map(|who| who.uid.as_raw());
            let known = user.is_some_and(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw());
            let end = move || tell(&cut, "too many connections have not said which memory they have");
            let Ok(place) = self.strangers.enter(user.map_or(Peer::Unknown, Peer::User), known, end) else {
                continue;
            };
            let shared = Arc::clone(self);
            // If there is no thread, the place is free at once.
            let _ = base::thread::spawn("memory-hello", move || shared.serve(&socket, place));
        }
    }

    /// One connection from beginning to end.
    fn serve(self: &Arc<Self>, socket: &UnixStream, place: Place) {
        let taken = self.take(socket);
        let was_displaced = place.is_over();
        drop(place);
        match taken {
            Ok(entry) => self.run(&entry, socket),
            Err(NoClone::Silent) => {}
            // It has been told.
            Err(_) if was_displaced => {}
            Err(why) => {
                self.log(Level::Warn, &format!("a VMM was refused{}: {why}", pid_of(socket)));
                tell(socket, &why.to_string());
            }
        }
    }

    /// Receives a clone and enters it.
    fn take(&self, socket: &UnixStream) -> Result<Entry, NoClone> {
        let (regions, uffd) = receive(socket, self.common.source.len(), self.options.greeting)?;
        let mut clones = self.clones.lock();
        if clones.len() >= self.options.clones {
            let text = format!("{} clones are served, and more are not allowed (--clones)", clones.len());
            return Err(NoClone::Io(io::Error::other(text)));
        }
        if self.ended.load(Ordering::Acquire) {
            return Err(NoClone::Io(io::Error::other("the server ends")));
        }
        let number = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        let clone = Clone::new(number, &regions, uffd, Arc::clone(&self.common))?;
        let clone = Arc::new(clone.with_process(process(socket)));
        let measures = self.list.lock().spans().is_empty() || number.is_multiple_of(MEASURED);
        let entry = Entry { clone, measures };
        clones.insert(number, entry.clone());
        Ok(entry)
    }

    fn run(self: &Arc<Self>, entry: &Entry, socket: &UnixStream) {
        let Entry { clone, measures } = entry;
        let list = if *measures { Arc::default() } else { Arc::clone(&self.list.lock()) };
        let mut others = Vec::new();
        for index in 1..self.options.threads {
            let mine = Arc::clone(clone);
            others.extend(base::thread::spawn(&format!("memory-{index}"), move || mine.work()));
        }
        if !list.spans().is_empty() {
            let (mine, list) = (Arc::clone(clone), Arc::clone(&list));
            others.extend(base::thread::spawn("memory-fill", move || mine.fill(list.spans())));
        }
        let (regions, size) = clone.size();
        let line = format!(
            "clone {}{}: {regions} regions, {} MiB, of which the list has {} MiB",
            clone.number,
            pid_of(socket),
            size >> 20,
            list.bytes() >> 20
        );
        self.log(Level::Info, &line);
        clone.work();
        for thread in others {
            let _ = thread.join();
        }
        self.leave(entry, socket);
    }

    /// Frees the place of a clone before anything else: a log that stands still, as a full pipe or a disk
    /// that hangs, must not keep new clones out.
    fn leave(self: &Arc<Self>, entry: &Entry, socket: &UnixStream) {
        self.leaving.fetch_add(1, Ordering::AcqRel);
        self.clones.lock().remove(&entry.clone.number);
        self.learn(entry);
        self.tell_end(&entry.clone, socket);
        self.leaving.fetch_sub(1, Ordering::AcqRel);
    }

    fn tell_end(&self, clone: &Clone, socket: &UnixStream) {
        let counts = clone.counts();
        let how = match clone.end() {
            Some(End::Failed(why)) => {
                tell(socket, why);
                "was given up"
            }
            Some(End::Stopped) => "is served no more",
            Some(End::Gone) | None => "has ended",
        };
        let line = format!(
            "clone {} {how}: {} faults, {} MiB copied, {} MiB of zeros, {} MiB of both before it asked",
            clone.number,
            counts.faults,
            counts.copied >> 20,
            counts.zeros >> 20,
            counts.ahead >> 20
        );
        self.log(Level::Info, &line);
    }

    /// Makes what a clone touched known to the next ones.
    fn learn(self: &Arc<Self>, Entry { clone, measures }: &Entry) {
        if !clone.is_young() {
            return;
        }
        let (touched, last) = clone.touched();
        let mut list = self.list.lock();
        if *measures {
            // A clone that ended early has touched less than it would have.
            let whole = last && clone.end().is_none();
            // If it has touched as much, the clock has learned it already, and it is not stored yet.
            if !whole && touched.bytes() < list.bytes() {
                return;
            }
            *list = Arc::new(touched);
        } else {
            let more = if last { missing_of(&list, &touched) } else { Vec::new() };
            if more.is_empty() {
                return;
            }
            let mut grown = List::clone(&list);
            more.into_iter().for_each(|span| grown.push(span));
            *list = Arc::new(grown);
        }
        drop(list);
        if last {
            self.store();
        }
    }

    /// Has the list stored, by a thread of its own. There is one at a time, however long the disk takes.
    fn store(self: &Arc<Self>) {
        let Some(file) = self.options.list.clone() else { return };
        let mut storing = self.storing.lock();
        storing.wanted = true;
        if storing.runs {
            return;
        }
        let shared = Arc::clone(self);
        let spawned = base::thread::spawn("memory-list", move || shared.run_store(&file));
        storing.runs = spawned.is_ok();
        drop(storing);
        if let Err(error) = spawned {
            self.log(Level::Warn, &format!("the list was not stored, for lack of a thread: {error}"));
        }
    }

    /// The body of that thread. It stores the newest list, until there is no newer one.
    fn run_store(&self, file: &ListFile) {
        loop {
            let mut storing = self.storing.lock();
            storing.runs = std::mem::take(&mut storing.wanted);
            if !storing.runs {
                return;
            }
            drop(storing);
            let list = Arc::clone(&self.list.lock());
            if let Err(error) = file.store(&list) {
                let line = format!("the list {} was not stored: {error}", file.path.display());
                self.log(Level::Warn, &line);
            }
        }
    }
}

/// The ranges that a list does not have.
fn missing_of(list: &List, touched: &List) -> Vec<Span> {
    let mut known: Vec<(u64, u64)> =
        list.spans().iter().map(|span| (span.offset, span.offset + span.len)).collect();
    known.sort_unstable();
    let has = |span: &Span| {
        let before = known.partition_point(|(offset, _)| *offset <= span.offset);
        before.checked_sub(1).is_some_and(|at| known[at].1 >= span.offset + span.len)
    };
    touched.spans().iter().filter(|span| !has(span)).copied().collect()
}

/// The process at the other end, for the log.
fn pid_of(socket: &UnixStream) -> String {
    peer(socket).map_or(String::new(), |pid| format!(" (process {pid})"))
}
