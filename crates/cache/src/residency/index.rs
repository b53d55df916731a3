//! The cache's contents, kept over a restart: a file to which every change is appended.
//!
//! ```text
//!   header   magic: 4 B "covI"  version: 4 B  0: 8 B
//!   record   crc32c: 4 B  kind: 1 B  rank: 1 B  cost: 1 B  0: 1 B  size: 4 B  id: 32 B
//! ```
//!
//! Numbers are big-endian. The CRC covers the 40 bytes behind it. The index is only an aid: the files in the
//! folder of blobs are authoritative. So it is not synced. After a kill it is complete. After a power cut it
//! ends at the first record that does not verify. A background task compares it with the folder.
//!
//! The pending deletions in the origin are recorded nowhere else. That a deletion is *settled* must be
//! durable before a blob that is stored again is relied on. The code that stores it ensures this with
//! [`Index::sync`].
//!
//! An index that has grown too long is rewritten beside the old one and replaces it ([`Rewrite`]).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::BlobId;
use base::size::BLOB_MAX;
use blob::sums::crc32c;

use super::{Cost, Rank};

const HEADER: usize = 16;
const RECORD: usize = 44;
const MAGIC: [u8; 4] = *b"covI";
const VERSION: u32 = 1;
/// Records that are read at once.
const BATCH: usize = 16 << 10;

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A blob is here.
    Here {
        /// The blob's name.
        id: BlobId,
        /// The blob's size in bytes.
        size: u32,
        /// What it costs to fetch again.
        cost: Cost,
        /// The blob's rank.
        rank: Rank,
    },
    /// The blob is no longer here.
    Gone(BlobId),
    /// The blob got another rank than [`Rank::New`].
    Ranked(BlobId, Rank),
    /// The blob must be deleted in the origin.
    Unwanted(BlobId),
    /// The deletion of the blob in the origin was done or cancelled.
    Settled(BlobId),
}

impl Record {
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, rank, cost, size, id) = match self {
            Record::Here { id, size, cost, rank } => (1, *rank as u8, cost.code(), *size, id),
            Record::Gone(id) => (2, 0, 0, 0, id),
            Record::Ranked(id, rank) => (3, *rank as u8, 0, 0, id),
            Record::Unwanted(id) => (4, 0, 0, 0, id),
            Record::Settled(id) => (5, 0, 0, 0, id),
        };
        let mut body = [0; RECORD - 4];
        body[..4].copy_from_slice(&[kind, rank, cost, 0]);
        body[4..8].copy_from_slice(&size.to_be_bytes());
        body[8..].copy_from_slice(&id.0);
        out.extend_from_slice(&crc32c(&body).to_be_bytes());
        out.extend_from_slice(&body);
    }

    fn decode(bytes: &[u8]) -> Option<Record> {
        let (crc, body) = bytes.split_first_chunk::<4>()?;
        if crc32c(body) != u32::from_be_bytes(*crc) {
            return None;
        }
        let (head, rest) = body.split_first_chunk::<4>()?;
        let (size, id) = rest.split_first_chunk::<4>()?;
        let size = u32::from_be_bytes(*size);
        let id = BlobId(id.try_into().ok()?);
        Some(match head[0] {
            1 if size <= BLOB_MAX => {
                Record::Here { id, size, cost: Cost::from_code(head[2]), rank: rank_of(head[1], Rank::New) }
            }
            2 => Record::Gone(id),
            3 => Record::Ranked(id, rank_of(head[1], Rank::Proven)),
            4 => Record::Unwanted(id),
            5 => Record::Settled(id),
            _ => return None,
        })
    }
}

/// The rank of that code. Other codes, and the 0 of older records, stand for `other`.
fn rank_of(code: u8, other: Rank) -> Rank {
    [Rank::Proven, Rank::Kept].into_iter().find(|rank| *rank as u8 == code).unwrap_or(other)
}

/// An open index. See the [module](self).
pub struct Index {
    path: PathBuf,
    file: File,
    len: u64,
    records: u64,
    /// A record may be partial or missing, so the index must be rewritten before the next append.
    broken: bool,
    /// The file's name may not be durable yet.
    renamed: bool,
    /// How much of the file is durable.
    durable: u64,
}

impl Index {
    /// Opens the index and calls `each` with its records in order. Creates the file if it is absent or is not
    /// an index. Cuts off everything from the first record that does not verify.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path, each: &mut dyn FnMut(Record)) -> io::Result<Index> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut header = [0; HEADER];
        let known = file.read_exact(&mut header).is_ok() && header == head();
        let mut index = Index {
            path: path.to_owned(),
            file,
            len: HEADER as u64,
            records: 0,
            broken: false,
            renamed: true,
            durable: 0,
        };
        if known {
            index.read(each)?;
        } else {
            index.file.write_all_at(&head(), 0)?;
        }
        index.file.set_len(index.len)?;
        Ok(index)
    }

    /// Roughly how many records the file has, so that callers can reserve space.
    pub fn expected(path: &Path) -> usize {
        fs::metadata(path).map_or(0, |file| file.len() as usize / RECORD)
    }

    fn read(&mut self, each: &mut dyn FnMut(Record)) -> io::Result<()> {
        let mut batch = vec![0; BATCH * RECORD];
        let mut left = 0;
        loop {
            let got = self.file.read(&mut batch[left..])?;
            let have = left + got;
            let whole = have - have % RECORD;
            for bytes in batch[..whole].chunks_exact(RECORD) {
                let Some(record) = Record::decode(bytes) else { return Ok(()) };
                each(record);
                self.len += RECORD as u64;
                self.records += 1;
            }
            if got == 0 {
                return Ok(());
            }
            batch.copy_within(whole..have, 0);
            left = have - whole;
        }
    }

    /// How many records it has.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Whether it must be rewritten before it takes more records.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// How many bytes of the file are certainly durable.
    pub fn durable_len(&self) -> u64 {
        self.durable
    }

    /// Appends records. They survive a kill right after.
    ///
    /// # Errors
    /// The system's error. The index is broken then.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("the cache's index has to be written anew first"));
        }
        let bytes = encode(records);
        if let Err(error) = self.file.write_all_at(&bytes, self.len) {
            self.broken = true;
            return Err(error);
        }
        self.len += bytes.len() as u64;
        self.records += records.len() as u64;
        Ok(())
    }

    /// Makes appended records durable.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&mut self) -> io::Result<()> {
        let len = self.len;
        self.file.sync_data()?;
        self.durable = len;
        if self.renamed {
            sync_folder(&self.path)?;
            self.renamed = false;
        }
        Ok(())
    }
}

/// A new index that is being written beside the one it will replace.
pub struct Rewrite {
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    len: u64,
    records: u64,
}

impl Rewrite {
    /// Writes a new index that holds `records`. Records appended to the old one before [`Rewrite::install`]
    /// must be passed to that call.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin(path: &Path, records: &[Record]) -> io::Result<Rewrite> {
        let mut temporary = path.to_owned().into_os_string();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let mut rewrite = Rewrite { path: path.to_owned(), temporary, file, len: HEADER as u64, records: 0 };
        let written = rewrite.file.write_all_at(&head(), 0).and_then(|()| rewrite.add(records));
        match written.and_then(|()| rewrite.file.sync_data()) {
            Ok(()) => Ok(rewrite),
            Err(error) => {
                let _ = fs::remove_file(&rewrite.temporary);
                Err(error)
            }
        }
    }

    /// Replaces the old index. `since` holds the records that were appended to it meanwhile. That a deletion
    /// is settled may be durable in the old index, so it is made durable in the new one first.
    ///
    /// # Errors
    /// The system's error. The old index is unchanged then.
    pub fn install(mut self, since: &[Record]) -> io::Result<Index> {
        let mut durable = self.len;
        let mut added = self.add(since);
        if added.is_ok() && since.iter().any(|record| matches!(record, Record::Settled(_))) {
            added = self.file.sync_data();
            durable = self.len;
        }
        let done = added.and_then(|()| fs::rename(&self.temporary, &self.path));
        if let Err(error) = done {
            let _ = fs::remove_file(&self.temporary);
            return Err(error);
        }
        let Rewrite { path, file, len, records, .. } = self;
        Ok(Index { path, file, len, records, broken: false, renamed: true, durable })
    }

    fn add(&mut self, records: &[Record]) -> io::Result<()> {
        for records in records.chunks(BATCH) {
            let bytes = encode(records);
            self.file.write_all_at(&bytes, self.len)?;
            self.len += bytes.len() as u64;
        }
        self.records += records.len() as u64;
        Ok(())
    }
}

fn encode(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(records.len() * RECORD);
    records.iter().for_each(|record| record.encode(&mut bytes));
    bytes
}

fn head() -> [u8; HEADER] {
    let mut head = [0; HEADER];
    head[..4].copy_from_slice(&MAGIC);
    head[4..8].copy_from_slice(&VERSION.to_be_bytes());
    head
}

fn sync_folder(file: &Path) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
