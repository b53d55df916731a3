//! F6: the same work on Covey and on other FUSE filesystems. All store their data in folders of the same
//! disk.

use std::path::PathBuf;

use crate::Result;
use crate::cells::{self, Tree};
use crate::machine;
use crate::parallel::Load;
use crate::peer::{Peer, Tools};
use crate::place::Kind;
use crate::run::{Bench, Cell, Common};
use crate::sheet::{Bound, Sheet};

/// F6: compared with JuiceFS and go-fuse's loopback
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The program juicefs [default: the one on PATH]
    #[arg(long)]
    juicefs: Option<PathBuf>,
    /// go-fuse's example program loopback
    #[arg(long)]
    loopback: Option<PathBuf>,
    /// A tree to pack and to clone [default: /usr/include; with --quick /usr/include/linux]
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Size of the large file in MiB [default: 1024; with --quick 128]
    #[arg(long)]
    mib: Option<u64>,
}

/// Names of the rows with a separate target.
const CREATE: &str = "create 4 KiB files";
const WARM: &str = "open+read+close of 64 KiB, warm, 1 thread";
const PARALLEL: &str = "1024 files by 256 workers";

/// Runs the measurement.
///
/// # Errors
/// Covey or ext4 failed, or the results cannot be saved. The failure of a peer is noted.
pub fn run(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    let tools = Tools::find(args.juicefs.as_deref(), args.loopback.as_deref())?;
    let tree = Tree::make(bench.scratch(), args.common.tree(args.tree.as_deref()))?;
    let mut sheet = bench.sheet("peers", "F6, beside other FUSE filesystems");
    if let Some(juicefs) = &tools.juicefs {
        sheet.fact("juicefs", &machine::said(&juicefs.to_string_lossy(), &["version"]));
    }
    let mut places = bench.places([Kind::Covey, Kind::Ext4].map(|kind| bench.setup(kind)), &tools)?;
    for peer in Peer::ALL {
        if let Some(why) = peer.missing(&tools) {
            println!("{} is skipped: {why}", peer.name());
            sheet.note(format!("{} was skipped: {why}", peer.name()));
            continue;
        }
        match bench.places([bench.setup(Kind::Peer(peer))], &tools) {
            Ok(more) => places.extend(more),
            Err(error) => sheet.note(format!("{} could not be mounted: {error}", peer.name())),
        }
    }
    sheet.note("rclone and s3fs keep their bytes in an S3 store: see the figure `origin`.");
    let mib = args.mib.unwrap_or(args.common.size(1024, 128));
    let (reads, creates) = (args.common.size(12_000, 2_400), args.common.size(1_000, 200));
    let load = Load { workers: 256, files: 1024 };
    let cells = [
        Cell::new(CREATE, |place| cells::creates(place, creates)),
        Cell::new("untar", |place| cells::untar(place, &tree)),
        Cell::new("git clone", |place| cells::clone(place, &tree)),
        Cell::new("rm -rf", |place| cells::remove(place)),
        Cell::new(PARALLEL, move |place| load.pass(place, false)),
        Cell::new(WARM, |place| cells::warm_reads(place, 1, reads)),
        Cell::new("write a large file, with fsync", |place| cells::write_large(place, mib)),
        Cell::new("read it, warm", |place| cells::read_large(place, false)),
        Cell::new("read it, cold", |place| cells::read_large(place, true)),
    ];
    bench.measure(&mut places, &cells, &mut sheet)?;
    targets(&mut sheet);
    sheet.chart_ratios("covey", &["ext4", "juicefs sqlite", "juicefs redis", "go-fuse loopback"]);
    bench.finish(sheet, places)
}

/// Faster in every row, and five times as fast in four of them.
fn targets(sheet: &mut Sheet) {
    let first = format!("{PARALLEL}, first read");
    let warm = format!("{WARM}, p50");
    for juice in [Peer::JuiceSqlite, Peer::JuiceRedis].map(Peer::name) {
        for row in [CREATE, "untar", "rm -rf", &first] {
            sheet.target(row, "covey", juice, Bound::AtMost(0.2));
        }
        for row in ["git clone", &warm] {
            sheet.target(row, "covey", juice, Bound::AtMost(1.0));
        }
        for row in ["write a large file, with fsync", "read it, warm", "read it, cold"] {
            sheet.target(row, "covey", juice, Bound::AtLeast(1.0));
        }
    }
}
