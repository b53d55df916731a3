//! Memory of the daemons and bytes on disk, over time.
//!
//! A thread samples each daemon's memory every 200 ms, and the disk space every second: for ext4 what it
//! reports as used, for a volume in a folder the size of its files. A volume in memory has nothing on disk;
//! what it stores is recorded at the end of each step.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::time::monotonic;

use super::place::{Kind, Place, memory_kib};
use crate::Result;

const EVERY: Duration = Duration::from_millis(200);
/// Walking a volume's folder costs a little, and once a second is enough for a chart.
const DISK_EVERY: u32 = 5;

/// Points in time in seconds since the start, each with a number of bytes.
pub type Line = Vec<(f64, u64)>;

/// The recorded samples.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// Memory of each place's daemon.
    pub memory: BTreeMap<Kind, Line>,
    /// Bytes on disk; for a volume in memory, the bytes stored.
    pub stored: BTreeMap<Kind, Line>,
    /// When each step began, and its name.
    pub marks: Vec<(f64, String)>,
}

struct Shared {
    began: Instant,
    lines: Mutex<Lines>,
    stop: AtomicBool,
}

impl Shared {
    fn with(&self, change: impl FnOnce(&mut Lines, f64)) {
        let now = self.began.elapsed().as_secs_f64();
        change(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner), now);
    }
}

/// A running monitor.
pub struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Watched {
    kind: Kind,
    pid: Arc<AtomicU32>,
    root: PathBuf,
    volume: PathBuf,
}

impl Monitor {
    /// Starts to sample.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(places: &[Place]) -> Result<Monitor> {
        let shared =
            Arc::new(Shared { began: monotonic(), lines: Mutex::default(), stop: AtomicBool::new(false) });
        let watched: Vec<_> = places
            .iter()
            .map(|place| Watched {
                kind: place.kind,
                pid: Arc::clone(&place.pid),
                root: place.root().to_owned(),
                volume: place.volume(),
            })
            .collect();
        let ours = Arc::clone(&shared);
        let thread = base::thread::spawn("monitor", move || look(&ours, &watched))?;
        Ok(Monitor { shared, thread: Some(thread) })
    }

    /// Records that a step begins.
    pub fn mark(&self, what: String) {
        self.shared.with(|lines, now| lines.marks.push((now, what)));
    }

    /// Records the bytes that a volume in memory stores.
    pub fn stored(&self, kind: Kind, bytes: u64) {
        self.shared.with(|lines, now| lines.stored.entry(kind).or_default().push((now, bytes)));
    }

    /// Ends it and returns the samples.
    pub fn finish(mut self) -> Lines {
        self.end();
        self.shared.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.end();
    }
}

fn look(shared: &Shared, watched: &[Watched]) {
    let mut turn = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        for place in watched {
            let pid = place.pid.load(Ordering::Relaxed);
            let held = if pid == 0 { 0 } else { memory_kib(pid, "VmRSS:") << 10 };
            if held > 0 {
                shared.with(|lines, now| lines.memory.entry(place.kind).or_default().push((now, held)));
            }
            let on_disk = (turn % DISK_EVERY == 0).then(|| place.on_disk()).flatten();
            if let Some(bytes) = on_disk {
                shared.with(|lines, now| lines.stored.entry(place.kind).or_default().push((now, bytes)));
            }
        }
        turn += 1;
        std::thread::sleep(EVERY);
    }
}

impl Watched {
    fn on_disk(&self) -> Option<u64> {
        match self.kind {
            Kind::Mem => None,
            Kind::Covey => Some(taken_up(&self.volume)),
            Kind::Ext4 => {
                // During the remount for a cold walk, this would describe the filesystem below.
                let mounted = rustix::fs::stat(&self.root).ok()?.st_dev
                    != rustix::fs::stat(self.root.parent()?).ok()?.st_dev;
                let space = rustix::fs::statvfs(&self.root).ok()?;
                mounted.then(|| (space.f_blocks - space.f_bfree) * space.f_frsize)
            }
        }
    }
}

/// Disk space of a folder's files, each file once. Files that are removed meanwhile are left out.
fn taken_up(folder: &Path) -> u64 {
    let mut seen = std::collections::HashSet::new();
    let (mut folders, mut bytes) = (vec![folder.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                folders.push(entry.path());
            } else if seen.insert(meta.ino()) {
                bytes += meta.blocks() * 512;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_is_counted_once() {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("below")).unwrap();
        fs::write(scratch.path().join("below/a"), vec![1; 100_000]).unwrap();
        let one = taken_up(scratch.path());
        assert!(one >= 100_000);
        fs::hard_link(scratch.path().join("below/a"), scratch.path().join("b")).unwrap();
        assert_eq!(taken_up(scratch.path()), one);
    }
}
