//! The counters of the eBPF programs that watch the mount (crate [`watch`](::watch)).

use std::path::Path;
use std::time::Duration;

use ::watch::mount::{Heat, MountWatch};
use ::watch::object::{Measured, measure};
use ::watch::{Event, WatchError};
use api::error::{Failure, Result};
use api::heat::Program;
use base::time::monotonic_ns;

use super::counters::Rule;
use super::{Noticed, Seen};

/// The programs of one mount.
pub struct Kernel {
    watch: Box<MountWatch>,
    /// Set while the kernel measures what the programs cost.
    measured: Option<Measured>,
}

impl Kernel {
    /// Attaches the programs. Also returns lines that say what they do not see.
    ///
    /// # Errors
    /// The reason why the kernel does not permit them.
    pub fn start(mountpoint: &Path, rule: Rule) -> std::result::Result<(Kernel, Vec<String>), String> {
        let heat = Heat { hot: rule.hot, half_life: rule.half_life };
        let attach = || -> std::result::Result<Kernel, WatchError> {
            let watch = Box::new(MountWatch::attach(mountpoint, heat)?);
            Ok(Kernel { watch, measured: Some(measure()?) })
        };
        let kernel = attach().map_err(|error| error.to_string())?;
        let unseen = kernel.watch.unseen().to_vec();
        Ok((kernel, unseen))
    }

    /// Has the kernel measure the programs, or not. A kernel that refuses is no reason to stop counting.
    pub fn measure(&mut self, on: bool) {
        if self.measured.is_some() != on {
            self.measured = if on { measure().ok() } else { None };
        }
    }

    /// Waits for events, at most so long.
    pub fn wait(&mut self, time: Duration) -> Noticed {
        let events = self.watch.events();
        if events.wait(time).is_err() {
            std::thread::sleep(time);
        }
        let (mut noticed, now) = (Noticed::default(), monotonic_ns());
        events.drain(&mut |event| match event {
            Event::Hot { object, chunk, at, .. } => {
                noticed.hot.push((object, chunk));
                noticed.delay = noticed.delay.max(now.saturating_sub(at));
            }
            Event::Stream { object, chunk, .. } => noticed.streams.push((object, chunk)),
            Event::Unsynced { .. } => {}
        });
        noticed
    }

    /// Returns the chunks that were accessed since that moment, the hottest first.
    pub fn used(&self, since: u64) -> Vec<(u64, u32)> {
        let Ok(mut chunks) = self.watch.chunks() else { return Vec::new() };
        chunks.retain(|chunk| chunk.last >= since && chunk.reads + chunk.maps + chunk.faults > 0);
        // If time does not suffice, the hottest count.
        chunks.sort_unstable_by_key(|chunk| std::cmp::Reverse(chunk.score));
        chunks.iter().map(|chunk| (chunk.ino, chunk.chunk)).collect()
    }

    /// Returns every chunk that the programs know.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn chunks(&self) -> Result<Vec<Seen>> {
        let chunks = self.watch.chunks().map_err(|error| unreadable(&error))?;
        let seen = |chunk: ::watch::mount::Chunk| Seen {
            inode: chunk.ino,
            mib: chunk.chunk,
            score: f64::from(chunk.score) / 1_000.0,
            last: chunk.last,
            hot: chunk.hot,
            reads: chunk.reads,
            maps: chunk.maps,
            faults: chunk.faults,
            pages: chunk.fills.saturating_sub(chunk.evictions),
        };
        Ok(chunks.into_iter().map(seen).collect())
    }

    /// Returns how many chunks and events had no room.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn lost(&self) -> Result<u64> {
        let lost = self.watch.lost().map_err(|error| unreadable(&error))?;
        Ok(lost.chunks + lost.events)
    }

    /// Returns what the programs cost.
    pub fn costs(&self) -> Vec<Program> {
        let costs = self.watch.costs().into_iter();
        costs.map(|cost| Program { name: cost.program, runs: cost.runs, ns: cost.ns }).collect()
    }
}

fn unreadable(error: &WatchError) -> Failure {
    Failure::new("io", "the kernel's counters cannot be read").why(error.to_string())
}
