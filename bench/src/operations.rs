//! F3: what one operation costs, compared with ext4, tmpfs and the empty filesystem. One caller; each call is
//! timed separately. The files are in the kernel's caches.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use base::time::monotonic;
use rustix::fs::{Access, AtFlags, Mode, OFlags};

use crate::Result;
use crate::cells::{FILE_SIZE, FILES, small_files};
use crate::peer::Tools;
use crate::place::{Kind, Place};
use crate::run::{Bench, Cell, Common, Outcome};
use crate::sheet::{Bound, Sheet};
use crate::work::{Fresh, micros_at};

/// F3: one operation at a time
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
}

const PAGE: u64 = 4096;
/// Writes wrap around after so many pages, so that the file does not grow without bound.
const PAGES: u64 = 4096;

/// Runs the measurement.
///
/// # Errors
/// A place failed, or the results cannot be saved.
pub fn run(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    let kinds = [Kind::Covey, Kind::Memory, Kind::Ext4, Kind::Tmpfs, Kind::Null];
    let mut setups: Vec<_> = kinds.map(|kind| bench.setup(kind)).into();
    let mut moved = bench.setup(Kind::Covey).named("covey moved");
    moved.moved = true;
    setups.push(moved);
    let mut traced = bench.setup(Kind::Covey).named("covey traced");
    traced.traced = true;
    setups.push(traced);
    let mut places = bench.places(setups, &Tools::none())?;
    let mut sheet = bench.sheet("operations", "F3, one operation");
    bench.measure(&mut places, &cells(&args.common), &mut sheet)?;
    targets(&mut sheet);
    sheet.note("A request that the kernel sends later, as FORGET, may be counted with another row; asking the daemon for its counts costs a few of its own.");
    sheet.note("Moved: with --yield off, so that a program is woken on any CPU when its answer comes.");
    sheet.note("Traced: with `covey trace` looking on at every request, its lines thrown away.");
    sheet.chart_ratios("covey", &["ext4", "tmpfs", "null"]);
    bench.finish(sheet, places)
}

fn targets(sheet: &mut Sheet) {
    let rows = [
        ("getattr", "ext4", 1.1),
        ("lookup", "ext4", 1.1),
        ("read 4 KiB", "ext4", 1.1),
        ("open+close", "ext4", 2.0),
        ("write 4 KiB", "ext4", 1.5),
        ("readdir of 1,000", "tmpfs", 1.0),
        ("create+unlink", "null", 1.5),
        ("rename", "null", 1.5),
        ("setattr", "null", 1.5),
        ("fsync", "ext4", 1.5),
    ];
    for (row, against, most) in rows {
        sheet.target(format!("{row}, p50"), "covey", against, Bound::AtMost(most));
    }
    for row in ["create+unlink", "rename", "setattr"] {
        sheet.target(format!("{row}, p50"), "covey", "ext4", Bound::Shown);
        sheet.target(format!("{row}, p50"), "covey traced", "covey", Bound::AtMost(1.05));
    }
}

fn cells(common: &Common) -> Vec<Cell<'static>> {
    let (many, some) = (common.size(20_000, 2_000), common.size(3_000, 300));
    let (listings, few) = (common.size(200, 40), common.size(500, 50));
    vec![
        Cell::new("getattr", move |place| {
            on_file(place, many, |file, _, _| {
                file.metadata()?;
                Ok(())
            })
        }),
        Cell::new("lookup", move |place| lookups(place, many, "")),
        Cell::new("lookup of what is not there", move |place| lookups(place, many, "no-")),
        Cell::new("read 4 KiB", move |place| {
            on_file(place, many, |file, fresh, data| {
                Ok(file.read_exact_at(data, fresh.below(FILE_SIZE as u64 / PAGE) * PAGE)?)
            })
        }),
        Cell::new("write 4 KiB", move |place| writes(place, many)),
        Cell::new("open+close", move |place| opens(place, many)),
        Cell::new("readdir of 1,000", move |place| listings_of(place, listings)),
        Cell::new("create+unlink", move |place| creates(place, some)),
        Cell::new("rename", move |place| renames(place, some)),
        Cell::new("setattr", move |place| setattrs(place, some)),
        Cell::new("fsync", move |place| fsyncs(place, few)),
    ]
}

/// Times so many calls separately. `prepare` is not timed, but its requests are counted.
fn timed<T>(
    place: &Place,
    count: u64,
    mut prepare: impl FnMut(u64) -> Result<T>,
    mut work: impl FnMut(T) -> Result<()>,
) -> Result<Outcome> {
    let mut times: Vec<Duration> = Vec::with_capacity(count as usize);
    let before = place.requests();
    for number in 0..count {
        let prepared = prepare(number)?;
        let begun = monotonic();
        work(prepared)?;
        times.push(begun.elapsed());
    }
    let figures = vec![("p50", "us", micros_at(&mut times, 0.5)), ("p99", "us", micros_at(&mut times, 0.99))];
    Ok(Outcome { figures, requests: place.requests_since(&before, count) })
}

/// Calls on one open file that is in memory.
fn on_file(
    place: &Place,
    count: u64,
    work: impl Fn(&File, &mut Fresh, &mut [u8]) -> Result<()>,
) -> Result<Outcome> {
    let path = small_files(place)?.join("7");
    fs::read(&path)?;
    let (file, mut fresh, mut data) = (File::open(&path)?, Fresh::new(), [0; PAGE as usize]);
    work(&file, &mut fresh, &mut data)?;
    timed(place, count, |_| Ok(()), |()| work(&file, &mut fresh, &mut data))
}

/// Whether a name exists: only the path walk.
fn lookups(place: &Place, count: u64, prefix: &str) -> Result<Outcome> {
    let folder = File::open(small_files(place)?)?;
    let mut fresh = Fresh::new();
    let look = |name: String| {
        let found = rustix::fs::accessat(&folder, &name, Access::EXISTS, AtFlags::empty()).is_ok();
        if found == prefix.is_empty() { Ok(()) } else { Err(format!("{name}: found: {found}").into()) }
    };
    (0..FILES).try_for_each(|number| look(format!("{prefix}{number}")))?;
    timed(place, count, |_| Ok(format!("{prefix}{}", fresh.below(FILES))), look)
}

fn opens(place: &Place, count: u64) -> Result<Outcome> {
    let folder = File::open(small_files(place)?)?;
    let mut fresh = Fresh::new();
    let open = |name: String| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&folder, &name, flags, Mode::empty())?;
        Ok(())
    };
    (0..FILES).try_for_each(|number| open(number.to_string()))?;
    timed(place, count, |_| Ok(fresh.below(FILES).to_string()), open)
}

fn listings_of(place: &Place, count: u64) -> Result<Outcome> {
    let folder = small_files(place)?;
    let list = |()| {
        let found = fs::read_dir(&folder)?.filter(std::result::Result::is_ok).count() as u64;
        // The empty filesystem's root may also hold a file of another cell.
        if found >= FILES { Ok(()) } else { Err(format!("{found} names are listed").into()) }
    };
    list(())?;
    timed(place, count, |_| Ok(()), list)
}

/// A file for this round, created and removed again.
fn with_file(place: &Place, work: impl FnOnce(&File, &Path) -> Result<Outcome>) -> Result<Outcome> {
    let path = place.root().join("one");
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    let done = work(&file, &path);
    drop(file);
    fs::remove_file(&path)?;
    done
}

fn writes(place: &Place, count: u64) -> Result<Outcome> {
    let (mut fresh, mut data) = (Fresh::new(), [0; PAGE as usize]);
    with_file(place, |file, _| {
        let prepare = |number| {
            fresh.fill(&mut data);
            Ok((number % PAGES * PAGE, data))
        };
        timed(place, count, prepare, |(at, data)| Ok(file.write_all_at(&data, at)?))
    })
}

fn fsyncs(place: &Place, count: u64) -> Result<Outcome> {
    let (mut fresh, mut data) = (Fresh::new(), [0; PAGE as usize]);
    with_file(place, |file, _| {
        let prepare = |number| {
            fresh.fill(&mut data);
            Ok(file.write_all_at(&data, number % PAGES * PAGE)?)
        };
        timed(place, count, prepare, |()| Ok(file.sync_all()?))
    })
}

fn setattrs(place: &Place, count: u64) -> Result<Outcome> {
    with_file(place, |file, _| {
        let modes = [Mode::from_raw_mode(0o600), Mode::from_raw_mode(0o640)];
        timed(
            place,
            count,
            |number| Ok(modes[number as usize % 2]),
            |mode| Ok(rustix::fs::fchmod(file, mode)?),
        )
    })
}

fn creates(place: &Place, count: u64) -> Result<Outcome> {
    let root = place.root();
    timed(
        place,
        count,
        |number| Ok(root.join(format!("new-{number}"))),
        |path| {
            File::options().write(true).create_new(true).open(&path)?;
            Ok(fs::remove_file(&path)?)
        },
    )
}

fn renames(place: &Place, count: u64) -> Result<Outcome> {
    let names = ["one", "two"].map(|name| place.root().join(name));
    File::create(&names[0])?;
    let turn = |number: u64| Ok((&names[number as usize % 2], &names[(number as usize + 1) % 2]));
    let done = timed(place, count, turn, |(from, to)| Ok(fs::rename(from, to)?));
    fs::remove_file(&names[count as usize % 2])?;
    done
}
