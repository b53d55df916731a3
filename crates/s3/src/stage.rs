//! Objects that are being made. Bytes go to a file without a name, which nothing shows. When everything has
//! arrived and is as the client said, the file gets its name, in one step, and is synced. If anything fails
//! before, the file is forgotten.
//!
//! To replace an object, the file first gets a name in the hidden folder and is then renamed over the object.
//! A crash between the two leaves that name, which is removed at the next start.

use std::sync::Arc;

use base::Ino;
use fs::Errno;
use fs::api::{Attr, FileKind, RenameMode};
use s3s::dto::ETagCondition;
use s3s::{S3Error, s3_error};

use crate::attributes::{self, Headers, Parts, Sum};
use crate::bucket::{Bucket, Found, Held, Outcome, there};
use crate::errors::{self, Result};
use crate::keys::Key;
use crate::sums::{Digests, Expected, Hashing};
use crate::uploads;

/// The folder with names of files that are about to replace others.
const STAGE: &[u8] = b"stage";
/// How often a step is repeated that another program made fail by renaming folders.
const TRIES: usize = 8;

/// What must be true of the object that a change replaces or removes.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    /// If-Match.
    pub if_match: Option<ETagCondition>,
    /// If-None-Match.
    pub if_none_match: Option<ETagCondition>,
}

impl Conditions {
    /// Checks them. `etag`: the ETag of the object that is there.
    pub fn check(&self, etag: Option<&str>) -> Result<()> {
        let fits = |condition: &ETagCondition, etag: &str| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(wanted) => wanted.as_strong() == Some(etag),
        };
        if let Some(condition) = &self.if_match {
            match etag {
                None => return Err(errors::of(Errno::ENOENT)),
                Some(etag) if !fits(condition, etag) => return Err(failed()),
                Some(_) => {}
            }
        }
        if let (Some(condition), Some(etag)) = (&self.if_none_match, etag)
            && fits(condition, etag)
        {
            return Err(failed());
        }
        Ok(())
    }
}

/// Refuses conditions of a change that cannot be kept. Between a look at an object and its change, another
/// node may change it. Only a name that must be new is safe: the filesystem itself refuses to give it twice.
fn possible(bucket: &Bucket, conditions: &Conditions, by_link: bool) -> Result<()> {
    let Conditions { if_match, if_none_match } = conditions;
    let new = by_link && matches!(if_none_match, None | Some(ETagCondition::Any));
    if !bucket.is_shared() || if_match.is_none() && (if_none_match.is_none() || new) {
        return Ok(());
    }
    Err(s3_error!(
        NotImplemented,
        "on a volume of several nodes, the only condition of a change is If-None-Match: * for an object"
    ))
}

fn failed() -> S3Error {
    s3_error!(PreconditionFailed, "the object is not as the request demands")
}

/// What an object gets beside its bytes.
#[derive(Clone, Debug, Default)]
pub struct Dress {
    /// Headers and metadata.
    pub headers: Headers,
    /// Tags, in the form that is kept.
    pub tags: Option<String>,
    /// The ETag, without quotes.
    pub etag: String,
    /// A checksum.
    pub sum: Option<Sum>,
    /// The sizes of its parts.
    pub parts: Option<Parts>,
    /// The upload that made it.
    pub upload: Option<String>,
}

/// A file without a name, to which the bytes of an object are written.
pub struct Staged {
    bucket: Arc<Bucket>,
    held: Held,
    size: u64,
    hashing: Hashing,
}

impl Staged {
    /// Makes one.
    pub fn new(bucket: &Arc<Bucket>, expected: &Expected) -> Outcome<Staged> {
        bucket.writable()?;
        let folder = bucket.hidden(STAGE)?;
        let made = bucket.fs().tmpfile(bucket.caller(), folder.node(), 0o644, 0)?;
        let held = bucket.hold(made.node);
        Ok(Staged { bucket: bucket.clone(), held, size: 0, hashing: Hashing::new(expected) })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.bucket.fs().write(self.held.node(), self.size, bytes, None, false)?;
        self.hashing.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Appends a range of another file of the same filesystem, by reference. The checksums do not cover it.
    pub fn share(&mut self, from: Ino, offset: u64, len: u64) -> Outcome<()> {
        let mut done = 0;
        while done < len {
            let at = self.size + done;
            match self.bucket.fs().copy_range(from, offset + done, self.held.node(), at, len - done)? {
                // The file was cut meanwhile.
                0 => return Err(Errno::EAGAIN),
                some => done += some,
            }
        }
        self.size += len;
        Ok(())
    }

    /// How many bytes there are.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Ends writing.
    pub fn finish(self) -> (Whole, Digests) {
        let Staged { bucket, held, hashing, .. } = self;
        (Whole { bucket, held }, hashing.finish())
    }
}

/// A file without a name that has all its bytes.
pub struct Whole {
    bucket: Arc<Bucket>,
    held: Held,
}

impl Whole {
    /// Gives it what an object has beside its bytes. Returns its attributes.
    pub fn dress(&self, dress: &Dress) -> Outcome<Attr> {
        let (bucket, node) = (&*self.bucket, self.held.node());
        dress.headers.write(bucket, node)?;
        let attr = bucket.fs().getattr(node)?;
        attributes::stamp(bucket, node, &attr, attributes::ETAG, &dress.etag)?;
        if let Some(sum) = &dress.sum {
            attributes::stamp(bucket, node, &attr, attributes::CHECKSUM, &sum.to_text())?;
        }
        if let Some(parts) = &dress.parts {
            // Ten thousand parts of different sizes are too long for an attribute. Then parts have no
            // numbers.
            match attributes::stamp(bucket, node, &attr, attributes::PARTS, &parts.to_text()) {
                Err(Errno::E2BIG | Errno::ERANGE | Errno::ENOSPC) | Ok(()) => {}
                Err(other) => return Err(other),
            }
        }
        if let Some(upload) = &dress.upload {
            bucket.set(node, attributes::UPLOAD, upload.as_bytes())?;
        }
        if let Some(tags) = dress.tags.as_ref().filter(|tags| !tags.is_empty()) {
            bucket.set(node, attributes::TAGS, tags.as_bytes())?;
        }
        Ok(attr)
    }

    /// Gives it the name of an object. When this returns, it is durable.
    pub fn publish(&self, key: &Key, conditions: &Conditions) -> Result<()> {
        self.publish_of(key, conditions, None)
    }

    /// Gives the file the name of the object of an upload, which ends with it: `upload` is the upload's
    /// folder. NoSuchUpload if it has ended before. When this returns, the object is durable.
    pub fn publish_of(&self, key: &Key, conditions: &Conditions, upload: Option<Ino>) -> Result<()> {
        let bucket = &*self.bucket;
        possible(bucket, conditions, true)?;
        let mut outcome = Err(errors::of(Errno::EAGAIN));
        for _ in 0..TRIES {
            match self.name(key, conditions, upload) {
                // A folder was renamed or removed, or a file appeared, through the mount.
                Ok(Err(Errno::ENOENT | Errno::EEXIST)) => continue,
                Ok(named) => outcome = named.map_err(errors::of),
                Err(error) => outcome = Err(error),
            }
            break;
        }
        outcome?;
        bucket.fs().fsync(self.held.node(), false).map_err(errors::of)?;
        bucket.changes().settle();
        Ok(())
    }

    fn name(&self, key: &Key, conditions: &Conditions, upload: Option<Ino>) -> Result<Outcome<()>> {
        let (bucket, name) = (&*self.bucket, key.name());
        let _guard = bucket.lock();
        // Before the conditions: they are not about an object that this upload itself has become.
        upload.map_or(Ok(()), |upload| uploads::check_open(bucket, upload))?;
        let way = match bucket.make_way(key) {
            Ok(way) => way,
            Err(errno) => return Ok(Err(errno)),
        };
        let parent = way.folder();
        let old = match bucket.lookup(parent, name) {
            Ok(found) => Some(found),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Ok(Err(errno)),
        };
        let allowed = allowed(bucket, old.as_ref(), conditions)
            .and_then(|()| upload.map_or(Ok(()), |upload| uploads::claim(bucket, upload)));
        if let Err(error) = allowed {
            bucket.prune(way);
            return Err(error);
        }
        let named = self.enter(parent, name, old.is_some());
        // A change whose answer was lost may have happened. Then the upload must not be opened again.
        let named = named.or_else(|errno| if self.is_at(parent, name) { Ok(()) } else { Err(errno) });
        if named.is_err() {
            if let Some(upload) = upload {
                uploads::release(bucket, upload);
            }
            bucket.prune(way);
            return Ok(named);
        }
        bucket.changed(parent, name);
        bucket.changes().inode(self.held.node());
        old.iter().for_each(|old| bucket.changes().inode(old.node()));
        Ok(Ok(()))
    }

    /// Whether it has this name.
    fn is_at(&self, parent: Ino, name: &[u8]) -> bool {
        self.bucket.lookup(parent, name).is_ok_and(|found| found.node() == self.held.node())
    }

    /// Enters the file into a folder, over what has the name.
    pub fn enter(&self, parent: Ino, name: &[u8], replace: bool) -> Outcome<()> {
        let (fs, node) = (self.bucket.fs(), self.held.node());
        if !replace {
            let entry = fs.link(node, parent, name)?;
            drop(self.bucket.hold(entry.node));
            return Ok(());
        }
        let stage = self.bucket.hidden(STAGE)?;
        let aside = unique();
        let entry = fs.link(node, stage.node(), aside.as_bytes())?;
        drop(self.bucket.hold(entry.node));
        let renamed = fs.rename(stage.node(), aside.as_bytes(), parent, name, RenameMode::Replace);
        if renamed.is_err() {
            let _ = fs.unlink(stage.node(), aside.as_bytes());
        }
        renamed.map(drop)
    }

    /// Makes it durable.
    pub fn sync(&self) -> Outcome<()> {
        self.bucket.fs().fsync(self.held.node(), false)
    }

    /// The number by which the filesystem knows it.
    pub fn node(&self) -> Ino {
        self.held.node()
    }
}

/// Whether an object may take the place of what has its name.
fn allowed(bucket: &Bucket, old: Option<&Found>, conditions: &Conditions) -> Result<()> {
    let file = old.filter(|old| old.attr.kind == FileKind::File);
    let etag = file.map(|old| attributes::etag(bucket, old.node(), &old.attr)).transpose();
    conditions.check(etag.map_err(errors::of)?.as_deref())?;
    match old {
        Some(old) if old.attr.kind == FileKind::Dir => Err(errors::of(Errno::EISDIR)),
        // It is no object, but another node may put one in its place before this one does.
        Some(_) if bucket.is_shared() && conditions.if_none_match.is_some() => Err(failed()),
        _ => Ok(()),
    }
}

/// A name that nothing has.
pub fn unique() -> String {
    crate::sums::hex(&base::random::id16())
}

/// Removes what an earlier run left half done. Uploads in parts stay: they can go on.
pub fn clean(bucket: &Bucket) -> Outcome<()> {
    if bucket.writable().is_err() {
        return Ok(());
    }
    let Some(stage) = bucket.hidden_if_there(STAGE)? else { return Ok(()) };
    for name in names(bucket, stage.node())? {
        let Some(found) = there(bucket.lookup(stage.node(), &name))? else { continue };
        if bucket.may_be_in_use(&found.attr) {
            continue;
        }
        there(bucket.fs().unlink(stage.node(), &name))?;
        bucket.changed(stage.node(), &name);
    }
    Ok(())
}

/// The names in a folder.
pub fn names(bucket: &Bucket, folder: Ino) -> Outcome<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    bucket.fs().readdir(folder, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        std::ops::ControlFlow::Continue(())
    })?;
    Ok(names)
}

/// Makes a folder that is an object itself. Returns when it is durable.
pub fn make_folder(bucket: &Bucket, key: &Key, dress: &Dress, conditions: &Conditions) -> Result<()> {
    bucket.writable().map_err(errors::of)?;
    possible(bucket, conditions, false)?;
    let guard = bucket.lock();
    let way = bucket.make_way(key).map_err(errors::of)?;
    let old = there(bucket.lookup(way.folder(), key.name()));
    let is_object = old.and_then(|old| match old {
        Some(old) => bucket.has(old.node(), attributes::FOLDER),
        None => Ok(false),
    });
    let made = is_object.map_err(errors::of).and_then(|is_object| {
        conditions.check(is_object.then_some(crate::list::EMPTY))?;
        let held = bucket.folder(way.folder(), key.name(), true).map_err(errors::of)?;
        dress_folder(bucket, held.node(), dress).map_err(errors::of)
    });
    if made.is_err() {
        bucket.prune(way);
    }
    drop(guard);
    made.and_then(|()| settle(bucket))
}

fn dress_folder(bucket: &Bucket, node: Ino, dress: &Dress) -> Outcome<()> {
    Headers::clear(bucket, node)?;
    dress.headers.write(bucket, node)?;
    if let Some(tags) = dress.tags.as_ref().filter(|tags| !tags.is_empty()) {
        bucket.set(node, attributes::TAGS, tags.as_bytes())?;
    }
    bucket.set(node, attributes::FOLDER, b"1")?;
    bucket.changes().inode(node);
    Ok(())
}

/// Removes an object. True if there was one. Durable only after a sync.
pub fn remove(bucket: &Bucket, key: &Key, conditions: &Conditions) -> Result<bool> {
    bucket.writable().map_err(errors::of)?;
    possible(bucket, conditions, false)?;
    let _guard = bucket.lock();
    let found = match bucket.find(key) {
        Ok(found) => Some(found),
        Err(Errno::ENOENT) => None,
        Err(errno) => return Err(errors::of(errno)),
    };
    let etag = found.as_ref().map(|found| match found.attr.kind {
        FileKind::Dir => Ok(crate::list::EMPTY.to_owned()),
        _ => attributes::etag(bucket, found.node(), &found.attr),
    });
    conditions.check(etag.transpose().map_err(errors::of)?.as_deref())?;
    let Some(found) = found else { return Ok(false) };
    let mut way = bucket.way(key).map_err(errors::of)?;
    if key.is_folder() {
        Headers::clear(bucket, found.node()).map_err(errors::of)?;
        bucket.changes().inode(found.node());
        way = way.then(found.held, key.name());
    } else {
        bucket.fs().unlink(way.folder(), key.name()).map_err(errors::of)?;
        bucket.changed(way.folder(), key.name());
        bucket.changes().inode(found.node());
    }
    bucket.prune(way);
    Ok(true)
}

/// Makes everything so far durable, and known to the kernel.
pub fn settle(bucket: &Bucket) -> Result<()> {
    bucket.fs().fsync(Ino::ROOT, false).map_err(errors::of)?;
    bucket.changes().settle();
    Ok(())
}
