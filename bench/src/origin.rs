//! Over an S3 store: the same work on Covey, JuiceFS, rclone mount and s3fs, all on one MinIO, each in a
//! bucket of its own.
//!
//! "Durable" means that the store has the data. A row of that name includes the wait for the program to say
//! so (`covey flush`; rclone's queue is empty; the others return only then). "Cold" means that the node lost
//! its cache and the kernel every page, including those of the store's own files. The table also shows
//! requests and bytes, counted by a relay in front of the store through which all of them pass.
//!
//! `bare` is no filesystem. It asks the store directly: with 16 ranged GETs of 4 MiB at a time, as the upper
//! bound for a sequential read, and with one GET after another for the chunks of the last part.
//!
//! On loopback, the store and its readers share the processors. So a stream is also read with the store
//! behind a link of 2 Gbit/s, where the link is the shared resource and not the processors.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::time::monotonic;

use crate::Result;
use crate::cells::{self, Tree};
use crate::machine;
use crate::peer::{Peer, Tools, on_path};
use crate::place::{Kind, Place, forget_below};
use crate::process;
use crate::run::{Bench, Cell, Common, Figure};
use crate::sheet::{Bound, Sheet};
use crate::store::{Counts, Store};
use crate::work::{Fresh, micros_at, together};

mod bare;

use bare::Bare;

/// Over an S3 store: compared with JuiceFS, rclone mount and s3fs
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The program minio [default: the one on PATH]; `make minio` builds it
    #[arg(long)]
    minio: Option<PathBuf>,
    /// The program juicefs [default: the one on PATH]
    #[arg(long)]
    juicefs: Option<PathBuf>,
    /// A tree to pack and to clone [default: /usr/include; with --quick /usr/include/linux]
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Size of the large file in MiB [default: 1024; with --quick 128]
    #[arg(long)]
    mib: Option<u64>,
    /// Small files of 4 KiB [default: 10000; with --quick 1000]
    #[arg(long)]
    files: Option<u64>,
    /// Leave these out: juicefs, rclone, s3fs
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
}

/// The chunks of the last part, and the bytes of each: one hour of a stock's order book, cut into a thousand
/// rows of 24 columns of 8 bytes.
const CHUNKS: u64 = 92;
const CHUNK: usize = 1000 * 24 * 8;

/// A request's median time to the first byte for a simulated network and real store.
const NETWORK: Duration = Duration::from_millis(30);

/// A link to a store on other machines, in bytes per second: 2 Gbit/s, the bandwidth of smaller cloud
/// machines.
const LINK: u64 = 250_000_000;
/// Its median time to the first byte: a store in the same data centre.
const SAME_DC: Duration = Duration::from_millis(5);

const SMALL_WRITE: &str = "small files, write";
const SMALL_READ: &str = "small files, cold read";
const LARGE_WRITE: &str = "large file, write";
const LARGE_READ: &str = "large file, cold read";
const LINK_READ: &str = "large file, cold read over a link";
const CHUNK_ROW: &str = "chunks";
const MEMORY: &str = "the daemon's peak memory";
/// Columns that are not filesystems.
const BARE: &str = "bare";
const LIMIT: &str = "limit";

/// Runs the measurement.
///
/// # Errors
/// The store or Covey failed, or the results cannot be saved. The failure of a peer is noted.
pub fn run(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    let minio = args.minio.clone().or_else(|| on_path("minio"));
    let minio = minio.ok_or("no minio: `make minio` builds one, or give its path with --minio")?;
    let store = Store::start(&minio, bench.scratch())?;
    let mut tools = Tools::find(args.juicefs.as_deref(), None)?;
    tools.store = Some(store.access().clone());
    let tree = Tree::make(bench.scratch(), args.common.tree(args.tree.as_deref()))?;
    let mut sheet = bench.sheet("origin", "Over an S3 store");
    sheet.fact("minio", &machine::said(&minio.to_string_lossy(), &["--version"]));
    let mut places = bench.places([bench.setup(Kind::CoveyS3)], &tools)?;
    for peer in Peer::OVER_S3.into_iter().filter(|peer| !args.without.iter().any(|name| name == peer.name()))
    {
        match peer.missing(&tools) {
            Some(why) => sheet.note(format!("{} was skipped: {why}", peer.name())),
            None => match bench.places([bench.setup(Kind::Peer(peer))], &tools) {
                Ok(more) => places.extend(more),
                Err(error) => sheet.note(format!("{} could not be mounted: {error}", peer.name())),
            },
        }
    }
    let mib = args.mib.unwrap_or(args.common.size(1024, 128));
    let files = args.files.unwrap_or(args.common.size(10_000, 1_000));
    let bare = Bare::new(store.access())?;
    bare.put_chunks(CHUNKS, CHUNK)?;
    bare.put("large", mib)?;
    let over = Over { store: &store, bare: &bare, last: RefCell::default() };
    let over = &over;
    let (tree, store, scratch) = (&tree, &store, bench.scratch());
    let cells = [
        Cell::new("untar", move |place| over.timed(place, |place| cells::untar(place, tree))),
        Cell::new("git clone", move |place| over.timed(place, |place| cells::clone(place, tree))),
        Cell::new("first read after a cold start", move |place| over.first_read(place)),
        Cell::new("rm -rf", |place| cells::remove(place)),
        Cell::new(LARGE_WRITE, move |place| over.timed(place, |place| cells::write_large(place, mib))),
        Cell::new(LARGE_READ, move |place| over.large_read(place)),
        Cell::new(LINK_READ, move |place| store.over_link(LINK, SAME_DC, || over.large_read(place))),
        Cell::new(SMALL_WRITE, move |place| {
            let mut figures = over.timed(place, |place| write_small(place, files))?;
            let puts = figures.iter().find(|figure| figure.0 == "PUTs").map_or(0.0, |figure| figure.2);
            figures.push(("PUTs for 1000", "requests", puts * 1000.0 / files as f64));
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(figures)
        }),
        Cell::new(SMALL_READ, move |place| over.small_read(place, files)),
        Cell::new(CHUNK_ROW, move |place| over.chunks(place, scratch)),
        Cell::new(MEMORY, |place| {
            Ok::<Vec<Figure>, _>(vec![(
                "",
                "MiB",
                place.pid().map_or(0.0, |pid| process::memory(pid).peak_mib),
            )])
        }),
    ];
    bench.measure(&mut places, &cells, &mut sheet)?;
    sheet.columns([BARE, LIMIT].map(str::to_owned));
    for _ in 0..bench.common.rounds() {
        forget_below(store.data())?;
        sheet.add(LARGE_READ, BARE, &[("rate", "MiB/s", bare.stream("large", mib)?)], 0.0);
        forget_below(store.data())?;
        let rate = store.over_link(LINK, SAME_DC, || bare.stream("large", mib))?;
        sheet.add(LINK_READ, BARE, &[("rate", "MiB/s", rate)], 0.0);
    }
    targets(&mut sheet);
    sheet.chart_ratios("covey", &["juicefs", "rclone", "s3fs"]);
    drop(cells);
    bench.finish(sheet, places)
}

/// Some targets are fixed numbers. They have a column of their own.
fn targets(sheet: &mut Sheet) {
    sheet.add(SMALL_WRITE, LIMIT, &[("PUTs for 1000", "requests", 5.0)], 0.0);
    sheet.add(MEMORY, LIMIT, &[("", "MiB", 200.0)], 0.0);
    sheet.add(CHUNK_ROW, LIMIT, &[("the cold store : pass 3", "x", 1000.0)], 0.0);
    sheet.target(format!("{SMALL_WRITE}, PUTs for 1000"), "covey", LIMIT, Bound::AtMost(1.0));
    sheet.target(format!("{SMALL_READ}, files"), "covey", "juicefs", Bound::AtLeast(10.0));
    sheet.target(format!("{LARGE_READ}, rate"), "covey", BARE, Bound::AtLeast(0.9));
    sheet.target(format!("{LINK_READ}, rate"), "covey", BARE, Bound::AtLeast(0.9));
    sheet.target(MEMORY, "covey", LIMIT, Bound::AtMost(1.0));
    sheet.target(format!("{CHUNK_ROW}, the cold store : pass 3"), "covey", LIMIT, Bound::AtLeast(1.0));
}

/// The work over the store.
struct Over<'s> {
    store: &'s Store,
    bare: &'s Bare,
    last: RefCell<Option<Counts>>,
}

impl Over<'_> {
    /// Begins to count the store's requests.
    fn begin(&self) {
        *self.last.borrow_mut() = Some(self.store.counts());
    }

    /// The counts since [`Over::begin`].
    fn asked(&self) -> (f64, f64, f64, f64) {
        let (now, before) = (self.store.counts(), self.last.borrow_mut().take().unwrap_or_default());
        let more = |operation: &str| now.of(operation) - before.of(operation);
        let puts = more("putobject") + more("multipart");
        (puts, more("getobject"), now.received - before.received, now.sent - before.sent)
    }

    /// Times `work`, including the wait until the store has the data.
    fn timed(
        &self,
        place: &mut Place,
        work: impl FnOnce(&mut Place) -> Result<Vec<Figure>>,
    ) -> Result<Vec<Figure>> {
        self.begin();
        let begun = monotonic();
        let mut figures = work(place)?;
        place.settle()?;
        figures.push(("until durable", "s", begun.elapsed().as_secs_f64()));
        let (puts, _, received, _) = self.asked();
        figures.push(("PUTs", "requests", puts));
        figures.push(("sent to the store", "MiB", received / f64::from(1 << 20)));
        Ok(figures)
    }

    fn cold(&self, place: &mut Place) -> Result<()> {
        place.settle()?;
        place.lose_cache()?;
        forget_below(self.store.data())
    }

    /// From a stopped program to the first bytes of a file.
    fn first_read(&self, place: &mut Place) -> Result<Vec<Figure>> {
        self.cold(place)?;
        let begun = monotonic();
        place.begin_again()?;
        let mut some = [0; 64];
        let file = first_file(&place.root().join("tree"))?.ok_or("the cell that unpacks must run before")?;
        let _ = File::open(file)?.read(&mut some)?;
        Ok(vec![("", "ms", begun.elapsed().as_secs_f64() * 1e3)])
    }

    fn large_read(&self, place: &mut Place) -> Result<Vec<Figure>> {
        self.cold(place)?;
        place.begin_again()?;
        self.begin();
        let (mut data, mut total) = (vec![0; 1 << 20], 0u64);
        let begun = monotonic();
        let mut file = File::open(place.root().join("large"))?;
        loop {
            match file.read(&mut data)? {
                0 => break,
                got => total += got as u64,
            }
        }
        let spent = begun.elapsed();
        let (_, gets, _, sent) = self.asked();
        Ok(vec![
            ("rate", "MiB/s", (total >> 20) as f64 / spent.as_secs_f64()),
            ("GETs", "requests", gets),
            ("from the store", "MiB", sent / f64::from(1 << 20)),
        ])
    }

    fn small_read(&self, place: &mut Place, files: u64) -> Result<Vec<Figure>> {
        self.cold(place)?;
        place.begin_again()?;
        self.begin();
        let folder = place.root().join("many");
        let workers = 16;
        let spent = together(
            workers,
            move |worker| (folder.clone(), worker),
            move |(folder, worker)| {
                let mut data = Vec::new();
                for number in (worker..files).step_by(workers as usize) {
                    data.clear();
                    File::open(folder.join(number.to_string()))?.read_to_end(&mut data)?;
                    if data.len() != 4096 {
                        return Err(format!("file {number} has {} bytes", data.len()).into());
                    }
                }
                Ok(())
            },
        )?;
        let (_, gets, _, sent) = self.asked();
        Ok(vec![
            ("files", "files/s", files as f64 / spent.as_secs_f64()),
            ("GETs", "requests", gets),
            ("from the store", "MiB", sent / f64::from(1 << 20)),
        ])
    }

    /// Reads the same chunks: from the store itself, without and with a simulated network; in three passes
    /// over the mount, the first of them cold and over that network; and as plain local files.
    fn chunks(&self, place: &mut Place, scratch: &Path) -> Result<Vec<Figure>> {
        let (local, folder) = (scratch.join("chunks"), place.root().join("chunks"));
        for folder in [&local, &folder] {
            write_chunks(folder)?;
        }
        self.cold(place)?;
        let near = self.bare.read_chunks(CHUNKS)?;
        let (store, mut passes) = self.store.with_latency(NETWORK, || {
            let store = self.bare.read_chunks(CHUNKS)?;
            place.begin_again()?;
            let first = p50_of_chunks(&folder)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((store, vec![first]))
        })?;
        for _ in 0..2 {
            passes.push(p50_of_chunks(&folder)?);
        }
        let hot = passes.last().copied().unwrap_or(f64::INFINITY);
        let mut figures = vec![
            ("a local file", "us", p50_of_chunks(&local)?),
            ("the store, cold, 30 ms away", "us", store),
            ("the store, cold, on loopback", "us", near),
        ];
        for (name, time) in ["pass 1, 30 ms away", "pass 2", "pass 3"].into_iter().zip(passes) {
            figures.push((name, "us", time));
        }
        figures.push(("the cold store : pass 3", "x", store / hot));
        figures.push(("the store on loopback : pass 3", "x", near / hot));
        Ok(figures)
    }
}

fn write_chunks(folder: &Path) -> Result<()> {
    let (mut data, mut fresh) = (vec![0; CHUNK], Fresh::new());
    fs::create_dir_all(folder)?;
    for number in 0..CHUNKS {
        fresh.fill(&mut data);
        fs::write(folder.join(number.to_string()), &data)?;
    }
    Ok(())
}

fn p50_of_chunks(folder: &Path) -> Result<f64> {
    let (mut times, mut data) = (Vec::<Duration>::new(), vec![0; CHUNK]);
    for number in 0..CHUNKS {
        let begun = monotonic();
        File::open(folder.join(number.to_string()))?.read_exact(&mut data)?;
        times.push(begun.elapsed());
    }
    Ok(micros_at(&mut times, 0.5))
}

/// Files of 4 KiB in one folder, by 16 writers.
fn write_small(place: &mut Place, files: u64) -> Result<Vec<Figure>> {
    let folder = place.root().join("many");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir(&folder)?;
    let workers = 16;
    let spent = together(
        workers,
        move |worker| (folder.clone(), worker),
        move |(folder, worker)| {
            let (mut data, mut fresh) = ([0; 4096], Fresh::new());
            for number in (worker..files).step_by(workers as usize) {
                fresh.fill(&mut data);
                File::create(folder.join(number.to_string()))?.write_all(&data)?;
            }
            Ok(())
        },
    )?;
    Ok(vec![("files", "files/s", files as f64 / spent.as_secs_f64())])
}

/// The first regular file below a folder, by name.
fn first_file(folder: &Path) -> Result<Option<PathBuf>> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    for entry in entries {
        let kind = fs::symlink_metadata(&entry)?.file_type();
        if kind.is_file() {
            return Ok(Some(entry));
        }
        if kind.is_dir()
            && let Some(found) = first_file(&entry)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
