//! Uploads in parts.
//!
//! ```text
//!   .covey-s3/uploads/ID/           key, headers, tags and algorithm, as attributes
//!   .covey-s3/uploads/ID/00001      a part
//! ```
//!
//! The parts of an upload become an object by reference: no byte is moved. They survive a restart.
//!
//! **An upload ends once**: by one completion or by one abort. The first that sets the attribute ENDED ends
//! it, and from then on it is not found. A completion sets it under the bucket's lock, just before the object
//! gets its name, so no older content replaces what another client put there since. It takes KEY away when
//! the name is durable, and then removes the parts. A crash between leaves an upload with both attributes.
//! The next start looks whether its object is there. If so, the parts go. If not, the upload is open again:
//! its completion was not answered, and its parts were.

use std::sync::Arc;

use base::Timestamp;
use crc_fast::CrcAlgorithm;
use fs::Errno;
use fs::api::{FileKind, XattrMode};
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::{S3Error, S3ErrorCode, s3_error};

use crate::attributes::{self, Headers, Parts, Sum};
use crate::bucket::{Bucket, Found, Held, Outcome, there};
use crate::errors::{self, Result};
use crate::keys::Key;
use crate::stage::{self, Conditions, Dress, Staged, Whole};
use crate::sums::{Algorithm, Expected, hex};

/// The folder with the uploads.
const UPLOADS: &[u8] = b"uploads";
/// The key that an upload is for.
const KEY: &str = "user.s3.key";
/// An upload that a completion or an abort ends.
const ENDED: &str = "user.s3.ended";
/// How often the parts of an ended upload are listed again because one more arrived.
const TRIES: usize = 8;
/// The checksum that an upload computes: algorithm and type.
const ALGORITHM: &str = "user.s3.algorithm";
/// The highest number of a part.
pub const PARTS_MAX: i32 = 10_000;
/// The smallest part, except the last.
const PART_MIN: u64 = 5 << 20;

/// How the checksum of an upload's object comes from those of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summing {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The checksum is that of the whole object, not one of the parts' checksums.
    pub full: bool,
}

impl Summing {
    /// What a client asks for. Without a type, CRC-64 sums the whole object and the others sum the parts.
    pub fn asked(algorithm: Option<&str>, kind: Option<&str>) -> Result<Option<Summing>> {
        let Some(name) = algorithm else { return Ok(None) };
        let algorithm = Algorithm::named(name)?;
        let full = match kind {
            Some("FULL_OBJECT") => true,
            Some("COMPOSITE") => false,
            None => algorithm == Algorithm::Crc64Nvme,
            Some(_) => return Err(s3_error!(InvalidRequest, "a checksum is COMPOSITE or FULL_OBJECT")),
        };
        let can = match algorithm {
            Algorithm::Sha1 | Algorithm::Sha256 => !full,
            Algorithm::Crc64Nvme => full,
            Algorithm::Crc32 | Algorithm::Crc32c => true,
        };
        if can {
            Ok(Some(Summing { algorithm, full }))
        } else {
            Err(s3_error!(InvalidRequest, "this algorithm does not have this type of checksum"))
        }
    }

    /// The type, as S3 names it.
    pub fn kind(self) -> &'static str {
        if self.full { "FULL_OBJECT" } else { "COMPOSITE" }
    }

    fn to_text(self) -> String {
        format!("{} {}", self.algorithm.name(), self.kind())
    }

    fn from_text(text: &str) -> Option<Summing> {
        let (algorithm, kind) = text.split_once(' ')?;
        Summing::asked(Some(algorithm), Some(kind)).ok()?
    }

    /// The checksum of the object. `None` if a part has none.
    fn combine(self, parts: &[Part]) -> Option<Sum> {
        let name = self.algorithm.name();
        let raw: Vec<Vec<u8>> = parts
            .iter()
            .map(|part| {
                let sum = part.sum.as_ref().filter(|sum| sum.algorithm == name)?;
                base64_simd::STANDARD.decode_to_vec(&sum.value).ok()
            })
            .collect::<Option<_>>()?;
        let value = if self.full {
            let sizes = parts.iter().map(|part| part.size);
            base64_simd::STANDARD.encode_to_string(crc_of(self.algorithm, raw.iter().zip(sizes))?)
        } else {
            let all = raw.concat();
            let digest: Vec<u8> = match self.algorithm {
                Algorithm::Crc32 => Crc32::checksum(&all).to_vec(),
                Algorithm::Crc32c => Crc32c::checksum(&all).to_vec(),
                Algorithm::Crc64Nvme => Crc64Nvme::checksum(&all).to_vec(),
                Algorithm::Sha1 => Sha1::checksum(&all).to_vec(),
                Algorithm::Sha256 => Sha256::checksum(&all).to_vec(),
            };
            format!("{}-{}", base64_simd::STANDARD.encode_to_string(digest), parts.len())
        };
        Some(Sum { algorithm: name.to_owned(), kind: self.kind().to_owned(), value })
    }
}

/// The CRC of several pieces behind one another.
fn crc_of<'r>(algorithm: Algorithm, pieces: impl Iterator<Item = (&'r Vec<u8>, u64)>) -> Option<Vec<u8>> {
    let (kind, width) = match algorithm {
        Algorithm::Crc32 => (CrcAlgorithm::Crc32IsoHdlc, 4),
        Algorithm::Crc32c => (CrcAlgorithm::Crc32Iscsi, 4),
        Algorithm::Crc64Nvme => (CrcAlgorithm::Crc64Nvme, 8),
        Algorithm::Sha1 | Algorithm::Sha256 => return None,
    };
    let mut whole: Option<u64> = None;
    for (raw, size) in pieces {
        if raw.len() != width {
            return None;
        }
        let crc = raw.iter().fold(0, |crc: u64, &byte| crc << 8 | u64::from(byte));
        whole = Some(whole.map_or(crc, |before| crc_fast::checksum_combine(kind, before, crc, size)));
    }
    let bytes = whole?.to_be_bytes();
    bytes.get(8 - width..).map(<[u8]>::to_vec)
}

/// An upload that is under way.
pub struct Upload {
    held: Held,
    /// The upload's id.
    pub id: String,
    /// The key that it is for.
    pub key: String,
    /// When it began.
    pub begun: Timestamp,
    /// The checksum of its object.
    pub summing: Option<Summing>,
}

/// A part of an upload.
#[derive(Clone, Debug)]
pub struct Part {
    /// The part's number.
    pub number: i32,
    /// The part's size in bytes.
    pub size: u64,
    /// The part's ETag, without quotes.
    pub etag: String,
    /// When it arrived.
    pub modified: Timestamp,
    /// The part's checksum.
    pub sum: Option<Sum>,
}

fn no_upload() -> S3Error {
    s3_error!(NoSuchUpload, "there is no such upload; it may have been completed or aborted")
}

fn checked(number: i32) -> Result<i32> {
    match number {
        1..=PARTS_MAX => Ok(number),
        _ => Err(s3_error!(InvalidArgument, "parts have the numbers 1 to 10,000")),
    }
}

fn part_name(number: i32) -> Vec<u8> {
    format!("{number:05}").into_bytes()
}

/// Begins an upload, and returns its id when it is durable.
pub fn create(bucket: &Bucket, key: &str, dress: &Dress, summing: Option<Summing>) -> Result<String> {
    bucket.writable().map_err(errors::of)?;
    dress.headers.check()?;
    if Key::parse(key)?.is_folder() {
        return Err(s3_error!(InvalidArgument, "a folder has no content: put it with an empty body"));
    }
    let id = stage::unique();
    let made = || -> Outcome<()> {
        let uploads = bucket.hidden(UPLOADS)?;
        let folder = bucket.own_folder(uploads.node(), id.as_bytes())?;
        let node = folder.node();
        dress.headers.write(bucket, node)?;
        if let Some(tags) = &dress.tags {
            bucket.set(node, attributes::TAGS, tags.as_bytes())?;
        }
        if let Some(summing) = summing {
            bucket.set(node, ALGORITHM, summing.to_text().as_bytes())?;
        }
        // Last: an upload without a key is none.
        bucket.set(node, KEY, key.as_bytes())?;
        bucket.fs().fsync(node, false)
    };
    made().map_err(errors::of)?;
    Ok(id)
}

fn is_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Finds an upload.
pub fn find(bucket: &Bucket, key: &str, id: &str) -> Result<Upload> {
    let upload = get(bucket, id).map_err(errors::of)?;
    upload.filter(|upload| upload.key == key).ok_or_else(no_upload)
}

/// The folder with the uploads.
fn folder(bucket: &Bucket) -> Outcome<Option<Held>> {
    bucket.hidden_if_there(UPLOADS)
}

fn get(bucket: &Bucket, id: &str) -> Outcome<Option<Upload>> {
    if !is_id(id) {
        return Ok(None);
    }
    let Some(uploads) = folder(bucket)? else { return Ok(None) };
    let Some(found) = there(bucket.lookup(uploads.node(), id.as_bytes()))? else { return Ok(None) };
    let found = bucket.ours(found)?;
    there(read(bucket, id, found)).map(Option::flatten)
}

/// The upload in a folder, if it is one that goes on.
fn read(bucket: &Bucket, id: &str, found: Found) -> Outcome<Option<Upload>> {
    let node = found.node();
    let Some(key) = bucket.get(node, KEY)? else { return Ok(None) };
    if bucket.has(node, ENDED)? {
        return Ok(None);
    }
    let summing = bucket.get(node, ALGORITHM)?.and_then(|text| Summing::from_text(&text));
    Ok(Some(Upload { begun: found.attr.btime, held: found.held, id: id.to_owned(), key, summing }))
}

/// Whether the upload in this folder goes on: NoSuchUpload if it has ended. Under the bucket's lock.
pub(crate) fn check_open(bucket: &Bucket, node: base::Ino) -> Result<()> {
    let open = bucket.has(node, KEY).and_then(|has| Ok(has && !bucket.has(node, ENDED)?));
    match there(open).map_err(errors::of)? {
        Some(true) => Ok(()),
        _ => Err(no_upload()),
    }
}

/// Ends the upload in this folder: NoSuchUpload if something else has ended it, also on another node. Under
/// the bucket's lock.
pub(crate) fn claim(bucket: &Bucket, node: base::Ino) -> Result<()> {
    match bucket.fs().setxattr(node, ENDED.as_bytes(), b"1", XattrMode::Create, false) {
        Err(Errno::EEXIST | Errno::ENOENT) => Err(no_upload()),
        other => other.map_err(errors::of),
    }
}

/// Opens an upload again whose end failed. If this fails too, the next start does it.
pub(crate) fn release(bucket: &Bucket, node: base::Ino) {
    let _ = bucket.unset(node, ENDED);
}

/// All uploads of a bucket, by key and then by time.
pub fn all(bucket: &Bucket) -> Result<Vec<Upload>> {
    let Some(folder) = folder(bucket).map_err(errors::of)? else { return Ok(Vec::new()) };
    let names = stage::names(bucket, folder.node()).map_err(errors::of)?;
    let mut uploads = Vec::new();
    for id in names.iter().filter_map(|name| std::str::from_utf8(name).ok()) {
        uploads.extend(get(bucket, id).map_err(errors::of)?);
    }
    uploads.sort_by(|a, b| (&a.key, a.begun, &a.id).cmp(&(&b.key, b.begun, &b.id)));
    Ok(uploads)
}

/// Keeps a part that has arrived. When this returns, it is durable.
pub fn keep(bucket: &Bucket, key: &str, id: &str, number: i32, whole: &Whole, dress: &Dress) -> Result<()> {
    let upload = find(bucket, key, id)?;
    let name = part_name(checked(number)?);
    whole.dress(dress).map_err(errors::of)?;
    let entered = match whole.enter(upload.held.node(), &name, false) {
        Err(Errno::EEXIST) => whole.enter(upload.held.node(), &name, true),
        other => other,
    };
    entered.map_err(|errno| if errno == Errno::ENOENT { no_upload() } else { errors::of(errno) })?;
    whole.sync().map_err(errors::of)
}

fn part_of(bucket: &Bucket, number: i32, found: &Found) -> Outcome<Part> {
    let (node, attr) = (found.node(), &found.attr);
    let etag = attributes::etag(bucket, node, attr)?;
    let sum = attributes::sum(bucket, node, attr)?;
    Ok(Part { number, size: attr.size, etag, modified: attr.mtime, sum })
}

/// The parts behind a number, at most `max`, and whether there are more.
pub fn parts(bucket: &Bucket, upload: &Upload, after: i32, max: usize) -> Result<(Vec<Part>, bool)> {
    let names = stage::names(bucket, upload.held.node()).map_err(errors::of)?;
    let number = |name: &Vec<u8>| std::str::from_utf8(name).ok()?.parse::<i32>().ok();
    let mut numbers: Vec<i32> = names.iter().filter_map(number).filter(|&number| number > after).collect();
    numbers.sort_unstable();
    let more = numbers.len() > max;
    let mut parts = Vec::new();
    for number in numbers.into_iter().take(max) {
        let found = bucket.lookup(upload.held.node(), &part_name(number));
        let part = found.and_then(|found| part_of(bucket, number, &found));
        parts.extend(there(part).map_err(errors::of)?);
    }
    Ok((parts, more))
}

/// A part as a client names it to complete an upload.
#[derive(Clone, Debug)]
pub struct Named {
    /// The part's number.
    pub number: i32,
    /// The part's ETag, without quotes.
    pub etag: Option<String>,
    /// The part's checksums.
    pub sums: s3s::dto::Checksum,
}

/// What a client says when it completes an upload.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// The parts.
    pub parts: Vec<Named>,
    /// Conditions on the object that is there.
    pub conditions: Conditions,
    /// The checksum that the object should have.
    pub sums: s3s::dto::Checksum,
    /// The size that it should have.
    pub size: Option<u64>,
}

/// The object that an upload became.
#[derive(Clone, Debug)]
pub struct Completed {
    /// The object's ETag, without quotes.
    pub etag: String,
    /// The object's checksum.
    pub sum: Option<Sum>,
}

/// Makes the object of an upload. A client that did not get the answer may ask again.
pub fn complete(bucket: &Arc<Bucket>, key: &str, id: &str, asked: &Completion) -> Result<Completed> {
    bucket.writable().map_err(errors::of)?;
    let path = Key::parse(key)?;
    let upload = match find(bucket, key, id) {
        Ok(upload) => upload,
        Err(error) => return done_before(bucket, &path, id, error),
    };
    let found = chosen(bucket, &upload, asked)?;
    let parts: Vec<Part> = found.iter().map(|(part, _)| part.clone()).collect();
    let total: u64 = parts.iter().map(|part| part.size).sum();
    if asked.size.is_some_and(|size| size != total) {
        return Err(s3_error!(InvalidRequest, "the object would have {total} bytes"));
    }
    let sum = upload.summing.and_then(|summing| summing.combine(&parts));
    compare(&asked.sums, sum.as_ref(), &parts)?;
    let mut staged = Staged::new(bucket, &Expected::default()).map_err(errors::of)?;
    let mut sizes = Parts::default();
    for (part, found) in &found {
        staged.share(found.node(), 0, part.size).map_err(errors::of)?;
        sizes.push(part.size);
    }
    let (whole, _) = staged.finish();
    let node = upload.held.node();
    let dress = Dress {
        headers: Headers::read(bucket, node).map_err(errors::of)?,
        tags: bucket.get(node, attributes::TAGS).map_err(errors::of)?,
        etag: etag_of(&parts),
        sum: sum.clone(),
        parts: Some(sizes),
        upload: Some(id.to_owned()),
    };
    whole.dress(&dress).map_err(errors::of)?;
    if let Err(error) = whole.publish_of(&path, &asked.conditions, Some(node)) {
        // Another completion may have been first.
        return done_before(bucket, &path, id, error);
    }
    // The object is there. If the parts cannot be removed now, the next start does it.
    let _ = discard(bucket, &upload);
    Ok(Completed { etag: dress.etag, sum })
}

/// Compares the checksums that a client gives for an object. `sum`: the one that the upload computes. Others
/// come from the same checksums of all parts. The checksum of checksums has the number of parts behind it,
/// which some clients leave out.
fn compare(given: &s3s::dto::Checksum, sum: Option<&Sum>, parts: &[Part]) -> Result<()> {
    for algorithm in Algorithm::ALL {
        let Some(given) = algorithm.of(given) else { continue };
        let computed: Vec<Sum> = match sum {
            Some(sum) if sum.algorithm == algorithm.name() => vec![sum.clone()],
            _ => {
                [true, false].iter().filter_map(|&full| Summing { algorithm, full }.combine(parts)).collect()
            }
        };
        let fits = |sum: &Sum| {
            sum.value == *given || sum.value.split_once('-').is_some_and(|(value, _)| value == given)
        };
        if !computed.is_empty() && !computed.iter().any(fits) {
            return Err(s3_error!(BadDigest, "the object does not have the given checksum"));
        }
    }
    Ok(())
}

/// The object, if this upload has become it already. The error if it has not, and was not found.
fn done_before(bucket: &Bucket, key: &Key, id: &str, error: S3Error) -> Result<Completed> {
    if *error.code() != S3ErrorCode::NoSuchUpload {
        return Err(error);
    }
    let found = || -> Outcome<Option<Completed>> {
        let Some(found) = there(bucket.find(key))? else { return Ok(None) };
        let (node, attr) = (found.node(), &found.attr);
        if bucket.get(node, attributes::UPLOAD)?.as_deref() != Some(id) {
            return Ok(None);
        }
        let etag = attributes::etag(bucket, node, attr)?;
        let sum = attributes::sum(bucket, node, attr)?;
        // The completion that made it may not have been answered yet.
        bucket.fs().fsync(node, false)?;
        Ok(Some(Completed { etag, sum }))
    };
    found().map_err(errors::of)?.ok_or(error)
}

/// The parts that a client chose, in order.
fn chosen(bucket: &Bucket, upload: &Upload, asked: &Completion) -> Result<Vec<(Part, Found)>> {
    let invalid = || s3_error!(InvalidPart, "a part is missing, or does not have the given ETag or checksum");
    if asked.parts.is_empty() {
        return Err(s3_error!(MalformedXML, "no parts are named"));
    }
    if !asked.parts.is_sorted_by(|a, b| a.number < b.number) {
        return Err(s3_error!(InvalidPartOrder, "parts must be named in ascending order"));
    }
    let mut chosen = Vec::with_capacity(asked.parts.len());
    for named in &asked.parts {
        let found = there(bucket.lookup(upload.held.node(), &part_name(named.number)));
        let found = found.map_err(errors::of)?.ok_or_else(invalid)?;
        if found.attr.kind != FileKind::File {
            return Err(invalid());
        }
        let part = part_of(bucket, named.number, &found).map_err(errors::of)?;
        let other = Algorithm::ALL.into_iter().any(|algorithm| {
            let has = part.sum.as_ref().filter(|sum| sum.algorithm == algorithm.name());
            algorithm.of(&named.sums).is_some_and(|given| has.is_none_or(|sum| sum.value != *given))
        });
        if other || named.etag.as_ref().is_some_and(|etag| *etag != part.etag) {
            return Err(invalid());
        }
        chosen.push((part, found));
    }
    let small = |(part, _): &(Part, Found)| part.size < PART_MIN;
    if chosen.split_last().is_some_and(|(_, before)| before.iter().any(small)) {
        return Err(s3_error!(EntityTooSmall, "a part other than the last has less than 5 MiB"));
    }
    Ok(chosen)
}

/// The ETag of an object made of parts: the MD5 of their MD5s, and their number.
fn etag_of(parts: &[Part]) -> String {
    let mut md5 = Md5::new();
    for part in parts {
        let digits = part.etag.as_bytes().chunks(2).map_while(|two| std::str::from_utf8(two).ok());
        let bytes: Vec<u8> = digits.map_while(|two| u8::from_str_radix(two, 16).ok()).collect();
        md5.update(&bytes);
    }
    format!("{}-{}", hex(&md5.finalize()), parts.len())
}

/// Ends an upload without an object.
pub fn abort(bucket: &Bucket, key: &str, id: &str) -> Result<()> {
    bucket.writable().map_err(errors::of)?;
    let upload = find(bucket, key, id)?;
    let node = upload.held.node();
    let ended = {
        let _guard = bucket.lock();
        claim(bucket, node)?;
        bucket.unset(node, KEY).inspect_err(|_| release(bucket, node))
    };
    ended.and_then(|()| discard(bucket, &upload)).map_err(errors::of)?;
    stage::settle(bucket)
}

/// Removes an upload that has ended.
fn discard(bucket: &Bucket, upload: &Upload) -> Outcome<()> {
    let node = upload.held.node();
    bucket.unset(node, KEY)?;
    let uploads = bucket.hidden(UPLOADS)?;
    remove(bucket, uploads.node(), upload.id.as_bytes(), node)
}

/// Removes the folder of an upload with its parts. A part that was on its way when the upload ended may still
/// come, so it may take more than one pass.
fn remove(bucket: &Bucket, uploads: base::Ino, id: &[u8], node: base::Ino) -> Outcome<()> {
    let mut outcome = Ok(());
    for _ in 0..TRIES {
        for name in stage::names(bucket, node)? {
            there(bucket.fs().unlink(node, &name))?;
        }
        outcome = there(bucket.fs().rmdir(uploads, id)).map(drop);
        if outcome != Err(Errno::ENOTEMPTY) {
            break;
        }
    }
    outcome?;
    bucket.changed(uploads, id);
    Ok(())
}

/// Removes uploads that were begun or ended only in part. What cannot be read stays, and so does what another
/// node may be working on.
pub fn clean(bucket: &Bucket) -> Outcome<()> {
    if bucket.writable().is_err() {
        return Ok(());
    }
    let Some(uploads) = folder(bucket)? else { return Ok(()) };
    for name in stage::names(bucket, uploads.node())? {
        let Some(found) = there(bucket.lookup(uploads.node(), &name))? else { continue };
        // A folder of somebody else is no upload.
        let Ok(found) = bucket.ours(found) else { continue };
        if bucket.may_be_in_use(&found.attr) {
            continue;
        }
        if is_over(bucket, &name, found.node()) == Ok(true) {
            remove(bucket, uploads.node(), &name, found.node())?;
        }
    }
    Ok(())
}

/// Whether an upload was begun or ended only in part. One whose end left no object is opened again.
fn is_over(bucket: &Bucket, id: &[u8], node: base::Ino) -> Outcome<bool> {
    if !bucket.has(node, KEY)? {
        return Ok(true);
    }
    if !bucket.has(node, ENDED)? {
        return Ok(false);
    }
    let path = bucket.get(node, KEY)?.and_then(|key| Key::parse(&key).ok());
    let Some(path) = path else { return Ok(false) };
    let object = there(bucket.find(&path))?;
    let made = object.map(|object| bucket.get(object.node(), attributes::UPLOAD)).transpose()?.flatten();
    if made.is_some_and(|made| made.as_bytes() == id) {
        return Ok(true);
    }
    bucket.unset(node, ENDED)?;
    Ok(false)
}
