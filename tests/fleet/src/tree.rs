//! Files with known bytes, in a volume that is published once.
//!
//! A file's bytes are a function of its number and the position ([`File::fill`]). So the expected bytes of an
//! answer are computed, without reading anything else. Publishing costs seconds, and a published tree does
//! not change: all networks of a process share one folder of objects, each with an S3 server of its own over
//! it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use base::dice::{STEP, mix};
use covey_tests::program::{covey, run_ok};
use s3server::Server;

use crate::store::Store;

/// The volume's prefix in the bucket.
pub const PREFIX: &str = "fleet";
/// The name under which it is published.
pub const NAME: &str = "latest";
/// The longest time for creating a volume, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// One file.
#[derive(Clone, Debug)]
pub struct File {
    /// The path below the root of the mount.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// The seed of its bytes.
    pub seed: u64,
}

impl File {
    /// The bytes from `offset` on, which need not be aligned.
    pub fn fill(&self, offset: u64, buf: &mut [u8]) {
        let mut at = 0;
        while at < buf.len() {
            let position = offset + at as u64;
            let word = word(self.seed, position / 8).to_le_bytes();
            let skip = (position % 8) as usize;
            let take = (8 - skip).min(buf.len() - at);
            buf[at..at + take].copy_from_slice(&word[skip..skip + take]);
            at += take;
        }
    }

    /// The first position at which bytes read from `offset` on differ from the expected ones.
    ///
    /// A measurement compares every byte that every node read, on the processors that the nodes use, too. So
    /// it compares by words, and in place.
    pub fn differs(&self, offset: u64, read: &[u8]) -> Option<u64> {
        let unaligned = (offset.next_multiple_of(8) - offset).min(read.len() as u64) as usize;
        let (head, rest) = read.split_at(unaligned);
        let (words, tail) = rest.as_chunks::<8>();
        let first = (offset + unaligned as u64) / 8;
        let is_right = |(index, found): (u64, &[u8; 8])| word(self.seed, index) == u64::from_le_bytes(*found);
        let same = (first..).zip(words).all(is_right);
        let at_tail = read.len() - tail.len();
        if same && self.byte_differs(offset, head).is_none() {
            return self.byte_differs(offset + at_tail as u64, tail);
        }
        self.byte_differs(offset, read)
    }

    fn byte_differs(&self, offset: u64, read: &[u8]) -> Option<u64> {
        let mut wanted = vec![0; read.len()];
        self.fill(offset, &mut wanted);
        wanted.iter().zip(read).position(|(a, b)| a != b).map(|at| offset + at as u64)
    }
}

/// The word at a position.
fn word(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add((index + 1).wrapping_mul(STEP)))
}

/// The contents of a tree.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Large files.
    pub large: u64,
    /// The size of each, in bytes.
    pub large_bytes: u64,
    /// Files of 1 to 40,000 bytes.
    pub small: u64,
}

impl Shape {
    /// The tree of the tests: about 64 MiB.
    pub const TEST: Shape = Shape { large: 10, large_bytes: (6 << 20) + 4321, small: 200 };

    fn files(self) -> Vec<File> {
        let large = (0..self.large).map(|n| (format!("large/{n:04}"), self.large_bytes, n + 1));
        let small =
            (0..self.small).map(|n| (format!("small/{}/{n}", n % 7), 1 + word(n, 1) % 40_000, n + (1 << 32)));
        let file = |(path, size, seed): (String, u64, u64)| File { path: path.into(), size, seed: seed << 8 };
        large.chain(small).map(file).collect()
    }
}

/// A published tree and its objects.
pub struct Tree {
    files: Vec<File>,
    volume: [u8; 16],
    server: Server,
}

/// Gives every later `covey` of this process the keys of the stores of this crate.
pub fn use_keys() {
    covey_tests::program::environment(s3server::environment());
}

impl Tree {
    /// The tree of the tests, created once per process.
    pub fn of_tests() -> &'static Tree {
        static TREE: OnceLock<Tree> = OnceLock::new();
        TREE.get_or_init(|| Tree::publish(Shape::TEST))
    }

    /// Creates a tree: writes the files, imports and publishes them.
    pub fn publish(shape: Shape) -> Tree {
        use_keys();
        let scratch = covey_tests::scratch();
        let source = scratch.path().join("source");
        let files = shape.files();
        for file in &files {
            write(&source.join(&file.path), file);
        }
        Tree::publish_folder(&source, scratch.path(), files)
    }

    /// Publishes the contents of a folder. A volume is created in `scratch` and left there.
    pub fn publish_folder(source: &Path, scratch: &Path, files: Vec<File>) -> Tree {
        Tree::publish_import(&["--overwrite".as_ref(), source.as_os_str()], scratch, files)
    }

    /// Publishes a volume into whose root `covey import` imports with these arguments, for example an image.
    pub fn publish_import(words: &[&std::ffi::OsStr], scratch: &Path, files: Vec<File>) -> Tree {
        use_keys();
        let server = Server::start();
        let volume = scratch.join("volume");
        let origin = Store::origin(PREFIX);
        let mut format = covey();
        format.arg("format").arg(&volume).args(["--origin", &origin, "--endpoint", &server.endpoint()]);
        let made = run_ok(format.arg("--json"), PATIENCE).json();
        let id = u128::from_str_radix(made["id"].as_str().unwrap(), 16).unwrap();
        let mut into = volume.clone().into_os_string();
        into.push(":/");
        run_ok(covey().arg("import").args(words).arg(into), PATIENCE);
        run_ok(covey().arg("publish").arg(&volume).arg(NAME), PATIENCE);
        Tree { files, volume: id.to_be_bytes(), server }
    }

    /// The folder of the bucket.
    pub fn root(&self) -> PathBuf {
        self.server.root()
    }

    /// The volume's id, which identifies its fleet.
    pub fn volume(&self) -> [u8; 16] {
        self.volume
    }

    /// The files of its blobs, in the folder of the server.
    pub fn blobs(&self) -> Vec<PathBuf> {
        let top = self.server.folder().join(PREFIX).join("blobs");
        let below = |folder: PathBuf| {
            std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path())
        };
        below(top).filter(|path| path.is_dir()).flat_map(below).filter(|path| path.is_file()).collect()
    }

    /// All files.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// The large files.
    pub fn large(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.starts_with("large"))
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

fn write(path: &Path, file: &File) {
    use std::io::Write;
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut out = std::fs::File::create(path).unwrap();
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    while at < file.size {
        let some = (file.size - at).min(buf.len() as u64) as usize;
        file.fill(at, &mut buf[..some]);
        out.write_all(&buf[..some]).unwrap();
        at += some as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_from_wherever_one_reads() {
        let file = File { path: "a".into(), size: 100_000, seed: 7 };
        let mut whole = vec![0; 100_000];
        file.fill(0, &mut whole);
        for (from, len) in [(0, 1), (7, 2), (8, 8), (9, 1000), (99_991, 9)] {
            assert_eq!(file.differs(from, &whole[from as usize..][..len]), None);
        }
        for wrong in [4_990, 4_995, 5_000, 5_098, 5_099] {
            whole[wrong] ^= 1;
            assert_eq!(file.differs(4_990, &whole[4_990..5_100]), Some(wrong as u64));
            whole[wrong] ^= 1;
        }
        assert_ne!(word(1 << 8, 0), word(2 << 8, 0));
    }
}
