//! The complete round trip. Real files and one large file are written to a volume over a real store. The node
//! is lost with its disk. What is restored from the store alone must equal what was written: every byte,
//! mode, time and link.
//!
//! `make test-origin` runs it. `FILES=50000` is the number of files, `BIG=10G` the size of the large one,
//! `KILLS=8` how often the daemon is killed during uploads, `FROM=/usr:/opt` the folders the files are taken
//! from, `COVEY_SEED` the seed for the large file and the kills.

mod world;

use std::time::{Duration, Instant};

use covey_tests::program::{covey_ok, environment};
use covey_tests::{Mounted, Need, Rng, Volume, requires, say, seeds};
use s3server::{BUCKET, Minio};
use world::{Big, Figures, Files};

/// The parameters.
struct Wish {
    files: usize,
    big: u64,
    kills: u64,
    from: Vec<String>,
}

/// Free space needed beyond the data, which is stored twice: on the store's disk and on the node's.
const REST: u64 = 4 << 30;

fn wish() -> Wish {
    let text = |name: &str, default: &str| {
        std::env::var(name).ok().filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned())
    };
    let number = |name, default: &str| text(name, default).parse().unwrap_or_else(|e| panic!("{name}: {e}"));
    let big = text("BIG", "10G");
    let size =
        |unit: u32, digits: &str| digits.parse::<u64>().unwrap_or_else(|e| panic!("BIG={big}: {e}")) << unit;
    let big = match big.as_bytes().last() {
        Some(b'G') => size(30, &big[..big.len() - 1]),
        Some(b'M') => size(20, &big[..big.len() - 1]),
        _ => size(0, &big),
    };
    let cargo = std::env::var("HOME").map(|home| format!("{home}/.cargo/registry/src")).unwrap_or_default();
    let from = text("FROM", &format!("/usr/include:/usr/share:{cargo}:/usr/lib:/usr/bin"));
    Wish {
        files: number("FILES", "50000") as usize,
        big,
        kills: number("KILLS", "8"),
        from: from.split(':').filter(|folder| !folder.is_empty()).map(str::to_owned).collect(),
    }
}

#[test]
#[ignore = "minutes, and gigabytes of disk: make test-origin"]
fn what_a_store_was_given_it_gives_back_to_a_new_node() {
    requires!(Need::Covey);
    let minio = match Minio::program() {
        Ok(program) => program,
        Err(lacking) => return say(format_args!("skipped: it needs {lacking}")),
    };
    let wish = wish();
    let mut files = Files::find(&wish.from, wish.files);
    assert!(files.len() == wish.files, "{} files in {:?}, FROM= names more", files.len(), wish.from);
    let room = Need::Free(2 * (wish.big + files.bytes()) + REST);
    requires!(room);
    let seed = seeds(20_260, 1).next().unwrap();
    let mut rng = Rng::new(seed);
    say(format_args!(
        "COVEY_SEED={seed}: {} files of {} MiB, one of {} MiB, {} kills",
        files.len(),
        files.bytes() >> 20,
        wish.big >> 20,
        wish.kills
    ));

    environment(s3server::environment());
    let store = Minio::start(&minio, "us-east-1");
    let folder = covey_tests::scratch();
    let (origin, endpoint) = (format!("s3://{BUCKET}/round"), store.endpoint());
    let volume = Volume::below(folder.path(), &["--origin", &origin, "--endpoint", &endpoint]);
    let mut figures = Figures::new(&volume);
    let big = Big { size: wish.big, seed };

    let mounted = write(&wish, &volume, &mut files, &big, &mut figures, &mut rng);
    let began = Instant::now();
    covey_ok(&["publish".as_ref(), mounted.path().as_os_str(), "latest".as_ref()]);
    figures.look();
    covey_ok(&["umount".as_ref(), "--flush".as_ref(), mounted.path().as_os_str()]);
    drop(mounted);
    say(format_args!("published and flushed in {:.1} s", began.elapsed().as_secs_f64()));

    // The node and its disk are lost.
    std::fs::remove_dir_all(&volume.source).unwrap();
    let tree = format!("{origin}@latest");
    let source = volume.source.to_str().unwrap();
    covey_ok(&["restore", "--take-over", &tree, source, "--endpoint", &endpoint]);
    figures.begin_again();
    let mounted = volume.mount();
    let began = Instant::now();
    files.must_be_on(&mounted);
    figures.row("files read back", files.bytes(), began.elapsed());
    let began = Instant::now();
    big.must_be_on(&mounted);
    figures.row("the large one read back", wish.big, began.elapsed());
    figures.look();
    figures.show();
    mounted.umount();
    volume.must_be_clean();
}

/// Writes everything, while the daemon is killed now and then. Returns the last mount.
fn write(
    wish: &Wish,
    volume: &Volume,
    files: &mut Files,
    big: &Big,
    figures: &mut Figures,
    rng: &mut Rng,
) -> Mounted {
    let began = Instant::now();
    let mut mounted = volume.mount();
    let mut kills = Kills::spread(wish.kills, files.len(), rng);
    for n in 0..files.len() {
        files.copy(n, &mounted);
        if kills.is_time(n) {
            mounted = kill(volume, mounted, figures);
        }
    }
    files.finish_folders(&mounted);
    figures.row("files written", files.bytes(), began.elapsed());
    let began = Instant::now();
    big.write(&mounted);
    figures.row("the large one written", wish.big, began.elapsed());
    for _ in 0..wish.kills.div_ceil(2) {
        std::thread::sleep(Duration::from_millis(rng.length(1500)));
        mounted = kill(volume, mounted, figures);
    }
    mounted
}

/// The files after which the daemon is killed.
struct Kills(Vec<usize>);

impl Kills {
    fn spread(kills: u64, files: usize, rng: &mut Rng) -> Kills {
        Kills((0..kills / 2).map(|_| rng.below(files.max(1) as u64) as usize).collect())
    }

    fn is_time(&mut self, n: usize) -> bool {
        let before = self.0.len();
        self.0.retain(|at| *at != n);
        self.0.len() < before
    }
}

/// Kills the daemon in the middle of its uploads, and mounts again.
fn kill(volume: &Volume, mounted: Mounted, figures: &mut Figures) -> Mounted {
    figures.look();
    mounted.kill();
    figures.begin_again();
    volume.mount()
}
