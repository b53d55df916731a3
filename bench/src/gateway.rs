//! The S3 gateway beside MinIO: one load generator against both servers, in turns, on the same disk.
//!
//! One request at a time shows what a request costs: of its time, the processor time of the generator itself
//! is subtracted. Eight at a time show the rate. Processor time of each server is measured too.

mod servers;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use base::time::monotonic;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::Runtime;

use crate::Result;
use crate::process;
use crate::run::{Bench, Common, progress};
use crate::sheet::{Bound, Sheet};
use crate::work::Fresh;
use servers::Server;

/// The S3 gateway beside MinIO: GET, PUT and list
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The program minio
    #[arg(long)]
    minio: PathBuf,
    /// Objects in the listing [default: 100000; with --quick 2000]
    #[arg(long)]
    listed: Option<u64>,
}

const COVEY: &str = "covey s3";
const MINIO: &str = "minio";
const SMALL: usize = 4 << 10;
const LARGE: usize = 8 << 20;
/// Requests at a time, where it is not one.
const AT_ONCE: usize = 8;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Put,
}

/// Requests of one kind and size.
struct Load {
    row: &'static str,
    kind: Kind,
    size: usize,
    count: u64,
    at_once: usize,
}

/// Runs the measurement.
///
/// # Errors
/// A server failed, or the results cannot be saved.
pub fn run(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut sheet = bench.sheet("s3", "The S3 gateway, beside MinIO");
    sheet.columns([COVEY, MINIO].map(str::to_owned));
    let servers = [
        Server::covey(COVEY, &bench.covey, bench.scratch())?,
        Server::minio(MINIO, &args.minio, bench.scratch())?,
    ];
    let (small, large) = (args.common.size(2_000, 200), args.common.size(32, 4));
    let loads = [
        Load { row: "GET of 4 KiB", kind: Kind::Get, size: SMALL, count: small, at_once: 1 },
        Load {
            row: "GET of 4 KiB, 8 at a time",
            kind: Kind::Get,
            size: SMALL,
            count: small,
            at_once: AT_ONCE,
        },
        Load { row: "GET of 8 MiB", kind: Kind::Get, size: LARGE, count: large, at_once: 1 },
        Load { row: "PUT of 4 KiB", kind: Kind::Put, size: SMALL, count: small, at_once: 1 },
        Load {
            row: "PUT of 4 KiB, 8 at a time",
            kind: Kind::Put,
            size: SMALL,
            count: small,
            at_once: AT_ONCE,
        },
        Load { row: "PUT of 8 MiB", kind: Kind::Put, size: LARGE, count: large, at_once: 1 },
    ];
    let wanted = |row: &str| args.common.only.as_ref().is_none_or(|only| row.contains(only.as_str()));
    let loads: Vec<Load> = loads.into_iter().filter(|load| wanted(load.row)).collect();
    for server in &servers {
        let gets = loads.iter().filter(|load| load.kind == Kind::Get);
        for (size, count) in gets.map(|load| (load.size, load.count)).collect::<BTreeSet<_>>() {
            fill(&runtime, server, size, count)?;
        }
    }
    for round in 0..args.common.rounds() {
        for load in &loads {
            // The order changes from round to round.
            for n in 0..servers.len() {
                let server = &servers[(n + round) % servers.len()];
                progress(&format!("round {}: {} on {}", round + 1, load.row, server.name));
                pass(&runtime, server, load, round, &mut sheet)?;
            }
        }
    }
    let listed = args.listed.unwrap_or(args.common.size(100_000, 2_000));
    for server in servers.iter().filter(|_| wanted(LIST)) {
        list(&runtime, server, listed, args.common.rounds(), &mut sheet)?;
    }
    progress("");
    targets(&mut sheet, &loads);
    drop(servers);
    bench.finish(sheet, Vec::new())
}

fn targets(sheet: &mut Sheet, loads: &[Load]) {
    for load in loads {
        let bound = if load.size == SMALL { 0.5 } else { 1.0 };
        sheet.target(load.row, COVEY, MINIO, Bound::AtMost(bound));
        sheet.target(format!("{}, server's CPU", load.row), COVEY, MINIO, Bound::AtMost(1.0));
    }
    for row in [LIST.to_owned(), format!("{LIST}, server's CPU")] {
        sheet.target(row, COVEY, MINIO, Bound::AtMost(1.0));
    }
    sheet
        .note("Times are per request. With one at a time, the generator's own processor time is subtracted.");
    sheet.note("covey s3 syncs each PUT to the disk before it answers.");
}

fn key(size: usize, round: Option<usize>, number: u64) -> Key {
    Key::from(match round {
        None => format!("get/{size}/{number}"),
        Some(round) => format!("put/{size}/{round}/{number}"),
    })
}

fn payload(fresh: &mut Fresh, size: usize) -> PutPayload {
    let mut data = vec![0; size];
    fresh.fill(&mut data);
    PutPayload::from(data)
}

/// Stores the objects that are read later.
fn fill(runtime: &Runtime, server: &Server, size: usize, count: u64) -> Result<()> {
    let mut fresh = Fresh::new();
    let objects = (0..count).map(|number| (key(size, None, number), payload(&mut fresh, size)));
    put_all(runtime, &server.client, objects, AT_ONCE)
}

fn put_all(
    runtime: &Runtime,
    client: &Arc<dyn ObjectStore>,
    objects: impl Iterator<Item = (Key, PutPayload)>,
    at_once: usize,
) -> Result<()> {
    let puts = stream::iter(objects).map(|(key, bytes)| {
        let client = client.clone();
        async move { client.put(&key, bytes).await.map(drop) }
    });
    Ok(runtime.block_on(puts.buffer_unordered(at_once).try_collect::<()>())?)
}

fn get_all(
    runtime: &Runtime,
    client: &Arc<dyn ObjectStore>,
    keys: impl Iterator<Item = Key>,
    at_once: usize,
) -> Result<u64> {
    let gets = stream::iter(keys).map(|key| {
        let client = client.clone();
        async move { client.get(&key).await?.bytes().await.map(|bytes| bytes.len() as u64) }
    });
    let sum = gets.buffer_unordered(at_once).try_fold(0, |sum, len| async move { Ok(sum + len) });
    Ok(runtime.block_on(sum)?)
}

/// One pass of a load on one server.
fn pass(runtime: &Runtime, server: &Server, load: &Load, round: usize, sheet: &mut Sheet) -> Result<()> {
    let mut fresh = Fresh::new();
    let objects: Vec<(Key, PutPayload)> = match load.kind {
        Kind::Get => Vec::new(),
        Kind::Put => {
            let round = round * 2 + usize::from(load.at_once > 1);
            (0..load.count)
                .map(|n| (key(load.size, Some(round), n), payload(&mut fresh, load.size)))
                .collect()
        }
    };
    let (cpu, own, begun) = (process::cpu_seconds(server.pid()), process::own_cpu_seconds(), monotonic());
    match load.kind {
        Kind::Put => put_all(runtime, &server.client, objects.into_iter(), load.at_once)?,
        Kind::Get => {
            let keys = (0..load.count).map(|number| key(load.size, None, number));
            let got = get_all(runtime, &server.client, keys, load.at_once)?;
            if got != load.count * load.size as u64 {
                return Err(format!("{} gave {got} bytes for {}", server.name, load.row).into());
            }
        }
    }
    let wall = begun.elapsed().as_secs_f64();
    let own = process::own_cpu_seconds() - own;
    let cpu = process::cpu_seconds(server.pid()) - cpu;
    let spent = if load.at_once == 1 { (wall - own).max(0.0) } else { wall };
    let each = |seconds: f64| seconds * 1e6 / load.count as f64;
    let figures = [("", "us", each(spent)), ("server's CPU", "us", each(cpu))];
    sheet.add(load.row, server.name, &figures, cpu);
    Ok(())
}

const LIST: &str = "list all objects of a bucket";

/// Lists many small objects, a thousand in an answer.
fn list(runtime: &Runtime, server: &Server, count: u64, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    progress(&format!("{count} objects for the listing on {}", server.name));
    let objects =
        (0..count).map(|n| (Key::from(format!("list/{:03}/{n:08}", n % 100)), PutPayload::from_static(b"x")));
    put_all(runtime, &server.client, objects, AT_ONCE)?;
    for _ in 0..rounds {
        let (cpu, begun) = (process::cpu_seconds(server.pid()), monotonic());
        let prefix = Key::from("list");
        let found = runtime
            .block_on(server.client.list(Some(&prefix)).try_fold(0u64, |n, _| async move { Ok(n + 1) }))?;
        if found != count {
            return Err(format!("{} listed {found} of {count} objects", server.name).into());
        }
        let cpu = process::cpu_seconds(server.pid()) - cpu;
        let wall = begun.elapsed().as_secs_f64();
        sheet.add(LIST, server.name, &[("", "ms", wall * 1e3), ("server's CPU", "ms", cpu * 1e3)], cpu);
    }
    Ok(())
}
