//! `covey mount ORIGIN@NAME --follow`, through a real kernel.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::Value;

use crate::world::{World, json, soon};

/// A mounted volume, and a mount that follows what the volume publishes.
struct Pair {
    world: World,
    shown: PathBuf,
}

impl Pair {
    /// `first` writes the content of the first publication.
    fn new(first: impl FnOnce(&Path)) -> Option<Pair> {
        Pair::with(&[], first)
    }

    /// `more`: arguments for the mount that follows.
    fn with(more: &[&str], first: impl FnOnce(&Path)) -> Option<Pair> {
        World::mountable()?;
        let world = World::new();
        let origin = format!("file:{}", world.path("origin").display());
        json(&["format", world.volume().to_str().unwrap(), "--origin", &origin]).ok();
        world.mount("");
        first(&world.mnt());
        let shown = world.path("shown");
        fs::create_dir(&shown).unwrap();
        let pair = Pair { world, shown };
        pair.publish();
        let source = format!("{origin}@latest");
        let words = [&["mount", "-d", "--follow=0.1"], more, &[&source, pair.shown.to_str().unwrap()]];
        json(&words.concat()).ok();
        Some(pair)
    }

    fn publish(&self) {
        json(&[Path::new("publish"), &self.world.mnt(), Path::new("latest")]).ok();
    }

    fn sequence(&self) -> u64 {
        self.status()["tree"]["sequence"].as_u64().unwrap()
    }

    fn status(&self) -> Value {
        json(&[Path::new("status"), &self.shown]).ok().json()
    }

    /// Publishes, and waits until the following mount shows it.
    fn publish_and_wait(&self) {
        let before = self.sequence();
        self.publish();
        soon("the next publication is shown", || self.sequence() > before);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        json(&[Path::new("umount"), Path::new("--lazy"), &self.shown]);
        self.world.umount();
    }
}

fn content(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A file that was open before the move still has its old content.
fn stays(name: &str, mut file: File) {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    let was = match name {
        "changed" | "sub/linked" => "old",
        name => name,
    };
    assert_eq!((text.as_str(), file.metadata().unwrap().len()), (was, was.len() as u64), "{name} was open");
}

/// After a move, new lookups see the new tree. Open files keep their content. A folder that a process works
/// in shows the new entries. Names that did not exist before appear.
#[test]
fn a_followed_tree_moves_and_open_files_stay() {
    let pair = Pair::new(|mnt| {
        fs::create_dir_all(mnt.join("d/sub")).unwrap();
        fs::create_dir_all(mnt.join("gone")).unwrap();
        fs::write(mnt.join("gone/f"), "in a folder that goes").unwrap();
        fs::write(mnt.join("d/changed"), "old").unwrap();
        fs::write(mnt.join("d/removed"), "removed").unwrap();
        fs::write(mnt.join("d/replaced"), "replaced").unwrap();
        fs::write(mnt.join("d/renamed"), "renamed").unwrap();
        fs::write(mnt.join("d/same"), "same").unwrap();
        fs::write(mnt.join("d/large"), vec![1; 5 << 20]).unwrap();
        fs::hard_link(mnt.join("d/changed"), mnt.join("d/sub/linked")).unwrap();
        symlink("changed", mnt.join("d/link")).unwrap();
    });
    let Some(pair) = pair else { return };
    let (from, to) = (pair.world.mnt().join("d"), pair.shown.join("d"));
    // Everything is looked up first, including a missing name, so that the kernel caches all of it.
    assert_eq!(names(&to), ["changed", "large", "link", "removed", "renamed", "replaced", "same", "sub"]);
    assert!(!to.join("new").exists() && content(to.join("link")) == "old");
    let open = |name: &str| File::open(to.join(name)).unwrap();
    let held =
        ["changed", "removed", "replaced", "renamed", "same", "sub/linked"].map(|name| (name, open(name)));
    let large = open("large");
    let (folder, gone) = (File::open(&to).unwrap(), File::open(pair.shown.join("gone")).unwrap());
    let by_handle =
        |file: &File, name: &str| PathBuf::from(format!("/proc/self/fd/{}/{name}", file.as_raw_fd()));
    let ino = fs::metadata(to.join("same")).unwrap().ino();

    fs::write(from.join("changed"), "new and longer").unwrap();
    fs::remove_file(from.join("removed")).unwrap();
    fs::write(from.join("other"), "another file").unwrap();
    fs::rename(from.join("other"), from.join("replaced")).unwrap();
    fs::rename(from.join("renamed"), from.join("sub/moved")).unwrap();
    fs::write(from.join("large"), vec![2; 5 << 20]).unwrap();
    fs::write(from.join("new"), "new").unwrap();
    fs::remove_file(from.join("link")).unwrap();
    symlink("new", from.join("link")).unwrap();
    fs::remove_dir_all(pair.world.mnt().join("gone")).unwrap();
    pair.publish_and_wait();

    assert_eq!(names(&to), ["changed", "large", "link", "new", "replaced", "same", "sub"]);
    assert_eq!(content(to.join("changed")), "new and longer");
    assert_eq!(content(to.join("sub/linked")), "new and longer");
    assert_eq!(content(to.join("replaced")), "another file");
    assert_eq!((content(to.join("sub/moved")), content(to.join("link"))), ("renamed".into(), "new".into()));
    assert!(!to.join("removed").exists() && !to.join("renamed").exists());
    assert_eq!(fs::read(to.join("large")).unwrap(), vec![2; 5 << 20]);
    assert_eq!(fs::metadata(to.join("same")).unwrap().ino(), ino, "a number of an inode stays");
    held.into_iter().for_each(|(name, file)| stays(name, file));
    // Data of the old file that was never read before the move is also still readable.
    let mut middle = [0; 4096];
    large.read_exact_at(&mut middle, 3 << 20).unwrap();
    assert_eq!(middle, [1; 4096]);
    assert_eq!(content(by_handle(&folder, "changed")), "new and longer", "a folder shows what is there now");
    assert_eq!(gone.metadata().unwrap().nlink(), 0);
    assert!(!by_handle(&gone, "f").exists() && !pair.shown.join("gone").exists());
}

/// A folder that was removed was empty for everybody. So a container lost its files when its image was
/// removed from the tree that its node follows.
#[test]
fn regression_a_folder_that_is_kept_shows_what_was_below_it() {
    let pair = Pair::with(&["--keep-removed"], |mnt| {
        fs::create_dir_all(mnt.join("gone/sub/deep")).unwrap();
        fs::write(mnt.join("gone/seen"), "seen").unwrap();
        fs::write(mnt.join("gone/new"), "never read").unwrap();
        fs::write(mnt.join("gone/sub/deep/f"), "deep").unwrap();
        fs::hard_link(mnt.join("gone/seen"), mnt.join("gone/sub/linked")).unwrap();
        fs::write(mnt.join("changed"), "old").unwrap();
    });
    let Some(pair) = pair else { return };
    let (mnt, gone) = (pair.world.mnt(), File::open(pair.shown.join("gone")).unwrap());
    let by_handle = |name: &str| PathBuf::from(format!("/proc/self/fd/{}/{name}", gone.as_raw_fd()));
    let ino = |name: &str| fs::metadata(by_handle(name)).unwrap().ino();
    assert_eq!(content(by_handle("seen")), "seen");
    let seen = ino("seen");
    for round in 0..3 {
        let _ = fs::remove_dir_all(mnt.join("gone"));
        fs::write(mnt.join("changed"), format!("{round}")).unwrap();
        pair.publish_and_wait();
        assert_eq!(content(pair.shown.join("changed")), format!("{round}"), "the rest moves on");
        assert!(!pair.shown.join("gone").exists());
        assert_eq!(names(by_handle("")), ["new", "seen", "sub"]);
        assert_eq!((content(by_handle("seen")), ino("seen")), ("seen".into(), seen));
        assert_eq!((content(by_handle("sub/linked")), ino("sub/linked")), ("seen".into(), seen));
        assert_eq!(content(by_handle("new")), "never read");
        assert_eq!(content(by_handle("sub/deep/f")), "deep");
    }
    // A folder of the same name is another one.
    fs::create_dir(mnt.join("gone")).unwrap();
    fs::write(mnt.join("gone/seen"), "anew").unwrap();
    pair.publish_and_wait();
    assert_eq!(content(pair.shown.join("gone/seen")), "anew");
    assert_eq!(content(by_handle("seen")), "seen");
}

/// A program works in a folder, and the next tree has the folder above it below it. The kernel cannot link
/// the one below the other while the program holds both. Over io_uring the program that listed its folder had
/// no answer, and could not be killed.
#[test]
fn regression_folders_that_change_places_can_be_listed() {
    let Some(pair) = Pair::new(|mnt| fs::create_dir_all(mnt.join("a/b")).unwrap()) else { return };
    let (mnt, inner) = (pair.world.mnt(), File::open(pair.shown.join("a/b")).unwrap());
    assert!(names(pair.shown.join("a/b")).is_empty());
    fs::rename(mnt.join("a/b"), mnt.join("b")).unwrap();
    fs::rename(mnt.join("a"), mnt.join("b/a")).unwrap();
    pair.publish_and_wait();

    let path = format!("/proc/self/fd/{}", inner.as_raw_fd());
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || say.send(names(path)));
    let listed = said.recv_timeout(Duration::from_secs(120));
    if listed.is_err() {
        // Nothing else ends the thread that lists, nor this process.
        json(&[Path::new("umount"), Path::new("--force"), &pair.shown]);
    }
    assert_eq!(listed.expect("the listing has no answer"), ["a"]);
    assert_eq!(pair.status()["served"]["replies_lost"], 0);
    drop(inner);
    assert_eq!((names(&pair.shown), names(pair.shown.join("b"))), (vec!["b".into()], vec!["a".into()]));
    assert!(names(pair.shown.join("b/a")).is_empty());
}

/// A hundred publications with concurrent readers. No reader sees an older publication after a newer one, or
/// a listing that mixes two publications.
#[test]
fn a_hundred_publications_are_each_seen_whole() {
    let write = |mnt: &Path, n: u64| {
        for file in 0..4 {
            fs::write(mnt.join(format!("d{file}/v")), format!("{n:>8}")).unwrap();
        }
        fs::write(mnt.join(format!("at-{}", n % 7)), n.to_string()).unwrap();
        let _ = fs::remove_file(mnt.join(format!("at-{}", (n + 6) % 7)));
    };
    let pair = Pair::new(|mnt| {
        (0..4).for_each(|file| fs::create_dir(mnt.join(format!("d{file}"))).unwrap());
        write(mnt, 0);
    });
    let Some(pair) = pair else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|reader| {
            let (stop, shown) = (stop.clone(), pair.shown.clone());
            std::thread::spawn(move || {
                let (mut newest, mut rounds, mut kept) = (0_u64, 0_u64, None);
                while !stop.load(Ordering::Relaxed) {
                    // A later read never shows an older tree than an earlier read.
                    for file in [0, 1, 2, 3] {
                        let text = fs::read_to_string(shown.join(format!("d{file}/v"))).unwrap();
                        let seen =
                            text.trim().parse().unwrap_or_else(|_| panic!("reader {reader}: {text:?}"));
                        assert!(seen >= newest, "reader {reader}: {seen} after {newest}");
                        newest = seen;
                    }
                    let (open, was): &(File, String) = kept.get_or_insert_with(|| {
                        let file = File::open(shown.join("d2/v")).unwrap();
                        let mut text = String::new();
                        (&file).read_to_string(&mut text).unwrap();
                        (file, text)
                    });
                    let mut bytes = [0; 8];
                    open.read_exact_at(&mut bytes, 0).unwrap();
                    assert_eq!(bytes, was.as_bytes(), "an open file shows one version");
                    rounds += 1;
                    if rounds % 50 == 0 {
                        kept = None;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                newest
            })
        })
        .collect();
    for n in 1..=100 {
        write(&pair.world.mnt(), n);
        pair.publish();
        if n % 20 == 0 {
            soon("it is shown", || content(pair.shown.join("d3/v")).trim() == n.to_string());
            assert_eq!(names(&pair.shown).len(), 5, "one of seven, and four folders");
        }
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.join().unwrap() > 0);
    }
    assert_eq!(content(pair.shown.join("at-2")), "100");
    let status = pair.status();
    assert!(status["tree"]["sequence"].as_u64() > Some(100), "{status}");
    assert_eq!(status["io_errors"], 0, "{status}");
}

#[test]
fn what_cannot_be_followed_is_said() {
    let world = World::formatted();
    let (volume, mnt) = (world.volume(), world.mnt());
    json(&["mount", "--follow", volume.to_str().unwrap(), mnt.to_str().unwrap()]).fails(2, "usage");
    json(&["mount", "--follow=1", "mem:", mnt.to_str().unwrap()]).fails(2, "usage");
    json(&["mount", "--follow=never", "file:/x@n", mnt.to_str().unwrap()]);
}
