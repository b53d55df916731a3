//! The workers: threads that change, read and list cells, and count under locks, on the mounts of the nodes.
//!
//! A worker reaches a mount through a descriptor of its root. When the node is killed, that gives errors, and
//! never the empty folder below the mount. After an error, and before a worker changes a cell on another node
//! than before, it reads the cell: only then does it know what its next change will do.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use covey_tests::Rng;
use covey_tests::locking::set;

use super::check::{STRANGE, is_trouble, is_trouble_of};
use super::model::{Cell, Content, Counter, Kind, Outcome, Seen, State, Step, What};

/// The length of a record of a log.
const RECORD: usize = 32;
/// A log is cut when it has so many.
const RECORDS: usize = 40;
/// The bytes of a counter.
const DIGITS: usize = 20;

/// What the workers know of a node.
#[derive(Default)]
pub struct Door {
    root: Mutex<Option<Arc<File>>>,
    /// It is stopped: workers of other nodes keep away.
    pub is_stopped: AtomicBool,
}

impl Door {
    pub fn open(&self, mountpoint: &std::path::Path) -> Result<()> {
        let root = File::open(mountpoint)?;
        *self.root.lock().unwrap() = Some(Arc::new(root));
        Ok(())
    }

    pub fn shut(&self) {
        *self.root.lock().unwrap() = None;
    }

    /// The root, which must be kept while the path is used.
    fn root(&self) -> Result<(Arc<File>, PathBuf)> {
        use std::os::fd::AsRawFd;
        let root = self.root.lock().unwrap().clone().ok_or(Error::from_raw_os_error(libc::ENOTCONN))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
        Ok((root, path))
    }
}

/// What all workers of a trial share.
pub struct World {
    pub doors: Vec<Door>,
    pub cells: Vec<Cell>,
    pub counters: Vec<Counter>,
    pub stop: AtomicBool,
    pub done: AtomicU64,
    pub failed: AtomicU64,
    pub resolved: AtomicU64,
    /// What only a loss on this node explains.
    pub strange: Mutex<Vec<(Option<usize>, String)>>,
    /// Workers that have not ended.
    pub running: AtomicUsize,
    /// What took longest in this round.
    pub slowest: Mutex<(Duration, String)>,
    /// What each worker does, and since when.
    pub doing: Vec<Mutex<Option<(Instant, String)>>>,
}

/// The bytes of a file that holds this number.
pub fn body(cell: usize, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = format!("{cell}-{number}-{len}\n").into_bytes();
    let more = Rng::new((cell as u64) << 40 | u64::from(number)).bytes(len.saturating_sub(bytes.len()));
    bytes.extend(more);
    bytes.truncate(len);
    bytes
}

fn record(cell: usize, number: u32) -> Vec<u8> {
    format!("{:<31}\n", format!("{cell}-{number}")).into_bytes()
}

fn number_in(text: &str, cell: usize) -> Option<u32> {
    let mut fields = text.trim_end().split('-');
    (fields.next()?.parse() == Ok(cell)).then_some(())?;
    fields.next()?.parse().ok()
}

/// What these bytes of a cell are.
fn parsed(cell: &Cell, bytes: &[u8]) -> Seen {
    let torn = || {
        let head: String = bytes.iter().take(48).map(|byte| byte.escape_ascii().to_string()).collect();
        Seen::Torn(format!("{} bytes: {head}", bytes.len()))
    };
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let numbers = match cell.kind {
        Kind::Log => bytes
            .chunks(RECORD)
            .map(|chunk| number_in(text(chunk)?, cell.number).filter(|n| record(cell.number, *n) == chunk))
            .collect(),
        Kind::Replaced(len) | Kind::Written(len) => {
            let line = bytes.split(|byte| *byte == b'\n').next().and_then(text);
            let number = line.and_then(|line| number_in(line, cell.number));
            number.filter(|n| body(cell.number, *n, len) == bytes).map(|n| vec![n])
        }
        Kind::Link | Kind::Folder => {
            text(bytes).and_then(|text| number_in(text, cell.number)).map(|n| vec![n])
        }
    };
    numbers.map_or_else(torn, |numbers| Seen::Is(Content::Holds(numbers)))
}

/// What is behind a name. Only what is replaced as a whole is read by more than one request.
pub fn read(root: &std::path::Path, cell: &Cell, place: usize) -> Result<Seen> {
    use std::os::unix::ffi::OsStrExt;
    let path = root.join(&cell.places[place]);
    let look = || match cell.kind {
        Kind::Link => fs::read_link(&path).map(|target| parsed(cell, target.as_os_str().as_bytes())),
        Kind::Folder => fs::symlink_metadata(&path).map(|found| match found.is_dir() {
            true => Seen::Is(Content::Folder),
            false => Seen::Torn(format!("{:?}", found.file_type())),
        }),
        Kind::Replaced(_) | Kind::Written(_) | Kind::Log => {
            let mut file = File::open(&path)?;
            let mut bytes = Vec::new();
            let len = match cell.kind {
                Kind::Replaced(_) => file.read_to_end(&mut bytes),
                _ => {
                    bytes.resize(8192, 0);
                    file.read(&mut bytes)
                }
            };
            // The name was found, so this error is not that of the name.
            let not_name = |error: Error| match error.kind() {
                ErrorKind::NotFound => Error::other("the file was opened, and is not found"),
                _ => error,
            };
            bytes.truncate(len.map_err(not_name)?);
            Ok(parsed(cell, &bytes))
        }
    };
    match look() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Seen::Is(Content::Missing)),
        seen => seen,
    }
}

/// A thread that works.
pub struct Worker<'a> {
    pub world: &'a World,
    pub number: usize,
    pub home: usize,
    pub rng: Rng,
    /// For each cell: the node of the last change, unless that is not certain any more.
    pub sure: Vec<Option<usize>>,
    /// The next number to write.
    pub next: u32,
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.world.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Worker<'_> {
    pub fn run(&mut self) {
        let is_own = |at: &usize| self.world.cells[*at].owner == self.number;
        let own: Vec<usize> = (0..self.world.cells.len()).filter(is_own).collect();
        while !self.world.stop.load(Ordering::Relaxed) {
            let node = self.node();
            let any = self.rng.below(self.world.cells.len() as u64) as usize;
            let own = *self.rng.pick(&own);
            match self.rng.below(20) {
                0..8 => self.change(own, node),
                8..16 => drop(self.look(any, node)),
                16..18 => self.list(any, node),
                18 => self.count(node),
                _ => std::thread::sleep(Duration::from_millis(self.rng.below(40))),
            }
            std::thread::sleep(Duration::from_millis(self.rng.below(6)));
        }
    }

    /// Mostly its own node; sometimes another one that is not stopped.
    fn node(&mut self) -> usize {
        let other = self.rng.below(self.world.doors.len() as u64) as usize;
        let roams = self.rng.one_in(8) && !self.world.doors[other].is_stopped.load(Ordering::SeqCst);
        if roams { other } else { self.home }
    }

    /// Does it, and says meanwhile what it is.
    fn does<T>(
        &mut self,
        node: usize,
        what: String,
        act: impl FnOnce(&std::path::Path) -> Result<T>,
    ) -> Result<T> {
        let (began, what) = (Instant::now(), format!("{what} on node {node}"));
        *self.world.doing[self.number].lock().unwrap() = Some((began, what.clone()));
        let done = self.world.doors[node].root().and_then(|(_root, path)| act(&path));
        *self.world.doing[self.number].lock().unwrap() = None;
        let mut slowest = self.world.slowest.lock().unwrap();
        if began.elapsed() > slowest.0 {
            *slowest = (began.elapsed(), what);
        }
        drop(slowest);
        match &done {
            Ok(_) => _ = self.world.done.fetch_add(1, Ordering::Relaxed),
            Err(_) => {
                self.world.failed.fetch_add(1, Ordering::Relaxed);
                // What this node has acknowledged may be lost.
                self.sure.iter_mut().filter(|at| **at == Some(node)).for_each(|at| *at = None);
                std::thread::sleep(Duration::from_millis(self.rng.below(30)));
            }
        }
        done
    }

    fn look(&mut self, cell: usize, node: usize) -> Option<State> {
        let cell = &self.world.cells[cell];
        let mut state = State::new();
        for place in 0..cell.places.len() {
            let began = Instant::now();
            match self.does(node, format!("read {}", cell.places[place]), |root| read(root, cell, place)) {
                Ok(seen) => {
                    if let Seen::Is(content) = &seen {
                        state.push(content.clone());
                    }
                    cell.saw(began, self.number, node, place, seen);
                }
                Err(error) if is_trouble_of(cell, &error) => return None,
                Err(error) => {
                    self.strange(
                        Some(node),
                        format!("read of {} on node {node}: {error}", cell.places[place]),
                    );
                    return None;
                }
            }
        }
        (state.len() == cell.places.len()).then_some(state)
    }

    fn strange(&self, node: Option<usize>, what: String) {
        self.world.strange.lock().unwrap().push((node, format!("worker {}: {what}", self.number)));
    }

    /// Lists the folder of a cell. It says something of each cell there.
    fn list(&mut self, cell: usize, node: usize) {
        let place = self.world.cells[cell].places[0].clone();
        let folder = place.rsplit_once('/').map(|(folder, _)| folder.to_owned()).unwrap();
        let began = Instant::now();
        let listed = self.does(node, format!("list {folder}"), |root| {
            fs::read_dir(root.join(&folder))?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()
        });
        let Ok(names) = listed else { return };
        for cell in &self.world.cells {
            for (at, place) in cell.places.iter().enumerate() {
                if let Some(name) = place.strip_prefix(&format!("{folder}/")) {
                    let is_there = names.iter().any(|listed| listed == name);
                    cell.saw(began, self.number, node, at, Seen::Listed(is_there));
                }
            }
        }
    }

    /// Reads a cell until its state is one that it may have, and notes that it is this.
    fn resolve(&mut self, at: usize, node: usize) -> Option<State> {
        let cell = &self.world.cells[at];
        for _ in 0..40 {
            let event = Instant::now();
            let state = self.look(at, node)?;
            if let Some(writers) = cell.writers_of(&state) {
                // What another node made and this one has seen is stored.
                let synced = writers.iter().all(|writer| *writer != Some(node));
                let mut events = cell.events.lock().unwrap();
                let what = What::Change { did: "find", state: state.clone() };
                let (ended, outcome) = (Some(Instant::now()), Outcome::Done { synced });
                let worker = self.number;
                events.push(super::model::Event { began: event, ended, worker, node, what, outcome });
                self.world.resolved.fetch_add(1, Ordering::Relaxed);
                return Some(state);
            }
            // A change without an answer may happen between two reads.
            std::thread::sleep(Duration::from_millis(100));
        }
        self.strange(None, format!("{:?} is in no state that it was in", cell.places));
        None
    }

    fn change(&mut self, at: usize, node: usize) {
        let cell = &self.world.cells[at];
        let known = (self.sure[at] == Some(node)).then(|| cell.last());
        let Some(state) = known.or_else(|| self.resolve(at, node)) else { return };
        self.next += 1;
        let (number, sync) = (self.next, self.rng.one_in(3));
        let (did, after, deed) = plan(cell, &state, number, &mut self.rng);
        self.sure[at] = Some(node);
        let event = cell.begin(self.number, node, What::Change { did, state: after });
        let tmp = format!(".new{}", self.number);
        let done =
            self.does(node, format!("{did} {:?}", cell.places), |root| act(root, cell, &deed, &tmp, sync));
        let outcome = match done {
            Ok(()) => Outcome::Done { synced: sync },
            Err(error) if is_trouble_of(cell, &error) => Outcome::Failed(error.to_string()),
            Err(error) => Outcome::Failed(format!("{STRANGE}{error}")),
        };
        if outcome != (Outcome::Done { synced: sync }) {
            self.sure[at] = None;
        }
        cell.end(event, outcome);
    }

    /// Adds one under a lock, or only looks.
    fn count(&mut self, node: usize) {
        let at = self.rng.below(self.world.counters.len() as u64) as usize;
        let counter = &self.world.counters[at];
        let (looks, sync) = (self.rng.one_in(4), self.rng.one_in(2));
        let began = Instant::now();
        let (mut found, mut wrote) = (None, None);
        let done = self.does(node, format!("count {}", counter.path), |root| {
            let file = OpenOptions::new().read(true).write(true).open(root.join(&counter.path))?;
            if !looks && !locked(&file)? {
                return Ok(());
            }
            let mut bytes = [0; DIGITS];
            file.read_exact_at(&mut bytes, 0)?;
            let value: u64 = std::str::from_utf8(&bytes)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| Error::other(format!("a counter of {bytes:?}")))?;
            found = Some(value);
            if looks {
                return Ok(());
            }
            wrote = Some(Outcome::Failed(String::new()));
            file.write_all_at(digits(value + 1).as_bytes(), 0)?;
            if sync {
                file.sync_all()?;
            }
            wrote = Some(Outcome::Done { synced: sync });
            set(&file, "flock", libc::F_UNLCK).map_err(Error::from_raw_os_error)
        });
        if let Some(error) = done.err().filter(|error| !is_trouble(error)) {
            self.strange(Some(node), format!("{} on node {node}: {error}", counter.path));
        }
        let step = Step { began, ended: Instant::now(), worker: self.number, node, found, wrote };
        counter.steps.lock().unwrap().push(step);
    }
}

/// The bytes of a counter.
pub fn digits(value: u64) -> String {
    format!("{value:0DIGITS$}")
}

/// False: others have it all the time.
fn locked(file: &File) -> Result<bool> {
    for _ in 0..100 {
        match set(file, "flock", libc::F_WRLCK) {
            Ok(()) => return Ok(true),
            Err(libc::EAGAIN) => std::thread::sleep(Duration::from_millis(10)),
            Err(number) => return Err(Error::from_raw_os_error(number)),
        }
    }
    Ok(false)
}

/// What is done to a cell.
enum Deed {
    Write(u32),
    Append(u32),
    Cut(usize),
    Make(usize, u32),
    Remove(usize),
    /// From this place to the other one.
    Move(usize),
}

/// Chooses a change: its name, the state after it, and what to do.
fn plan(cell: &Cell, state: &State, number: u32, rng: &mut Rng) -> (&'static str, State, Deed) {
    let holds = |numbers: Vec<u32>| vec![Content::Holds(numbers)];
    match (cell.kind, &state[0]) {
        (Kind::Log, Content::Holds(numbers)) if numbers.len() >= RECORDS || rng.one_in(12) => {
            let keep = rng.below(numbers.len() as u64 / 2 + 1) as usize;
            ("cut", holds(numbers[..keep].to_vec()), Deed::Cut(keep))
        }
        (Kind::Log, Content::Holds(numbers)) => {
            ("append", holds([&numbers[..], &[number]].concat()), Deed::Append(number))
        }
        (Kind::Replaced(_) | Kind::Written(_) | Kind::Log, _) => {
            ("write", holds(vec![number]), Deed::Write(number))
        }
        (Kind::Link | Kind::Folder, _) => {
            let mut after = state.clone();
            let place = rng.below(state.len() as u64) as usize;
            let made = if cell.kind == Kind::Folder { Content::Folder } else { Content::Holds(vec![number]) };
            if state[place] == Content::Missing {
                after[place] = made;
                return ("make", after, Deed::Make(place, number));
            }
            after[place] = Content::Missing;
            if state.len() == 1 || rng.one_in(3) {
                return ("remove", after, Deed::Remove(place));
            }
            after[1 - place] = state[place].clone();
            ("move", after, Deed::Move(place))
        }
    }
}

fn act(root: &std::path::Path, cell: &Cell, deed: &Deed, tmp: &str, sync: bool) -> Result<()> {
    let path = |place: usize| root.join(&cell.places[place]);
    let open = |options: &mut OpenOptions| options.open(path(0));
    let synced = |file: File| if sync { file.sync_all() } else { Ok(()) };
    let whole = |written: usize, len: usize| match written == len {
        true => Ok(()),
        false => Err(Error::other(format!("{written} of {len} bytes were written"))),
    };
    match (deed, cell.kind) {
        (Deed::Write(number), Kind::Replaced(len)) => {
            let new = path(0).with_file_name(tmp);
            let mut file = File::create(&new)?;
            file.write_all(&body(cell.number, *number, len))?;
            fs::rename(&new, path(0))?;
            synced(file)
        }
        (Deed::Write(number), Kind::Written(len)) => {
            let file = open(OpenOptions::new().write(true))?;
            whole(file.write_at(&body(cell.number, *number, len), 0)?, len)?;
            synced(file)
        }
        (Deed::Append(number) | Deed::Write(number), _) => {
            let mut file = open(OpenOptions::new().append(true))?;
            whole(file.write(&record(cell.number, *number))?, RECORD)?;
            synced(file)
        }
        (Deed::Cut(keep), _) => {
            let file = open(OpenOptions::new().write(true))?;
            file.set_len((keep * RECORD) as u64)?;
            synced(file)
        }
        (Deed::Make(..) | Deed::Remove(_) | Deed::Move(_), kind) => {
            match *deed {
                Deed::Make(place, _) if kind == Kind::Folder => fs::create_dir(path(place))?,
                Deed::Make(place, number) => symlink(format!("{}-{number}", cell.number), path(place))?,
                Deed::Remove(place) if kind == Kind::Folder => fs::remove_dir(path(place))?,
                Deed::Remove(place) => fs::remove_file(path(place))?,
                Deed::Move(place) => fs::rename(path(place), path(1 - place))?,
                _ => {}
            }
            for place in 0..if sync { cell.places.len() } else { 0 } {
                File::open(path(place).parent().unwrap())?.sync_all()?;
            }
            Ok(())
        }
    }
}
