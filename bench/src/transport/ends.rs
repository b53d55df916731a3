//! The two ends that are measured. The bench starts itself as each of them.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use base::BlobId;
use base::time::monotonic;
use blob::Sums;
use blob::folder::BlobFolder;
use parking_lot::Mutex;
use peer::arriving::{Arriving, Verify};
use peer::hello::Identity;
use peer::id::{NodeId, Role};
use peer::message::{Answer, Ask, Note};
use peer::net::{Body, Content, Limits, Listed, Net, Options, Peer, Prefix, Service, Without};
use peer::seam::{CopyState, Held};
use peer::secret::Secret;

use super::keys;
use crate::Result;
use crate::process::{own_cpu_seconds, thread_cpu_seconds};
use crate::work::{Fresh, micros_at};

/// Serves blobs over the fleet's transport (used by the bench itself)
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long, default_value = "none")]
    off: String,
    #[arg(long)]
    tls: Option<PathBuf>,
    folder: PathBuf,
}

/// Requests blobs over the fleet's transport (used by the bench itself)
#[derive(Clone, Debug, clap::Args)]
pub struct AskArgs {
    #[arg(long)]
    server: SocketAddr,
    #[arg(long, default_value = "crc")]
    verify: String,
    #[arg(long, default_value = "none")]
    off: String,
    #[arg(long)]
    tls: Option<PathBuf>,
    #[arg(long)]
    what: String,
    #[arg(long, default_value_t = 16)]
    at_once: usize,
    #[arg(long, default_value_t = 0)]
    count: u64,
    /// Files are written past the kernel's page cache, as a node writes prefetched blobs.
    #[arg(long)]
    past_pages: bool,
    folder: PathBuf,
    cache: PathBuf,
}

/// The number of blobs in the receiver's cache, which is full: each new blob evicts one.
const ROOM: usize = 64;

/// A request's timeout, which no measurement reaches.
const TIME: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Blobs(HashMap<BlobId, Held>);

impl Service for Blobs {
    fn ask(&self, _: NodeId, ask: Ask) -> Vec<Answer> {
        vec![Answer::NotMine; ask.blobs.len()]
    }

    fn notes(&self, _: NodeId, _: Vec<Note>) {}

    fn content(&self, id: &BlobId) -> Option<Content> {
        self.0.get(id).cloned().map(Content::Held)
    }

    fn suspect(&self, id: &BlobId) -> CopyState {
        eprintln!("{id} is suspected");
        CopyState::Sound
    }

    fn list(&self, _: Prefix, _: usize) -> Listed {
        Listed::default()
    }
}

fn without(off: &str) -> Without {
    let is = |name: &str| off == name || off == "all";
    Without {
        multiplexing: is("multiplexing"),
        batching: is("batching"),
        low_water: is("low-water"),
        merging: is("merging"),
        growth: is("growth"),
        body: match off {
            "sendfile" | "all" => Body::Copy,
            "splice" => Body::Splice,
            _ => Body::Sendfile,
        },
    }
}

fn start(
    listen: Option<SocketAddr>,
    (verify, without): (Verify, Without),
    tls: Option<&Path>,
    served: Blobs,
) -> Result<Net> {
    let tls = tls.map(keys::read).transpose()?;
    let limits = Limits {
        half_open: 8192,
        half_open_each: 8192,
        requests: 8192,
        handshake: TIME,
        // All connections of a crowd have the same peer name here.
        connections_each: 16 << 10,
        bodies: 8192,
        bodies_each: 8192,
        ..Limits::default()
    };
    let identity = Identity { node: NodeId::random(), role: Role::Node, volume: [1; 16] };
    let secret = Secret::from_text("a secret for measuring only")?;
    let options = Options { identity, secret, tls, listen, verify, limits, without };
    Ok(Net::start(options, Arc::new(served), Arc::new(|line: &str| eprintln!("{line}")))?)
}

/// The blobs' files, in order, and their sums. Afterwards their contents are in memory.
fn blobs(folder: &Path) -> Result<Vec<(PathBuf, Sums)>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    files.into_iter().map(|file| Ok((file.clone(), Sums::of(&fs::read(&file)?)))).collect()
}

/// Serves until its input ends. For each input line it prints the processor time that it has used.
///
/// # Errors
/// It cannot listen, or the blobs cannot be read.
pub fn serve(args: &ServeArgs) -> Result<()> {
    let mut served = Blobs::default();
    for (file, sums) in blobs(&args.folder)? {
        let held = Held { file: Arc::new(File::open(file)?), offset: 0, sums: Arc::new(sums) };
        served.0.insert(held.sums.id(), held);
    }
    let _net = start(Some(args.listen), (Verify::Crc, without(&args.off)), args.tls.as_deref(), served)?;
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("{}", own_cpu_seconds());
    }
    Ok(())
}

/// Sends the requests that `args` describe, and prints the results as JSON.
///
/// # Errors
/// A request failed.
pub fn ask(args: &AskArgs) -> Result<()> {
    let ids: Vec<BlobId> = blobs(&args.folder)?.iter().map(|(_, sums)| sums.id()).collect();
    let verify = if args.verify == "blake3" { Verify::Blake3 } else { Verify::Crc };
    let crowd = args.what == "crowd";
    let mut without = without(&args.off);
    without.multiplexing |= crowd;
    let net = start(None, (verify, without), args.tls.as_deref(), Blobs::default())?;
    let peer = Peer { address: args.server, node: None };
    if args.what == "blobs" {
        return whole(&net, peer, verify, args, &ids);
    }
    if crowd {
        // Opens all connections before the measurement.
        let calls: Vec<_> = (0..args.at_once).map(|_| net.read_range(peer, &ids[0], 0, 4096, TIME)).collect();
        calls.into_iter().try_for_each(|call| call.wait().map(drop))?;
    }
    ranges(net, peer, args, ids)
}

/// Touches as much memory as a receiver's files will take, and frees it. A virtual machine may return free
/// memory to its host within seconds. Then a page that was not touched for a while costs several times what
/// it costs to fill it. So this runs right before the measurement.
pub(super) fn touch(cache: &Path, bytes: u64) -> Result<()> {
    let (file, piece) = (cache.with_extension("warm"), vec![1; 4 << 20]);
    let mut out = File::create(&file)?;
    (0..bytes.div_ceil(piece.len() as u64)).try_for_each(|_| out.write_all(&piece))?;
    drop(out);
    Ok(fs::remove_file(&file)?)
}

/// Blobs that nothing requests, oldest first: the contents of a full cache before the measurement.
fn fill(cache: &BlobFolder, past_pages: bool) -> Result<VecDeque<BlobId>> {
    let (mut fresh, mut bytes) = (Fresh::new(), vec![0; base::size::BLOB_MAX as usize]);
    let one = |_| {
        fresh.fill(&mut bytes);
        let (sums, bytes) = (Sums::of(&bytes), blob::Buffer::from(&bytes[..]));
        match past_pages {
            true => cache.keep_for_later(&sums.id(), &sums, &bytes)?,
            false => cache.keep(&sums.id(), &sums, &bytes)?,
        }
        Ok(sums.id())
    };
    (0..ROOM).map(one).collect()
}

/// Allocates and frees the memory that so many concurrent blobs are received in. A node that has run for a
/// while has that memory. Clearing new pages is no part of a blob's cost.
fn settle(at_once: usize) {
    let one = |_| blob::Buffer::with_len(base::size::BLOB_MAX as usize);
    let mut buffers: Vec<_> = (0..=at_once).map(one).collect();
    buffers.iter_mut().for_each(|buffer| buffer.whole_room().fill(1));
}

fn whole(net: &Net, peer: Peer, verify: Verify, args: &AskArgs, ids: &[BlobId]) -> Result<()> {
    let cache = BlobFolder::create(&args.cache)?;
    settle(args.at_once);
    touch(&args.cache, ROOM as u64 * u64::from(base::size::BLOB_MAX))?;
    let mut keeping = 0.0;
    let (mut under_way, mut kept) = (VecDeque::new(), fill(&cache, args.past_pages)?);
    let (began, cpu, mut bytes) = (monotonic(), own_cpu_seconds(), 0);
    let mut next = ids.iter();
    loop {
        while under_way.len() < args.at_once
            && let Some(id) = next.next()
        {
            let arriving = Arriving::new(*id, verify);
            under_way.push_back((net.fetch_into(peer, &arriving, TIME), arriving));
        }
        let Some((call, arriving)) = under_way.pop_front() else { break };
        call.wait()?;
        let id = arriving.id();
        let (sums, came) = arriving.into_parts().ok_or("a blob is not whole")?;
        let before = thread_cpu_seconds();
        kept.pop_front().map_or(Ok(()), |oldest| cache.retire(&oldest))?;
        match args.past_pages {
            true => cache.keep_for_later(&id, &sums, &came)?,
            false => cache.keep(&id, &sums, &came)?,
        }
        keeping += thread_cpu_seconds() - before;
        kept.push_back(id);
        bytes += came.len();
    }
    let counts = net.counters();
    let said = serde_json::json!({
        "seconds": began.elapsed().as_secs_f64(), "cpu": own_cpu_seconds() - cpu, "bytes": bytes,
        "keeping": keeping,
        "wakeups": counts.wakeups, "connections": counts.made,
    });
    println!("{said}");
    Ok(())
}

/// Small ranges, each requested at the end of another, like a mount's replies.
struct Chain {
    net: Net,
    peer: Peer,
    ids: Vec<BlobId>,
    left: AtomicU64,
    chance: Mutex<Fresh>,
    done: Sender<std::result::Result<Duration, String>>,
}

impl Chain {
    fn next(self: &Arc<Chain>) {
        let more = |left: u64| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return;
        }
        let (which, at) = {
            let mut chance = self.chance.lock();
            (chance.below(self.ids.len() as u64) as usize, chance.below(1024) as u32 * 4096)
        };
        let (own, began) = (Arc::clone(self), monotonic());
        let range = (self.ids[which], at, 4096);
        self.net.read_range_then(self.peer, range, TIME, move |result| {
            let failed = result.is_err();
            let time = result.map(|_| began.elapsed()).map_err(|fail| fail.to_string());
            let _ = own.done.send(time);
            if failed {
                own.left.store(0, Ordering::Relaxed);
            } else {
                own.next();
            }
        });
    }
}

fn ranges(net: Net, peer: Peer, args: &AskArgs, ids: Vec<BlobId>) -> Result<()> {
    let (done, ended) = channel();
    let (left, chance) = (AtomicU64::new(args.count), Mutex::new(Fresh::new()));
    let chain = Arc::new(Chain { net, peer, ids, left, chance, done });
    let (began, cpu, woken) = (monotonic(), own_cpu_seconds(), chain.net.counters().wakeups);
    (0..args.at_once).for_each(|_| chain.next());
    // Polls rarely, because this thread must not cost anything.
    while chain.left.load(Ordering::Relaxed) > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut times = Vec::with_capacity(args.count as usize);
    while (times.len() as u64) < args.count {
        times.push(ended.recv_timeout(TIME)??);
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), own_cpu_seconds() - cpu);
    let (p50, p99) = (micros_at(&mut times, 0.5), micros_at(&mut times, 0.99));
    let woken = chain.net.counters().wakeups - woken;
    let said = serde_json::json!({
        "seconds": seconds, "cpu": cpu, "ops": args.count, "p50": p50, "p99": p99, "wakeups": woken,
    });
    println!("{said}");
    Ok(())
}
