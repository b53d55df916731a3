//! The data that is written: real files of this machine and one of random bytes. Also the figures counted
//! meanwhile.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use covey_tests::program::covey_ok;
use covey_tests::{Mounted, Rng, Volume, say};

/// Larger files are skipped: the one large file covers them.
const FILE_MAX: u64 = 64 << 20;
const PIECE: usize = 4 << 20;

enum What {
    /// With the hash of its bytes, known once it was copied.
    File {
        size: u64,
        hash: Option<blake3::Hash>,
    },
    Link(PathBuf),
}

struct Entry {
    from: PathBuf,
    mode: u32,
    modified: SystemTime,
    what: What,
}

/// Real files and symlinks, and the folders that they are in.
pub struct Files {
    entries: Vec<Entry>,
    /// With their modes. A folder precedes its contents.
    folders: Vec<(PathBuf, u32, SystemTime)>,
}

fn inside(mounted: &Mounted, path: &Path) -> PathBuf {
    mounted.join("tree").join(path.strip_prefix("/").unwrap_or(path))
}

fn mtime(path: &Path) -> SystemTime {
    fs::symlink_metadata(path).unwrap().modified().unwrap()
}

impl Files {
    /// The first `most` files and symlinks below these folders, in the order of their names. Files that this
    /// user may not read are skipped.
    pub fn find(from: &[String], most: usize) -> Files {
        let mut found = Files { entries: Vec::new(), folders: Vec::new() };
        for folder in from {
            found.walk(Path::new(folder), most);
        }
        found
    }

    fn walk(&mut self, folder: &Path, most: usize) {
        let Ok(meta) = fs::symlink_metadata(folder) else { return };
        let Ok(entries) = fs::read_dir(folder) else { return };
        if !meta.is_dir() || self.entries.len() >= most {
            return;
        }
        self.folders.push((folder.to_owned(), meta.mode() & 0o7777, meta.modified().unwrap()));
        let mut names: Vec<OsString> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        names.sort();
        for from in names.into_iter().map(|name| folder.join(name)) {
            if self.entries.len() >= most {
                return;
            }
            let Ok(meta) = fs::symlink_metadata(&from) else { continue };
            let what = if meta.is_dir() {
                self.walk(&from, most);
                continue;
            } else if meta.is_symlink() {
                let Ok(target) = fs::read_link(&from) else { continue };
                What::Link(target)
            } else if meta.is_file() && meta.len() <= FILE_MAX && File::open(&from).is_ok() {
                What::File { size: meta.len(), hash: None }
            } else {
                continue;
            };
            let (mode, modified) = (meta.mode() & 0o7777, meta.modified().unwrap());
            self.entries.push(Entry { from, mode, modified, what });
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn bytes(&self) -> u64 {
        let size = |entry: &Entry| if let What::File { size, .. } = entry.what { size } else { 0 };
        self.entries.iter().map(size).sum()
    }

    /// Copies one file, which counts once it is closed. The bytes read here are the expected ones, because
    /// files of this machine may change later.
    pub fn copy(&mut self, n: usize, mounted: &Mounted) {
        let entry = &mut self.entries[n];
        let to = inside(mounted, &entry.from);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        match &mut entry.what {
            What::Link(target) => symlink(target, &to).unwrap(),
            What::File { size, hash } => {
                let bytes = fs::read(&entry.from).unwrap();
                (*size, *hash) = (bytes.len() as u64, Some(blake3::hash(&bytes)));
                let mut file = File::create(&to).unwrap();
                file.write_all(&bytes).unwrap();
                file.set_permissions(fs::Permissions::from_mode(entry.mode)).unwrap();
                file.set_modified(entry.modified).unwrap();
            }
        }
    }

    /// Sets the folders' modes and times, once nothing in them changes any more.
    pub fn finish_folders(&self, mounted: &Mounted) {
        for (folder, mode, modified) in self.folders.iter().rev() {
            let to = inside(mounted, folder);
            fs::create_dir_all(&to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(*mode)).unwrap();
            File::open(&to).unwrap().set_modified(*modified).unwrap();
        }
    }

    pub fn must_be_on(&self, mounted: &Mounted) {
        for entry in &self.entries {
            let path = inside(mounted, &entry.from);
            let meta = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            match &entry.what {
                What::Link(target) => {
                    assert_eq!(&fs::read_link(&path).unwrap(), target, "{}", path.display())
                }
                What::File { size, hash } => {
                    assert!(meta.is_file() && meta.len() == *size, "{}: {meta:?}", path.display());
                    assert_eq!(meta.mode() & 0o7777, entry.mode, "{}", path.display());
                    assert_eq!(mtime(&path), entry.modified, "{}", path.display());
                    let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                    assert_eq!(Some(blake3::hash(&bytes)), *hash, "{}", path.display());
                }
            }
        }
        for (folder, mode, modified) in &self.folders {
            let path = inside(mounted, folder);
            let meta = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(meta.is_dir() && meta.mode() & 0o7777 == *mode, "{}: {meta:?}", path.display());
            assert_eq!(mtime(&path), *modified, "{}", path.display());
        }
        let found = count(&mounted.join("tree"));
        assert_eq!(found, self.entries.len(), "files and links on the mount");
    }
}

/// Files and links below a folder.
fn count(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|entry| if entry.file_type().unwrap().is_dir() { count(&entry.path()) } else { 1 }).sum()
}

/// A large file of random bytes.
pub struct Big {
    pub size: u64,
    pub seed: u64,
}

impl Big {
    fn each_piece(&self, mut each: impl FnMut(&[u8])) {
        let (mut rng, mut piece, mut left) = (Rng::new(self.seed), vec![0; PIECE], self.size);
        while left > 0 {
            let len = left.min(PIECE as u64) as usize;
            rng.fill(&mut piece[..len]);
            each(&piece[..len]);
            left -= len as u64;
        }
    }

    pub fn write(&self, mounted: &Mounted) {
        let mut file = File::create(mounted.join("big")).unwrap();
        self.each_piece(|piece| file.write_all(piece).unwrap());
    }

    pub fn must_be_on(&self, mounted: &Mounted) {
        let (mut file, mut found, mut at) = (File::open(mounted.join("big")).unwrap(), vec![0; PIECE], 0u64);
        self.each_piece(|piece| {
            let found = &mut found[..piece.len()];
            file.read_exact(found).unwrap_or_else(|error| panic!("at byte {at}: {error}"));
            assert!(found == piece, "other bytes between {at} and {}", at + piece.len() as u64);
            at += piece.len() as u64;
        });
        assert_eq!(file.metadata().unwrap().len(), self.size);
    }
}

/// Figures of successive daemons, and durations.
pub struct Figures {
    source: String,
    before: (u64, u64),
    last: (u64, u64),
    peak: u64,
}

impl Figures {
    pub fn new(volume: &Volume) -> Figures {
        Figures { source: volume.source.to_str().unwrap().to_owned(), before: (0, 0), last: (0, 0), peak: 0 }
    }

    /// Reads the daemon's status.
    pub fn look(&mut self) {
        let status = covey_ok(&["status", &self.source, "--json"]).json();
        let asked = &status["far"]["requests"]["by_kind"];
        self.last = (asked["put"].as_u64().unwrap(), asked["get"].as_u64().unwrap());
        self.peak = self.peak.max(status["memory_peak_bytes"].as_u64().unwrap());
    }

    /// Adds up, because the next daemon counts from zero.
    pub fn begin_again(&mut self) {
        let last = std::mem::take(&mut self.last);
        self.before = (self.before.0 + last.0, self.before.1 + last.1);
    }

    pub fn row(&self, what: &str, bytes: u64, time: Duration) {
        let seconds = time.as_secs_f64();
        let rate = bytes as f64 / f64::from(1 << 30) / seconds;
        say(format_args!("{what}: {} MiB in {seconds:.1} s, {rate:.2} GiB/s", bytes >> 20));
    }

    pub fn show(&self) {
        let (puts, gets) = (self.before.0 + self.last.0, self.before.1 + self.last.1);
        say(format_args!(
            "{puts} PUTs and {gets} GETs (a daemon that was killed counts up to the moment before), peak memory {} MiB",
            self.peak >> 20
        ));
    }
}
