//! One mount, as the kernel sees it: reads that its page cache answers, its requests, and processes that end
//! without having synced what they wrote.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::HashMap;
use aya::programs::Program;
use serde::Serialize;

use crate::counts::{self, BUCKETS, Histogram, map, present};
use crate::event::Events;
use crate::object::{self, Cost, MOUNT, Setting, WatchError, refused};
use crate::status::{self, OF_MOUNT};

/// Kinds of requests that are counted apart.
const OPCODES: u32 = 64;

/// How heat is counted.
#[derive(Clone, Copy, Debug)]
pub struct Heat {
    /// A chunk is hot from so many accesses on.
    pub hot: u32,
    /// An access counts half after this time.
    pub half_life: Duration,
}

impl Default for Heat {
    fn default() -> Heat {
        Heat { hot: 2, half_life: Duration::from_secs(60) }
    }
}

impl Heat {
    /// The score from which on a chunk is hot. It is rounded: when the second access comes, the first counts
    /// a little less already.
    pub fn score(self) -> f64 {
        f64::from(self.hot) - 0.5
    }

    pub(crate) fn settings(self) -> [(&'static str, Setting); 2] {
        let half_life = u64::try_from(self.half_life.as_nanos()).unwrap_or(u64::MAX);
        [("hot_score", Setting::U32((self.score() * 1_000.0) as u32)), ("half_life", Setting::U64(half_life))]
    }
}

/// One MiB of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunk {
    /// The file's inode number.
    pub ino: u64,
    /// Which MiB.
    pub chunk: u32,
    /// Reads by system calls.
    pub reads: u64,
    /// Groups of pages that mappings found in the page cache.
    pub maps: u64,
    /// Page faults.
    pub faults: u64,
    /// Pages that entered the page cache.
    pub fills: u64,
    /// Pages that left it.
    pub evictions: u64,
    /// Accesses, where older ones count less, in thousandths, at the last access.
    pub score: u32,
    /// Whether it was hot then.
    pub hot: bool,
    /// The last access, in nanoseconds of the kernel's monotonic clock.
    pub last: u64,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// The kernel's number of the kind.
    pub opcode: u32,
    /// How many ended.
    pub count: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// The time of all these requests in nanoseconds, from the queue to the end.
    pub ns: u64,
    /// The times of the single requests, from the queue to the end.
    pub times: Histogram,
}

/// What did not fit into a map, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Chunks that were not counted.
    pub chunks: u64,
    /// Events.
    pub events: u64,
    /// Requests whose time is not known.
    pub requests: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Key {
    ino: u64,
    chunk: u32,
    zero: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Row {
    reads: u64,
    maps: u64,
    faults: u64,
    fills: u64,
    evictions: u64,
    last: u64,
    score: u32,
    hot: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Operation {
    count: u64,
    errors: u64,
    ns: u64,
    histogram: [u64; BUCKETS],
}

// SAFETY: plain numbers without padding, as `struct heat_key` of bpf/mount.bpf.c.
unsafe impl aya::Pod for Key {}
// SAFETY: plain numbers without padding, as `struct heat` of bpf/mount.bpf.c.
unsafe impl aya::Pod for Row {}
// SAFETY: plain numbers without padding, as `struct operation` of bpf/mount.bpf.c.
unsafe impl aya::Pod for Operation {}

/// A mount that is watched, until this is dropped.
pub struct MountWatch {
    object: Ebpf,
    events: Events,
    unseen: Vec<String>,
}

impl MountWatch {
    /// Attaches to the mount that a path is on. A program that cannot be used is left out, and
    /// [`MountWatch::unseen`] says what is not seen therefore.
    ///
    /// # Errors
    /// No program can be used, or the path does not exist.
    pub fn attach(path: &Path, heat: Heat) -> Result<MountWatch, WatchError> {
        let device = std::fs::metadata(path)?.dev();
        // The kernel's own form of a device number.
        let device = rustix::fs::major(device) << 20 | rustix::fs::minor(device);
        let btf = object::btf()?;
        let [hot, half_life] = heat.settings();
        let mut object = object::load(MOUNT, &btf, &[("dev", Setting::U32(device)), hot, half_life])?;
        let (mut unseen, mut attached) = (Vec::new(), 0);
        for program in OF_MOUNT {
            let done = status::load(&mut object, &btf, program).and_then(|()| {
                let Some(Program::BtfTracePoint(point)) = object.program_mut(program.name) else {
                    return Ok(());
                };
                point.attach().map(drop).map_err(|error| refused(program.name, &error))
            });
            match done {
                Ok(()) => attached += 1,
                Err(error @ WatchError::NotPermitted(_)) => return Err(error),
                Err(error) => unseen.push(format!("not seen: {} ({error})", program.sees)),
            }
        }
        if attached == 0 {
            return Err(WatchError::NotThere(unseen.join("; ")));
        }
        let events = object.take_map("events").ok_or_else(|| WatchError::NotThere("no map events".into()))?;
        Ok(MountWatch { object, events: Events::new(events)?, unseen })
    }

    /// Lines that say what is not seen, and why.
    pub fn unseen(&self) -> &[String] {
        &self.unseen
    }

    /// Events. Only one thread reads them.
    pub fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// Every chunk that was accessed.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn chunks(&self) -> Result<Vec<Chunk>, WatchError> {
        let heat: HashMap<_, Key, Row> = HashMap::try_from(map(&self.object, "heat")?)?;
        let rows = heat.iter().filter_map(present);
        rows.map(|row| {
            let (Key { ino, chunk, .. }, row) = row?;
            let Row { reads, maps, faults, fills, evictions, last, score, hot } = row;
            Ok(Chunk { ino, chunk, reads, maps, faults, fills, evictions, score, hot: hot != 0, last })
        })
        .collect()
    }

    /// Requests that ended, by their kind.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn requests(&self) -> Result<Vec<Requests>, WatchError> {
        let mut all = Vec::new();
        for opcode in 0..OPCODES {
            let none = vec![0; BUCKETS];
            let mut sum = Requests { opcode, count: 0, errors: 0, ns: 0, times: Histogram(none) };
            for each in counts::each_cpu::<Operation>(&self.object, "operations", opcode)? {
                sum.count += each.count;
                sum.errors += each.errors;
                sum.ns += each.ns;
                sum.times.0.iter_mut().zip(each.histogram).for_each(|(sum, count)| *sum += count);
            }
            if sum.count > 0 {
                all.push(sum);
            }
        }
        Ok(all)
    }

    /// What did not fit.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn lost(&self) -> Result<Lost, WatchError> {
        let at = |kind| counts::sum(&self.object, "lost", kind);
        Ok(Lost { chunks: at(0)?, events: at(1)?, requests: at(2)? })
    }

    /// What the programs cost ([`object::costs`]).
    pub fn costs(&self) -> Vec<Cost> {
        object::costs(&self.object)
    }
}
