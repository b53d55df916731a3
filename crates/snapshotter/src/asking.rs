//! Questions to the folder of images.
//!
//! A store is behind it, or a daemon that hangs. So no question is asked under a lock, each has a limit, and
//! a thread of its own waits for the answer. What need not be asked is not held up by what must.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::Deadline;
use oci::digest::Digest;
use oci::folder;
use parking_lot::{Condvar, Mutex};

use crate::layers::Layers;

/// How long a question may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long a question may take after one that had no answer.
const BRIEF: Duration = Duration::from_secs(1);
/// Questions at the same time, with those that nobody waits for any more.
const AT_ONCE: usize = 16;

/// Asks the folder of images.
pub struct Asking {
    layers: Arc<dyn Layers>,
    /// The store's link to it.
    source: PathBuf,
    turns: Arc<Turns>,
    /// The layers that it had when it was listed last.
    known: Mutex<Option<BTreeSet<Digest>>>,
    pub(crate) limit: Duration,
}

#[derive(Default)]
struct Turns {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    taken: usize,
    /// The last question had no answer.
    silent: bool,
}

/// The right to ask. Others have it when it is dropped.
struct Turn(Arc<Turns>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.state.lock().taken -= 1;
        self.0.freed.notify_one();
    }
}

impl Asking {
    /// Asks these layers. `source` is a link to their folder.
    pub fn new(layers: Arc<dyn Layers>, source: PathBuf) -> Asking {
        Asking { layers, source, turns: Arc::default(), known: Mutex::new(None), limit: LIMIT }
    }

    /// Whether there is a layer with this chain id, as [`Layers::has`]. If there is no answer, what the
    /// folder did not have when it was listed last counts as not there: an image that has nothing to do
    /// with the folder does not wait for it.
    pub fn has(&self, chain: Digest) -> io::Result<bool> {
        match (self.ask(move |layers| layers.has(&chain)), &*self.known.lock()) {
            (Err(_), Some(known)) if !known.contains(&chain) => Ok(false),
            (found, _) => found,
        }
    }

    /// As [`Layers::check`].
    pub fn check(&self) -> io::Result<()> {
        self.ask(|layers| layers.check())
    }

    /// What is where the folders of these layers should be.
    pub fn look(&self, layers: Vec<Digest>) -> io::Result<Vec<io::Result<Metadata>>> {
        if layers.is_empty() {
            return Ok(Vec::new());
        }
        let source = self.source.clone();
        self.ask(move |_| Ok(layers.iter().map(|layer| look(&source, layer)).collect()))
    }

    /// Notes which layers there are, for the time in which there is no answer.
    pub fn remember(&self) -> io::Result<()> {
        let names = self.ask(|layers| layers.names())?;
        *self.known.lock() = Some(names);
        Ok(())
    }

    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn Layers) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let silent = || io::Error::new(ErrorKind::TimedOut, "there is no answer in time");
        let (turn, deadline) = self.turn().ok_or_else(silent)?;
        let (say, said) = mpsc::channel();
        let (layers, left) = (Arc::clone(&self.layers), deadline.left());
        base::thread::spawn("covey-layers", move || {
            if !layers.answers(left) {
                return turn.0.state.lock().silent = true;
            }
            let answer = question(&*layers);
            turn.0.state.lock().silent = false;
            drop(turn);
            let _ = say.send(answer);
        })?;
        said.recv_timeout(deadline.left()).map_err(|_| {
            self.turns.state.lock().silent = true;
            silent()
        })?
    }

    fn turn(&self) -> Option<(Turn, Deadline)> {
        let mut state = self.turns.state.lock();
        let deadline = Deadline::after(if state.silent { self.limit.min(BRIEF) } else { self.limit });
        while state.taken >= AT_ONCE {
            if self.turns.freed.wait_for(&mut state, deadline.left()).timed_out() {
                return None;
            }
        }
        state.taken += 1;
        Some((Turn(Arc::clone(&self.turns)), deadline))
    }
}

/// What is where the folder of a layer should be. Only links that this program has made are followed: a layer
/// that is a link itself, in a tree of others, would lead to a folder of this machine.
fn look(source: &Path, layer: &Digest) -> io::Result<Metadata> {
    let layers = fs::symlink_metadata(source.join("layers"))?;
    if layers.is_dir() { fs::symlink_metadata(source.join(folder::layer(layer))) } else { Ok(layers) }
}
