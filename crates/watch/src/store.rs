//! Requests to one object store, of any program: requests and responses on one interface, and the connections
//! of one cgroup.
//!
//! Only plain HTTP/1.1 can be read. A request line must lie in one segment. One that does not is counted as
//! split, and is no request. Covey's own requests name themselves in their User-Agent. They are counted
//! apart, because a fetch from the origin is no access.

use std::fs::File;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::HashMap;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{CgroupAttachMode, LinkOrder, Program, TcAttachType};
use serde::Serialize;

use crate::counts::{self, Histogram, map, present};
use crate::event::Events;
use crate::interface;
use crate::mount::Heat;
use crate::object::{self, Cost, STORE, Setting, WatchError, refused};
use crate::status::{self, OF_STORE};

/// How a cgroup is attached to. It is a link, which takes no flags and always lets other programs be there,
/// too.
pub(crate) const LINK: CgroupAttachMode = CgroupAttachMode::Single;
/// Bytes of a path that are kept.
const PATH: usize = 128;

/// What to watch.
#[derive(Clone, Debug)]
pub struct Target {
    /// The interface on which requests leave.
    pub interface: String,
    /// The store's port.
    pub port: u16,
    /// The cgroup whose connections to that port are tuned and timed, if any.
    pub cgroup: Option<PathBuf>,
    /// How heat is counted.
    pub heat: Heat,
}

/// Sums of everything seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[repr(C)]
pub struct Totals {
    /// Requests, without Covey's own.
    pub requests: u64,
    /// Responses, without those to Covey's own.
    pub responses: u64,
    /// Requests of Covey itself.
    pub own_requests: u64,
    /// Responses to Covey itself.
    pub own_responses: u64,
    /// Requests on a connection that had one before.
    pub keepalive: u64,
    /// Requests for a range.
    pub ranges: u64,
    /// GET requests.
    pub get: u64,
    /// PUT requests.
    pub put: u64,
    /// Other requests.
    pub other: u64,
    /// Responses by the first digit of their status, 2 to 5.
    pub status: [u64; 4],
    /// Request lines that did not end in their segment, so that they were not counted.
    pub split: u64,
    /// Fragments of IP packets, which cannot be read.
    pub fragments: u64,
    /// Segments that were sent again.
    pub retransmitted: u64,
    /// Chunks that did not fit into their map.
    pub lost_chunks: u64,
    /// Events that did not fit into the ring buffer.
    pub lost_events: u64,
    /// Connections of the cgroup that were tuned.
    pub tuned: u64,
    /// Connections that the kernel did not let us tune.
    pub not_tuned: u64,
}

/// One MiB of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Chunk {
    /// The path of its URL, without the query. At most 128 bytes.
    pub path: String,
    /// Which MiB: that in which the requested range begins.
    pub chunk: u32,
    /// Requests.
    pub requests: u64,
    /// Responses.
    pub responses: u64,
    /// Of these, with a status from 400 on.
    pub errors: u64,
    /// The time from requests to the first bytes of their responses, in nanoseconds, in all.
    pub latency_ns: u64,
    /// The last status.
    pub status: u32,
    /// Accesses, where older ones count less, in thousandths, at the last access.
    pub score: u32,
    /// Whether it is hot.
    pub hot: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Key {
    object: u64,
    chunk: u32,
    zero: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Row {
    requests: u64,
    responses: u64,
    errors: u64,
    latency_ns: u64,
    last: u64,
    score: u32,
    hot: u32,
    status: u32,
    path_len: u32,
    path: [u8; PATH],
}

// SAFETY: plain numbers without padding, as `struct totals` of bpf/store.bpf.c.
unsafe impl aya::Pod for Totals {}
// SAFETY: plain numbers without padding, as `struct chunk_key` of bpf/store.bpf.c.
unsafe impl aya::Pod for Key {}
// SAFETY: plain numbers without padding, as `struct chunk` of bpf/store.bpf.c.
unsafe impl aya::Pod for Row {}

impl Totals {
    fn add(&mut self, more: &Totals) {
        let Totals { requests, responses, own_requests, own_responses, keepalive, ranges, .. } = more;
        self.requests += requests;
        self.responses += responses;
        self.own_requests += own_requests;
        self.own_responses += own_responses;
        self.keepalive += keepalive;
        self.ranges += ranges;
        self.get += more.get;
        self.put += more.put;
        self.other += more.other;
        self.status.iter_mut().zip(more.status).for_each(|(sum, count)| *sum += count);
        self.split += more.split;
        self.fragments += more.fragments;
        self.retransmitted += more.retransmitted;
        self.lost_chunks += more.lost_chunks;
        self.lost_events += more.lost_events;
        self.tuned += more.tuned;
        self.not_tuned += more.not_tuned;
    }
}

/// A store that is watched, until this is dropped.
pub struct StoreWatch {
    pub(crate) object: Ebpf,
    events: Events,
    unseen: Vec<String>,
}

impl StoreWatch {
    /// Attaches to an interface and, if one is named, to a cgroup.
    ///
    /// # Errors
    /// The interface or the cgroup does not exist, or the kernel refuses the programs of the interface.
    pub fn attach(target: &Target) -> Result<StoreWatch, WatchError> {
        let mut watch = StoreWatch::load(target, link_header(&target.interface)?)?;
        for (name, way) in
            [("store_requests", TcAttachType::Egress), ("store_responses", TcAttachType::Ingress)]
        {
            let Some(Program::SchedClassifier(program)) = watch.object.program_mut(name) else { continue };
            // TCX: a link that ends with this process. Other programs on the interface go on.
            let how = TcAttachOptions::TcxOrder(LinkOrder::default());
            let done = program.attach_with_options(&target.interface, way, how);
            done.map_err(|error| refused(name, &error))?;
        }
        if let Some(cgroup) = &target.cgroup {
            let folder = open_cgroup(cgroup)?;
            let Some(Program::SockOps(program)) = watch.object.program_mut("store_connections") else {
                return Ok(watch);
            };
            if let Err(error) = program.attach(&folder, LINK) {
                let error = refused("store_connections", &error);
                watch.unseen.push(format!("not seen: round-trip times ({error}); connections are not tuned"));
            }
        }
        Ok(watch)
    }

    /// Loads the programs and attaches none.
    pub(crate) fn load(target: &Target, link_header: u32) -> Result<StoreWatch, WatchError> {
        let btf = object::btf()?;
        let [hot, half_life] = target.heat.settings();
        let settings =
            [("port", Setting::U16(target.port)), ("link_header", Setting::U32(link_header)), hot, half_life];
        let mut object = object::load(STORE, &btf, &settings)?;
        for program in OF_STORE {
            status::load(&mut object, &btf, program)?;
        }
        let events = object.take_map("events").ok_or_else(|| WatchError::NotThere("no map events".into()))?;
        Ok(StoreWatch { object, events: Events::new(events)?, unseen: Vec::new() })
    }

    /// Lines that say what is not seen, and why.
    pub fn unseen(&self) -> &[String] {
        &self.unseen
    }

    /// Events. Only one thread reads them.
    pub fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// Sums of everything seen.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn totals(&self) -> Result<Totals, WatchError> {
        let mut sum = Totals::default();
        counts::each_cpu::<Totals>(&self.object, "totals", 0)?.iter().for_each(|each| sum.add(each));
        Ok(sum)
    }

    /// Every chunk that was requested.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn chunks(&self) -> Result<Vec<Chunk>, WatchError> {
        let chunks: HashMap<_, Key, Row> = HashMap::try_from(map(&self.object, "chunks")?)?;
        let rows = chunks.iter().filter_map(present);
        rows.map(|row| {
            let (Key { chunk, .. }, row) = row?;
            let path = row.path.get(..PATH.min(row.path_len as usize)).unwrap_or_default();
            Ok(Chunk {
                path: String::from_utf8_lossy(path).into_owned(),
                chunk,
                requests: row.requests,
                responses: row.responses,
                errors: row.errors,
                latency_ns: row.latency_ns,
                status: row.status,
                score: row.score,
                hot: row.hot != 0,
            })
        })
        .collect()
    }

    /// Times from a request to the first byte of its response.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn latency(&self) -> Result<Histogram, WatchError> {
        counts::histogram(&self.object, "latency")
    }

    /// Round-trip times of the cgroup's connections.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn round_trips(&self) -> Result<Histogram, WatchError> {
        counts::histogram(&self.object, "round_trip")
    }

    /// What the programs cost ([`object::costs`]).
    pub fn costs(&self) -> Vec<Cost> {
        object::costs(&self.object)
    }
}

/// The length of the header before IP on an interface.
fn link_header(interface: &str) -> Result<u32, WatchError> {
    const ETHERNET: u16 = 1;
    const LOOPBACK: u16 = 772;
    Ok(match interface::link_type(interface)? {
        ETHERNET | LOOPBACK => 14,
        _ => 0,
    })
}

/// Opens the folder of a cgroup of version 2.
///
/// # Errors
/// It is no such folder.
pub(crate) fn open_cgroup(path: &Path) -> Result<File, WatchError> {
    let is_cgroup = path.join("cgroup.procs").exists() && path.join("cgroup.controllers").exists();
    if !is_cgroup {
        return Err(WatchError::NotThere(format!(
            "{} is no cgroup of version 2: name a folder below /sys/fs/cgroup that has a file cgroup.controllers",
            path.display()
        )));
    }
    Ok(File::open(path)?)
}

#[cfg(test)]
mod tests;
