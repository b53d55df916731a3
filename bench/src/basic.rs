//! The basic figures: what everyday work costs on Covey, on ext4, on tmpfs and on an empty FUSE filesystem.

use std::path::PathBuf;

use crate::Result;
use crate::cells::{self, Tree};
use crate::peer::Tools;
use crate::place::Kind;
use crate::run::{Bench, Cell, Common};

/// Everyday work, compared with ext4, tmpfs and an empty FUSE filesystem
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// A tree to pack and to clone [default: /usr/include; with --quick /usr/include/linux]
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Size of the large file in MiB [default: 1024; with --quick 128]
    #[arg(long)]
    mib: Option<u64>,
}

/// All cells, in the order in which a round runs them: `rm -rf` removes what untar and git clone created.
///
/// # Errors
/// A place failed, or the results cannot be saved.
pub fn run(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    let tree = Tree::make(bench.scratch(), args.common.tree(args.tree.as_deref()))?;
    let mib = args.mib.unwrap_or(args.common.size(1024, 128));
    let (reads, cycles) = (args.common.size(24_000, 4_800), args.common.size(3_000, 600));
    let writes = args.common.size(16_000, 4_000);
    let cells = [
        Cell::new("open+read+close of 64 KiB, warm, 1 thread", |place| cells::warm_reads(place, 1, reads)),
        Cell::new("open+read+close of 64 KiB, warm, 16 threads", |place| cells::warm_reads(place, 16, reads)),
        Cell::new("create+write 4 KiB+close+unlink", |place| cells::cycles(place, cycles)),
        Cell::new("writes of 4107 bytes", |place| cells::small_writes(place, writes)),
        Cell::new("untar", |place| cells::untar(place, &tree)).not_on_null(),
        Cell::new("git clone", |place| cells::clone(place, &tree)).not_on_null(),
        Cell::new("rm -rf", |place| cells::remove(place)).not_on_null(),
        Cell::new("write a large file, with fsync", |place| cells::write_large(place, mib)).not_on_null(),
        Cell::new("read it, warm", |place| cells::read_large(place, false)).not_on_null(),
        Cell::new("read it, cold", |place| cells::read_large(place, true)).not_on_null(),
    ];
    let kinds = [Kind::Covey, Kind::Ext4, Kind::Tmpfs, Kind::Null];
    let mut places = bench.places(kinds.map(|kind| bench.setup(kind)), &Tools::none())?;
    let mut sheet = bench.sheet("basic", "Basic figures");
    bench.measure(&mut places, &cells, &mut sheet)?;
    sheet.chart_ratios("covey", &["ext4", "tmpfs", "null"]);
    bench.finish(sheet, places)
}
