//! The members of a tar archive as files that can be opened in any order.
//!
//! The archive is read once, header by header, to learn where each member's bytes are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::error::{Context, Failure, Result, plain};
use archive::read::Reader;

use crate::Bytes;

/// An archive of an image has a member for each blob, and some more. One with more members is none.
const MEMBERS_MAX: usize = 100_000;
/// The most bytes of their names and links.
const NAMES_MAX: usize = 64 << 20;

/// Where a member is.
#[derive(Clone, Debug)]
enum Member {
    /// The member's bytes: offset and length in the archive.
    File(u64, u64),
    /// A link to another member.
    Link(String),
}

/// The members of an archive file.
#[derive(Debug)]
pub struct Members {
    file: PathBuf,
    members: BTreeMap<String, Member>,
}

/// Counts the bytes that were read, so that the position in the archive is known.
struct Counted {
    file: io::BufReader<File>,
    at: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read(buf)?;
        self.at.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

impl Members {
    /// Reads the headers of an archive without compression.
    ///
    /// # Errors
    /// It cannot be read, is compressed, or is no archive.
    pub fn of(path: &Path) -> Result<Members> {
        let mut file = File::open(path).at("open", path)?;
        let mut head = [0; 4];
        let _ = file.read(&mut head).at("read", path)?;
        if head.starts_with(&[0x1f, 0x8b]) || head == [0x28, 0xb5, 0x2f, 0xfd] {
            return Err(Failure::new("not-an-image", format!("{} is compressed", path.display()))
                .why("its members are read out of order")
                .next("decompress it first: gunzip FILE, or zstd -d FILE"));
        }
        file.seek(SeekFrom::Start(0)).at("read", path)?;
        let at = Arc::new(AtomicU64::new(0));
        let mut reader = Reader::new(Counted { file: io::BufReader::new(file), at: at.clone() });
        let damaged = |why: String| {
            Failure::new("damaged", format!("{} is no archive of an image", path.display())).why(why)
        };
        let (mut members, mut names) = (BTreeMap::new(), 0);
        while let Some(entry) = reader.next_member().map_err(|error| damaged(plain(&error)))? {
            let Some(name) = std::str::from_utf8(&entry.path).ok().and_then(|name| clean(Path::new(name)))
            else {
                return Err(damaged(format!("{:?} is a strange name", String::from_utf8_lossy(&entry.path))));
            };
            let member = match entry.kind {
                // A member with holes has other bytes than its file.
                b'0' if entry.data.iter().map(|(_, len)| len).sum::<u64>() == entry.size => {
                    Member::File(at.load(Ordering::Relaxed), entry.size)
                }
                b'1' | b'2' => {
                    let link = String::from_utf8_lossy(&entry.link).into_owned();
                    let from = if entry.kind == b'2' { Path::new(&name).parent() } else { None };
                    let whole = from.unwrap_or(Path::new("")).join(link);
                    Member::Link(clean(&whole).ok_or_else(|| damaged("a link leads out of it".to_owned()))?)
                }
                _ => continue,
            };
            names += name.len() + entry.link.len();
            if names > NAMES_MAX {
                return Err(damaged(format!("the names in it have more than {} MiB", NAMES_MAX >> 20)));
            }
            members.insert(name, member);
            if members.len() > MEMBERS_MAX {
                return Err(damaged(format!("it has more than {MEMBERS_MAX} members")));
            }
        }
        Ok(Members { file: path.to_owned(), members })
    }

    /// Whether there is such a member.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The size of a member in bytes.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.find(name).map(|(_, len)| len)
    }

    /// Opens a member.
    ///
    /// # Errors
    /// There is none of that name, or the archive cannot be read.
    pub fn open(&self, name: &str) -> Result<Bytes> {
        let (start, len) = self.find(name).ok_or_else(|| {
            Failure::new("damaged", format!("{} has no member {name}", self.file.display()))
                .next("get the archive again")
        })?;
        let mut file = File::open(&self.file).at("open", &self.file)?;
        file.seek(SeekFrom::Start(start)).at("read", &self.file)?;
        Ok(Box::new(file.take(len)))
    }

    /// The bytes of a small member.
    ///
    /// # Errors
    /// As [`Members::open`], and if it has more than `most` bytes.
    pub fn read(&self, name: &str, most: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.take(most + 1).read_to_end(&mut bytes).at("read", &self.file)?;
        if bytes.len() as u64 > most {
            return Err(Failure::new("damaged", format!("{name} has more than {most} bytes")));
        }
        Ok(bytes)
    }

    fn find(&self, name: &str) -> Option<(u64, u64)> {
        let mut name = clean(Path::new(name))?;
        for _ in 0..8 {
            match self.members.get(&name)? {
                Member::File(start, len) => return Some((*start, *len)),
                Member::Link(to) => name = to.clone(),
            }
        }
        None
    }
}

/// A name without `.` and `..`. None if it leads out of the archive.
fn clean(path: &Path) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::CurDir => {}
            Component::ParentDir => drop(parts.pop()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_links_stay_in_the_archive() {
        let names = ["./a/./b", "a/../b", "..", "a/../../b", "/a"];
        let cleaned = names.map(|name| clean(Path::new(name)));
        let texts: Vec<_> = cleaned.iter().map(|name| name.as_deref()).collect();
        assert_eq!(texts, [Some("a/b"), Some("b"), None, None, None]);
    }
}
