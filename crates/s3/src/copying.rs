//! Copies. Within a bucket they are by reference: no byte is moved. Between buckets bytes are read and
//! written.

use std::sync::Arc;

use base::Timestamp;
use s3s::s3_error;

use crate::attributes::{Headers, Sum};
use crate::bucket::Bucket;
use crate::errors::{self, Result};
use crate::keys::Key;
use crate::list::EMPTY;
use crate::object::{self, Object, ReadConditions, Wanted};
use crate::stage::{self, Conditions, Dress, Staged, Whole};
use crate::sums::{Algorithm, Digests, Expected};
use crate::uploads;

/// Bytes that a copy between buckets moves at a time.
const PIECE: usize = 1 << 20;

/// An object that is copied.
pub struct From<'a> {
    /// The object's bucket.
    pub bucket: &'a Arc<Bucket>,
    /// The object's key.
    pub key: &'a str,
    /// Conditions on it.
    pub conditions: &'a ReadConditions,
}

impl From<'_> {
    fn open(&self) -> Result<Object> {
        let object = object::open(self.bucket, self.key)?;
        self.conditions.check_source(&object)?;
        Ok(object)
    }
}

/// What a copy is, and when it was made.
pub struct Copied {
    /// The copy's ETag, without quotes.
    pub etag: String,
    /// The copy's time.
    pub modified: Timestamp,
    /// The copy's checksum.
    pub sum: Option<Sum>,
}

/// What replaces the headers and the tags of the original.
#[derive(Clone, Debug, Default)]
pub struct Instead {
    /// Headers.
    pub headers: Option<Headers>,
    /// Tags, in the form that is kept; the inner `None` removes them.
    pub tags: Option<Option<String>>,
}

/// How often a copy of something that changes meanwhile begins anew.
const TRIES: usize = 4;

/// The bytes of an object, or of a part of it, which were those of this object while they were copied: what
/// belongs to the object belongs to them too.
fn settled(
    from: &From<'_>,
    to: &Arc<Bucket>,
    sums: &[Algorithm],
    wanted: impl Fn(&Object) -> Result<Wanted>,
) -> Result<(Object, Wanted, Whole, Option<Digests>)> {
    for _ in 0..TRIES {
        let original = from.open()?;
        let wanted = wanted(&original)?;
        let copied = bytes(from.bucket, to, &original, wanted, sums);
        let now = from.bucket.fs().getattr(original.found.node()).map_err(errors::of)?;
        if (now.version, now.size) == (original.found.attr.version, original.found.attr.size) {
            return copied.map(|(whole, digests)| (original, wanted, whole, digests));
        }
    }
    Err(s3_error!(OperationAborted, "the object that is copied changes all the time: try again"))
}

impl Instead {
    /// The headers and the tags of a copy.
    fn of(self, original: &Object) -> Result<(Headers, Option<String>)> {
        let headers = self.headers.unwrap_or_else(|| original.headers.clone());
        headers.check()?;
        Ok((headers, self.tags.unwrap_or_else(|| original.tags.clone())))
    }
}

/// Copies an object. `conditions` are those on the object that the copy replaces. When this returns, the copy
/// is durable.
pub fn object(
    from: &From<'_>,
    to: &Arc<Bucket>,
    key: &str,
    instead: Instead,
    conditions: &Conditions,
) -> Result<Copied> {
    to.writable().map_err(errors::of)?;
    let path = Key::parse(key)?;
    let same = Arc::ptr_eq(from.bucket, to) && from.key == key;
    instead.headers.as_ref().map_or(Ok(()), Headers::check)?;
    if same && instead.headers.is_none() {
        from.open()?;
        return Err(s3_error!(InvalidRequest, "a copy onto itself must replace the metadata"));
    }
    if path.is_folder() {
        return folder(&from.open()?, to, &path, instead, conditions);
    }
    let whole_of = |original: &Object| Ok(Wanted { offset: 0, len: original.size, partial: false });
    let (original, _, whole, digests) = settled(from, to, &[], whole_of)?;
    let (headers, tags) = instead.of(&original)?;
    let parts = original.parts.clone();
    let mut dress = Dress { headers, tags, sum: original.sum.clone(), parts, ..Dress::default() };
    dress.etag = etag(&original, digests.as_ref(), whole.node().0);
    let attr = whole.dress(&dress).map_err(errors::of)?;
    whole.publish(&path, conditions)?;
    Ok(Copied { etag: dress.etag, modified: attr.mtime, sum: dress.sum })
}

/// Copies an object without bytes to a folder.
fn folder(
    original: &Object,
    to: &Arc<Bucket>,
    path: &Key,
    instead: Instead,
    conditions: &Conditions,
) -> Result<Copied> {
    let (headers, tags) = instead.of(original)?;
    if original.size > 0 {
        return Err(s3_error!(InvalidArgument, "a folder has no content"));
    }
    let dress = Dress { headers, tags, etag: EMPTY.to_owned(), ..Dress::default() };
    stage::make_folder(to, path, &dress, conditions)?;
    Ok(Copied { etag: dress.etag, modified: base::time::now(), sum: None })
}

/// The ETag of a copy. Equal content keeps its MD5. Content that was written through the mount has none, and
/// is not read to compute one.
fn etag(original: &Object, digests: Option<&Digests>, node: u64) -> String {
    match digests {
        _ if !original.etag.ends_with("-0") => original.etag.clone(),
        Some(digests) => digests.md5_hex(),
        None => format!("{}-0", unread(original, &[node, original.size])),
    }
}

/// A name for content that was not read: 32 hexadecimal digits, as an MD5 has.
fn unread(original: &Object, numbers: &[u64]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(original.etag.as_bytes());
    for number in numbers {
        hasher.update(&number.to_be_bytes());
    }
    let hex = hasher.finalize().to_hex();
    hex.get(..32).unwrap_or_default().to_owned()
}

/// A part of an object as a file without a name. Checksums are there if the bytes had to be read.
fn bytes(
    from: &Arc<Bucket>,
    to: &Arc<Bucket>,
    original: &Object,
    wanted: Wanted,
    sums: &[Algorithm],
) -> Result<(Whole, Option<Digests>)> {
    let expected = Expected { also: sums.to_vec(), ..Expected::default() };
    let mut staged = Staged::new(to, &expected).map_err(errors::of)?;
    let node = original.found.node();
    if Arc::ptr_eq(from.fs(), to.fs()) {
        if wanted.len > 0 {
            staged.share(node, wanted.offset, wanted.len).map_err(errors::of)?;
        }
        let (whole, digests) = staged.finish();
        return Ok((whole, (wanted.len == 0).then_some(digests)));
    }
    let mut piece = vec![0; PIECE];
    let mut done = 0;
    while done < wanted.len {
        let len = (wanted.len - done).min(PIECE as u64) as usize;
        let room = piece.get_mut(..len).unwrap_or_default();
        let read = from.fs().read(node, wanted.offset + done, room).map_err(errors::of)?;
        if read != len {
            return Err(errors::internal("the file was cut"));
        }
        staged.write(room).map_err(errors::of)?;
        done += len as u64;
    }
    let (whole, digests) = staged.finish();
    Ok((whole, Some(digests)))
}

/// Where a copied part goes.
pub struct ToPart<'a> {
    /// The bucket.
    pub bucket: &'a Arc<Bucket>,
    /// The key of the upload.
    pub key: &'a str,
    /// The id of the upload.
    pub id: &'a str,
    /// The number of the part.
    pub number: i32,
}

/// The range of an object of this size that a client names.
fn range_of(range: Option<&str>, size: u64) -> Result<Wanted> {
    let Some(range) = range else { return Ok(Wanted { offset: 0, len: size, partial: false }) };
    let invalid = || s3_error!(InvalidArgument, "the range to copy is bytes=FIRST-LAST, inside the object");
    let (first, last) =
        range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).ok_or_else(invalid)?;
    let (first, last): (u64, u64) = first.parse().ok().zip(last.parse().ok()).ok_or_else(invalid)?;
    if first > last || last >= size {
        return Err(invalid());
    }
    Ok(Wanted { offset: first, len: last - first + 1, partial: true })
}

/// Copies a range of an object to a part of an upload.
pub fn part(from: &From<'_>, to: &ToPart<'_>, range: Option<&str>) -> Result<Copied> {
    to.bucket.writable().map_err(errors::of)?;
    let upload = uploads::find(to.bucket, to.key, to.id)?;
    let sums: Vec<Algorithm> = upload.summing.iter().map(|summing| summing.algorithm).collect();
    let wanted = |original: &Object| range_of(range, original.size);
    let (original, wanted, whole, digests) = settled(from, to.bucket, &sums, wanted)?;
    let is_md5 = original.etag.len() == 32 && !wanted.partial;
    let etag = match &digests {
        Some(digests) => digests.md5_hex(),
        None if is_md5 => original.etag.clone(),
        None => unread(&original, &[wanted.offset, wanted.len]),
    };
    let sum = digests.as_ref().and_then(Digests::kept);
    let dress = Dress { etag, sum, ..Dress::default() };
    uploads::keep(to.bucket, to.key, to.id, to.number, &whole, &dress)?;
    Ok(Copied { etag: dress.etag, modified: base::time::now(), sum: dress.sum })
}
