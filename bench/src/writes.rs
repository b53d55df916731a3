//! F4: writes. 4107 bytes at a time, to files of several lengths, which shows whether time and memory grow
//! with the length; one large file written with fsync, and read cold and warm; and a large file read through
//! a private mapping, as safetensors are loaded.

use std::fs::{self, File};
use std::io::Write;

use base::time::monotonic;

use crate::Result;
use crate::cells;
use crate::peer::Tools;
use crate::place::{Kind, Place};
use crate::process;
use crate::run::{Bench, Cell, Common, Figure};
use crate::sheet::{Bound, Sheet};
use crate::work::Fresh;

/// F4: small sequential writes, large files, a mapping walked
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Size of the large file in MiB [default: 1024; with --quick 128]
    #[arg(long)]
    mib: Option<u64>,
    /// Size of the mapped file in MiB [default: 2048; with --quick 256]
    #[arg(long)]
    map_mib: Option<u64>,
}

/// Runs the measurement.
///
/// # Errors
/// A place failed, or the results cannot be saved.
pub fn run(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    let mut setups: Vec<_> = [Kind::Covey, Kind::Memory, Kind::Ext4].map(|kind| bench.setup(kind)).into();
    if args.common.options.is_none() {
        let mut without = bench.setup(Kind::Covey).named("covey writeback=off");
        without.options = Some("writeback=off".to_owned());
        setups.push(without);
    }
    let mut places = bench.places(setups, &Tools::none())?;
    let mut sheet = bench.sheet("writes", "F4, writes");
    let common = &args.common;
    let mib = args.mib.unwrap_or(common.size(1024, 128));
    let map_mib = args.map_mib.unwrap_or(common.size(2048, 256));
    let counts = [1, 2, 4].map(|times| times * common.size(16_000, 2_000));
    let mut cells = Vec::new();
    for count in counts {
        cells.push(Cell::new(small_name(count), move |place| small_writes(place, count)));
    }
    let large = format!("file of {mib} MiB");
    cells.extend([
        Cell::new(format!("{large}: write with fsync"), move |place| cells::write_large(place, mib)),
        Cell::new(format!("{large}: read cold"), |place| cells::read_large(place, true)),
        Cell::new(format!("{large}: read warm"), |place| cells::read_large(place, false)),
        Cell::new(walk_name(map_mib), move |place| walk(place, map_mib)),
    ]);
    bench.measure(&mut places, &cells, &mut sheet)?;
    for count in counts {
        sheet.target(format!("{}, p50", small_name(count)), "covey", "ext4", Bound::AtMost(1.2));
    }
    for (what, least) in [("write with fsync", 0.8), ("read cold", 0.8), ("read warm", 0.9)] {
        sheet.target(format!("{large}: {what}"), "covey", "ext4", Bound::AtLeast(least));
    }
    for when in ["cold", "warm"] {
        let row = format!("{}, {when}", walk_name(map_mib));
        sheet.target(row, "covey", "ext4", Bound::Shown);
    }
    linear(&mut sheet, counts);
    sheet.note(
        "The mapping has no target of its own; 1.25 is what a cold read of 0.8 times the speed comes to.",
    );
    sheet.chart_ratios("covey", &["ext4"]);
    bench.finish(sheet, places)
}

fn small_name(count: u64) -> String {
    format!("{count} writes of 4107 bytes")
}

fn walk_name(mib: u64) -> String {
    format!("walk through a mapping of {mib} MiB")
}

/// Measures the times of small writes, and the daemon's peak memory meanwhile.
fn small_writes(place: &Place, count: u64) -> Result<Vec<Figure>> {
    place.pid().into_iter().for_each(process::forget_peak);
    let mut figures = cells::small_writes(place, count)?;
    if let Some(pid) = place.pid() {
        figures.push(("peak memory", "MiB", process::memory(pid).peak_mib));
    }
    Ok(figures)
}

/// Notes how the time per write changes with four times the writes: 1 is linear.
fn linear(sheet: &mut Sheet, counts: [u64; 3]) {
    for place in ["covey", "mem", "ext4"] {
        let at = |count, figure: &str| sheet.median(&format!("{}, {figure}", small_name(count)), place);
        if let (Some(few), Some(many)) = (at(counts[0], "mean with close"), at(counts[2], "mean with close"))
        {
            let line = format!(
                "{place}: a write among {} takes {:.2} times one among {}",
                counts[2],
                many / few,
                counts[0]
            );
            sheet.note(line);
        }
    }
    let memory = |count| sheet.median(&format!("{}, peak memory", small_name(count)), "covey");
    if let (Some(few), Some(many)) = (memory(counts[0]), memory(counts[2])) {
        let line = format!(
            "covey: the daemon's peak memory is {few:.0} MiB, and {many:.0} MiB for four times the writes"
        );
        sheet.note(line);
    }
}

/// Touches every page of a file, in order, through a private mapping: first cold, then again.
fn walk(place: &mut Place, mib: u64) -> Result<Vec<Figure>> {
    let path = place.root().join("map");
    if !path.exists() {
        let (mut data, mut fresh) = (vec![0; 1 << 20], Fresh::new());
        let mut file = File::create(&path)?;
        for _ in 0..mib {
            fresh.fill(&mut data);
            file.write_all(&data)?;
        }
        file.sync_all()?;
    }
    place.make_cold()?;
    let mut times = Vec::new();
    for _ in 0..2 {
        let file = File::open(&path)?;
        let begun = monotonic();
        // SAFETY: nothing else uses the file, so nothing changes or truncates it while it is mapped.
        let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file)? };
        let sum = map.iter().step_by(4096).fold(0_u64, |sum, byte| sum.wrapping_add(u64::from(*byte)));
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        if sum == 0 || map.len() as u64 != mib << 20 {
            return Err(format!("{} does not hold what was written", path.display()).into());
        }
    }
    // For a volume in memory, the file would take space from the next measurement.
    if place.kind() == Kind::Memory {
        fs::remove_file(&path)?;
    }
    Ok(vec![("cold", "ms", times[0]), ("warm", "ms", times[1])])
}
