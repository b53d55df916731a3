//! The two ends that are measured. The bench starts itself as each of them.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::BlobId;
use base::time::monotonic;
use blob::Sums;
use blob::folder::BlobFolder;
use fetch::{Arriving, Verify};
use net::hello::Identity;
use net::id::{NodeId, Role};
use net::message::{Answer, Ask, Note};
use net::seam::{CopyState, Held};
use net::secret::Secret;
use net::transport::{Content, Limits, Listed, Net, Options, Peer, Prefix, Service};

use super::keys;
use crate::Result;
use crate::process::{own_cpu_seconds, thread_cpu_seconds};
use crate::work::Fresh;

/// Serves blobs over the fleet's transport (used by the bench itself)
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    #[arg(long)]
    listen: SocketAddr,
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
    #[arg(long)]
    tls: Option<PathBuf>,
    /// Files are written past the kernel's page cache, as a node writes prefetched blobs.
    #[arg(long)]
    past_pages: bool,
    folder: PathBuf,
    cache: PathBuf,
}

/// The number of blobs in the receiver's cache, which is full: each new blob evicts one.
const ROOM: usize = 64;

/// Blobs in flight at a time.
const AT_ONCE: usize = 16;

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

fn start(listen: Option<SocketAddr>, verify: Verify, tls: Option<&Path>, served: Blobs) -> Result<Net> {
    let tls = tls.map(keys::read).transpose()?;
    let identity = Identity { node: NodeId::random(), role: Role::Node, volume: [1; 16] };
    let secret = Secret::from_text("a secret for measuring only")?;
    let limits = Limits { handshake: TIME, ..Limits::default() };
    let options = Options { identity, secret, tls, listen, verify, limits };
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
    let _net = start(Some(args.listen), Verify::Crc, args.tls.as_deref(), served)?;
    for line in std::io::stdin().lock().lines() {
        line?;
        println!("{}", own_cpu_seconds());
    }
    Ok(())
}

/// Fetches all blobs, and prints the results as JSON.
///
/// # Errors
/// A request failed.
pub fn ask(args: &AskArgs) -> Result<()> {
    let ids: Vec<BlobId> = blobs(&args.folder)?.iter().map(|(_, sums)| sums.id()).collect();
    let verify = if args.verify == "blake3" { Verify::Blake3 } else { Verify::Crc };
    let net = start(None, verify, args.tls.as_deref(), Blobs::default())?;
    let peer = Peer { address: args.server, node: None };
    whole(&net, peer, verify, args, &ids)
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
    settle(AT_ONCE);
    touch(&args.cache, ROOM as u64 * u64::from(base::size::BLOB_MAX))?;
    let mut keeping = 0.0;
    let (mut under_way, mut kept) = (VecDeque::new(), fill(&cache, args.past_pages)?);
    let (began, cpu, mut bytes) = (monotonic(), own_cpu_seconds(), 0);
    let mut next = ids.iter();
    loop {
        while under_way.len() < AT_ONCE
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
