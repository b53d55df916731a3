//! What a clone touched after its start, as a list of ranges of the snapshot file. The next clone gets these
//! before it asks for them.
//!
//! ```text
//!   covey-memory-list 1
//!   of SIZE IDENTITY
//!   OFFSET LENGTH
//!   ...
//!   end RANGES
//! ```
//!
//! A list is text, in the order of the first touches. It names the snapshot that it is of, so that a list of
//! another one is not taken for it. The last line shows that the file is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The most ranges of a list.
pub const RANGES_MOST: usize = 65_536;
/// The longest file, in bytes: more than the most ranges take.
const FILE_MOST: u64 = 4 << 20;
const HEAD: &str = "covey-memory-list 1";
const FAMILY: &str = "covey-memory-list ";

/// A range of the snapshot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Ranges in the order of the first touches. It is bounded: what is touched later is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List(Vec<Span>);

impl List {
    /// Adds a range. One that follows the last one becomes a part of it.
    pub fn push(&mut self, span: Span) {
        let count = self.0.len();
        match self.0.last_mut() {
            Some(last) if last.offset + last.len == span.offset => last.len += span.len,
            _ if count < RANGES_MOST => self.0.push(span),
            _ => {}
        }
    }

    /// The ranges.
    pub fn spans(&self) -> &[Span] {
        &self.0
    }

    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|span| span.len).sum()
    }

    /// The file's text, for a snapshot of this length and identity.
    pub fn encode(&self, size: u64, identity: &str) -> String {
        let mut text = format!("{HEAD}\nof {size} {}\n", one_line(identity));
        for Span { offset, len } in &self.0 {
            text.push_str(&format!("{offset} {len}\n"));
        }
        text.push_str(&format!("end {}\n", self.0.len()));
        text
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// Why it is of no use, in words: it is none, of another version, of another snapshot, or incomplete.
    pub fn decode(text: &str, size: u64, identity: &str) -> Result<List, &'static str> {
        let mut lines = text.lines();
        match lines.next() {
            Some(HEAD) => {}
            Some(line) if line.starts_with(FAMILY) => return Err("it has another version"),
            _ => return Err("it is no list of a memory server"),
        }
        if lines.next() != Some(&format!("of {size} {}", one_line(identity))) {
            return Err("it is of another snapshot");
        }
        let mut list = List::default();
        for line in lines.by_ref() {
            let (first, second) = line.split_once(' ').ok_or("a line of it is no range")?;
            if first == "end" {
                let whole = second.parse() == Ok(list.0.len()) && lines.next().is_none();
                return if whole { Ok(list) } else { Err("it is damaged") };
            }
            let number = |text: &str| text.parse::<u64>().map_err(|_| "a line of it is no range");
            let (offset, len) = (number(first)?, number(second)?);
            if len == 0 || offset.checked_add(len).is_none_or(|end| end > size) {
                return Err("a range of it is outside of the snapshot");
            }
            if list.0.len() == RANGES_MOST {
                return Err("it has too many ranges");
            }
            list.0.push(Span { offset, len });
        }
        Err("its end is missing")
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Whether a file is there that holds something else than a list, of whatever version.
pub fn is_another_file(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FAMILY.len() as u64).read_to_end(&mut head));
    read.is_ok() && !head.is_empty() && head != FAMILY.as_bytes()
}

/// The file of a list.
#[derive(Clone, Debug)]
pub struct ListFile {
    /// Where it is.
    pub path: PathBuf,
    /// The length of the snapshot, in bytes.
    pub size: u64,
    /// What tells the snapshot from any other.
    pub identity: String,
}

impl ListFile {
    /// Loads the list. `None` if there is no file yet.
    ///
    /// # Errors
    /// It cannot be read, or is of no use. In words.
    pub fn load(&self) -> Result<Option<List>, String> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut text = String::new();
        let read = file.take(FILE_MOST + 1).read_to_string(&mut text);
        match read {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err("it is no text".to_owned());
            }
            Err(error) => return Err(error.to_string()),
            Ok(len) if len as u64 > FILE_MOST => return Err("it is too long".to_owned()),
            Ok(_) => {}
        }
        List::decode(&text, self.size, &self.identity).map(Some).map_err(str::to_owned)
    }

    /// Stores a list: all of it or, after a failure, nothing.
    ///
    /// # Errors
    /// The system's error.
    pub fn store(&self, list: &List) -> io::Result<()> {
        let new = new_name(&self.path);
        // Somebody else may have made it, where others may write. A link leads to another file.
        if fs::symlink_metadata(&new).is_ok_and(|about| about.is_symlink()) {
            fs::remove_file(&new)?;
        }
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
        let mut file = options.open(&new)?;
        let about = file.metadata()?;
        if !about.is_file() || about.nlink() != 1 || about.uid() != rustix::process::geteuid().as_raw() {
            let what = format!("{} is not a file of this user: remove it", new.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        let stored = file
            .set_len(0)
            .and_then(|()| file.write_all(list.encode(self.size, &self.identity).as_bytes()))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&new, &self.path));
        stored.inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

fn new_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 1 << 30;

    fn sample() -> List {
        let mut list = List::default();
        for (offset, len) in [(65_536, 65_536), (131_072, 65_536), (0, 4096), (SIZE - 1, 1)] {
            list.push(Span { offset, len });
        }
        list
    }

    #[test]
    fn a_list_comes_back_from_its_text_and_from_its_file() {
        let list = sample();
        assert_eq!((list.spans().len(), list.bytes()), (3, 131_072 + 4097));
        assert_eq!(List::decode(&list.encode(SIZE, "a b"), SIZE, "a b"), Ok(list.clone()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        let file = ListFile { path: path.clone(), size: SIZE, identity: "line\nend".into() };
        assert_eq!(file.load(), Ok(None));
        file.store(&list).unwrap();
        file.store(&list).unwrap();
        assert_eq!(file.load(), Ok(Some(list.clone())));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let other = ListFile { identity: "other".into(), ..file.clone() };
        assert_eq!(other.load(), Err("it is of another snapshot".into()));
        fs::write(&path, vec![b'0'; FILE_MOST as usize + 1]).unwrap();
        assert_eq!(file.load(), Err("it is too long".into()));
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(file.load(), Err("it is no text".into()));
        let nowhere = ListFile { path: folder.path().join("no/list"), ..file };
        assert!(nowhere.store(&list).is_err());
    }

    /// A link with the name of the new file was followed, and what it leads to was written over.
    #[test]
    fn regression_a_link_beside_the_list_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, precious) = (folder.path().join("list"), folder.path().join("precious"));
        fs::write(&precious, "mine").unwrap();
        std::os::unix::fs::symlink(&precious, folder.path().join("list.new")).unwrap();
        let file = ListFile { path, size: SIZE, identity: "x".into() };
        file.store(&sample()).unwrap();
        assert_eq!(file.load(), Ok(Some(sample())));
        assert_eq!(fs::read(&precious).unwrap(), b"mine");
    }

    #[test]
    fn a_part_of_a_list_is_no_list() {
        let text = sample().encode(SIZE, "x");
        for end in 0..text.len() - 1 {
            assert!(List::decode(&text[..end], SIZE, "x").is_err(), "{end}");
        }
        for (changed, why) in [
            (text.replace("list 1", "list 2"), "version"),
            (text.replace("0 4096\n", ""), "damaged"),
            (text.replace("0 4096", "0 0"), "outside"),
            (text.replace("0 4096", "1 1073741824"), "outside"),
            (text.replace("0 4096", "18446744073709551615 1"), "outside"),
            (format!("{text}0 1\n"), "damaged"),
        ] {
            let error = List::decode(&changed, SIZE, "x").unwrap_err();
            assert!(error.contains(why), "{changed}: {error}");
        }
    }

    #[test]
    fn a_list_has_a_bound() {
        let mut list = List::default();
        for at in 0..RANGES_MOST as u64 + 10 {
            list.push(Span { offset: at * 10, len: 1 });
        }
        assert_eq!(list.spans().len(), RANGES_MOST);
        assert!((list.encode(u64::MAX, "x").len() as u64) < FILE_MOST);
    }

    proptest! {
        #[test]
        fn whatever_a_file_holds_is_read_or_refused(text in "(covey-memory-list 1\nof 9 x\n)?[0-9 \nend]{0,60}") {
            if let Ok(list) = List::decode(&text, 9, "x") {
                prop_assert!(list.spans().iter().all(|span| span.offset + span.len <= 9));
            }
        }
    }
}
