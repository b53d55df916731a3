//! A program that changes files until its filesystem dies, and records which calls returned.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use covey_tests::Rng;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::model::{Call, Model, Thing};

/// State shared by the worker and the test.
#[derive(Default)]
pub struct Shared {
    /// Set before the filesystem is killed: from then on calls may fail.
    pub ending: AtomicBool,
    /// The number of calls in the history that a power cut must not lose.
    pub durable: AtomicUsize,
}

/// The worker. Its folder must exist, with a folder `d` in it.
pub struct Worker {
    root: PathBuf,
    rng: Rng,
    open: BTreeMap<u64, File>,
    shared: Arc<Shared>,
    /// The state after every call that returned.
    pub model: Model,
    /// The call in progress when the filesystem died.
    pub pending: Option<Call>,
    /// All calls that returned.
    pub history: Vec<Call>,
    /// Largest write, in bytes.
    pub largest: u64,
    /// Whether a returned write(2) counts as settled, as it does without the kernel's writeback cache.
    pub writes_settle: bool,
}

const NAMES: [&str; 12] =
    ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "d/n0", "d/n1", "d/n2", "d/n3", "temporary"];

impl Worker {
    /// A worker that starts from this model.
    pub fn new(root: &Path, seed: u64, model: Model, shared: Arc<Shared>) -> Worker {
        Worker {
            root: root.to_owned(),
            rng: Rng::new(seed),
            open: BTreeMap::new(),
            shared,
            model,
            pending: None,
            history: Vec::new(),
            largest: 150_000,
            writes_settle: false,
        }
    }

    /// Works until a call fails. A call may fail only after [`Shared::ending`] is set.
    pub fn work(mut self) -> Worker {
        while let Ok(()) = self.something() {
            if self.shared.ending.load(Ordering::SeqCst) {
                break;
            }
        }
        self.open.clear();
        self
    }

    fn something(&mut self) -> io::Result<()> {
        let (a, b) = (self.name(), self.name());
        let (file, other) = (self.model.file(&a).is_some(), self.model.names.contains_key(&b));
        let there = self.model.names.contains_key(&a);
        match self.rng.below(20) {
            0..5 => self.replace(&a),
            5..8 if file => self.overwrite(&a),
            8 | 9 if file => self.append(&a),
            10 if file => self.store(&a),
            11 if file => self.leave(&a),
            12 if file => self.settle(&a, true),
            13 if there => self.call(Call::Unlink(a)),
            14 if there && a != b => self.call(Call::Rename(a, b)),
            15 if there && other && a != b => self.call(Call::Exchange(a, b)),
            16 if file && !other => self.call(Call::Link(a, b)),
            17 if !there => self.call(Call::Symlink(format!("to-{}", self.history.len()), a)),
            18 if file && self.is_settled(&a) => {
                let len = self.rng.length(self.largest) as usize;
                self.call(Call::Truncate(a, len))
            }
            19 => self.call(Call::SyncFolder),
            _ => self.replace(&a),
        }
    }

    fn name(&mut self) -> String {
        (*self.rng.pick(&NAMES[..11])).to_owned()
    }

    fn is_settled(&self, name: &str) -> bool {
        self.model.file(name).is_some_and(|(_, file)| file.is_settled())
    }

    fn data(&mut self) -> Arc<Vec<u8>> {
        let len = self.rng.length(self.largest).max(1) as usize;
        Arc::new(self.rng.bytes(len))
    }

    /// Saves a file as careful programs do: a new file, perhaps fsync, close, rename over the old one.
    fn replace(&mut self, name: &str) -> io::Result<()> {
        let new = NAMES[11].to_owned();
        if self.model.names.contains_key(&new) {
            self.call(Call::Unlink(new.clone()))?;
        }
        self.call(Call::Create(new.clone()))?;
        let data = self.data();
        self.call(Call::Write { name: new.clone(), at: 0, data })?;
        let durable = self.rng.one_in(4);
        self.settle(&new, durable)?;
        self.call(Call::Rename(new, name.to_owned()))
    }

    fn overwrite(&mut self, name: &str) -> io::Result<()> {
        for _ in 0..self.rng.range(1, 4) {
            let at = self.rng.length(self.model.file(name).map_or(0, |(_, file)| file.len() as u64)) as usize;
            let data = self.data();
            self.call(Call::Write { name: name.to_owned(), at, data })?;
        }
        let durable = self.rng.one_in(2);
        self.settle(name, durable)
    }

    fn append(&mut self, name: &str) -> io::Result<()> {
        let at = self.model.file(name).map_or(0, |(_, file)| file.len());
        if at > 2_000_000 {
            return self.call(Call::Unlink(name.to_owned()));
        }
        let data = self.data();
        self.call(Call::Write { name: name.to_owned(), at, data })?;
        let durable = self.rng.one_in(4);
        self.settle(name, durable)
    }

    /// Writes and leaves the file open, so that nothing is promised about these bytes.
    fn leave(&mut self, name: &str) -> io::Result<()> {
        let at = self.rng.length(200_000) as usize;
        let data = self.data();
        self.call(Call::Write { name: name.to_owned(), at, data })
    }

    /// Stores through a shared mapping, then calls msync.
    fn store(&mut self, name: &str) -> io::Result<()> {
        let Some((id, file)) = self.model.file(name) else {
            return Ok(());
        };
        if !file.is_settled() || file.len() == 0 {
            return Ok(());
        }
        let len = file.len();
        let at = self.rng.below(len as u64) as usize;
        let mut data = (*self.data()).clone();
        data.truncate(len - at);
        self.opened(id, name)?;
        let call = Call::Write { name: name.to_owned(), at, data: Arc::new(data.clone()) };
        self.pending = Some(call.clone());
        let done = map_and_store(&self.open[&id], at, &data);
        self.returned(call, done)?;
        self.returned(Call::Settle { name: name.to_owned(), durable: true }, Ok(()))
    }

    fn settle(&mut self, name: &str, durable: bool) -> io::Result<()> {
        self.call(Call::Settle { name: name.to_owned(), durable })
    }

    fn call(&mut self, call: Call) -> io::Result<()> {
        self.pending = Some(call.clone());
        let done = self.perform(&call);
        self.returned(call, done)
    }

    fn returned(&mut self, call: Call, done: io::Result<()>) -> io::Result<()> {
        if let Err(error) = done {
            let ending = self.shared.ending.load(Ordering::SeqCst);
            assert!(ending, "{call:?} failed although the filesystem was not killed: {error}");
            return Err(error);
        }
        self.pending = None;
        self.model.apply(&call);
        if let (Call::Write { name, .. }, true) = (&call, self.writes_settle) {
            self.model.apply(&Call::Settle { name: name.clone(), durable: false });
        }
        let durable = call.is_durable();
        self.history.push(call);
        if durable {
            self.shared.durable.store(self.history.len(), Ordering::SeqCst);
        }
        Ok(())
    }

    fn perform(&mut self, call: &Call) -> io::Result<()> {
        let path = |name: &String| self.root.join(name);
        match call {
            Call::Create(name) => {
                let file = File::options().read(true).write(true).create_new(true).open(path(name))?;
                // The number that the model will give it.
                let mut after = self.model.clone();
                after.apply(call);
                let Some(Thing::File(id)) = after.names.get(name) else {
                    return Ok(());
                };
                self.open.insert(*id, file);
                Ok(())
            }
            Call::Write { name, at, data } => {
                let Some((id, _)) = self.model.file(name) else {
                    return Ok(());
                };
                self.opened(id, name)?;
                self.open[&id].write_all_at(data, *at as u64)
            }
            Call::Settle { name, durable } => {
                let Some((id, _)) = self.model.file(name) else {
                    return Ok(());
                };
                self.opened(id, name)?;
                if *durable {
                    return self.open[&id].sync_all();
                }
                let file = self.open.remove(&id).map(std::os::fd::OwnedFd::from);
                // Not dropped, because the result of close(2) matters.
                // SAFETY: the descriptor is owned and not used again.
                let closed = unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file.unwrap())) };
                if closed != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The kernel writes back before close(2) returns, but reports no error when the daemon is
                // dead already. statfs shows whether it was alive.
                Ok(rustix::fs::statfs(&self.root).map(drop)?)
            }
            Call::Truncate(name, len) => File::options().write(true).open(path(name))?.set_len(*len as u64),
            Call::Rename(from, to) => std::fs::rename(path(from), path(to)),
            Call::Exchange(a, b) => Ok(renameat_with(CWD, path(a), CWD, path(b), RenameFlags::EXCHANGE)?),
            Call::Link(from, to) => std::fs::hard_link(path(from), path(to)),
            Call::Unlink(name) => std::fs::remove_file(path(name)),
            Call::Symlink(target, name) => std::os::unix::fs::symlink(target, path(name)),
            Call::SyncFolder => File::open(&self.root)?.sync_all(),
        }
    }

    fn opened(&mut self, id: u64, name: &str) -> io::Result<()> {
        if !self.open.contains_key(&id) {
            let file = File::options().read(true).write(true).open(self.root.join(name))?;
            self.open.insert(id, file);
        }
        Ok(())
    }
}

fn map_and_store(file: &File, at: usize, data: &[u8]) -> io::Result<()> {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let start = at / 4096 * 4096;
    let whole = at - start + data.len();
    // Touching a page of a dead filesystem raises SIGBUS, so the pages are read in first. After a kill
    // between the read and the store, they are still in memory.
    let mut page_in = vec![0; whole];
    file.read_at(&mut page_in, start as u64)?;
    // SAFETY: a new mapping, entirely inside the file, which only this worker changes. It is unmapped before
    // the function returns.
    unsafe {
        // Not with MAP_POPULATE: the kernel was seen to retry for ever to read pages of a filesystem that had
        // just died.
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let map = mmap(std::ptr::null_mut(), whole, access, flags, file, start as u64)?;
        let mut answer = rustix::mm::madvise(map, whole, rustix::mm::Advice::LinuxPopulateWrite);
        if answer.is_ok() {
            std::ptr::copy_nonoverlapping(data.as_ptr(), map.cast::<u8>().add(at - start), data.len());
            answer = msync(map, whole, MsyncFlags::SYNC);
        }
        munmap(map, whole)?;
        Ok(answer?)
    }
}
