//! The objects beside the blobs: the marker that names the volume, and the records.
//!
//! A record that must not exist yet is created with a conditional PUT (If-None-Match), so that one of several
//! writers succeeds. It carries a random mark. If the answer to such a PUT is lost and the next try says "it
//! exists", the mark tells whether the record is ours. **A store that answers 501 has no conditional PUT.**
//! There the record is looked up, created, and read again. Two writers that do that at the same instant may
//! both believe to have succeeded. (A store that ignores the condition cannot be distinguished from one that
//! supports it.)

use std::sync::Arc;

use base::Deadline;
use base::phase::{self, Phase};
use blob::records::{RECORD_MAX, check, is_below, is_name};
use blob::{BlobError, Records};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use super::answers::Mistake;
use super::engine::{Call, Engine, Failed, MAKER, What};
use super::fault::Fault;
use super::{MARKER_HOLDS, OPENING, Remote};
use crate::OriginError;

const MARKER_LINE: &str = "covey origin 2";
/// The layout with the sums after the blobs.
const EARLIER: &str = "covey origin 1";

impl Records for Remote {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        check(name, &[])?;
        let found = self.read_object(self.call(What::Small), self.layout.record(name));
        found.map_err(|failed| self.unavailable(&failed))
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.writable()?;
        check(name, bytes)?;
        let (engine, call, key) =
            (Arc::clone(&self.engine), self.call(What::Store), self.layout.record(name));
        let bytes = Bytes::copy_from_slice(bytes);
        let stored = self.wait(async move {
            let (engine, key, bytes) = (&engine, &key, &bytes);
            engine.run(call, Some(key), |_| put(engine, key, bytes, PutMode::Overwrite, None)).await
        });
        stored.map_err(|failed| self.unavailable(&failed))
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.writable()?;
        check(name, bytes)?;
        let made = self.create_object(self.call(What::Store), self.layout.record(name), bytes);
        made.map_err(|failed| self.unavailable(&failed))
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.writable()?;
        check(name, &[])?;
        let (engine, call, key) =
            (Arc::clone(&self.engine), self.call(What::Remove), self.layout.record(name));
        let removed = self.wait(async move {
            let key = &key;
            let remove = |_| async { engine.one().delete(key).await.map_err(|error| Fault::of(&error)) };
            engine.run(call, Some(key), remove).await
        });
        match removed {
            Err(failed) if !failed.fault.is_missing() => Err(self.unavailable(&failed)),
            _ => Ok(()),
        }
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        if !folder.is_empty() {
            check(folder, &[])?;
        }
        let mut names = Vec::new();
        let listed = self.list_keys(&self.layout.records(folder), &mut |meta| {
            let name = self.layout.record_of(&meta.location);
            names.extend(name.filter(|name| is_name(name) && is_below(name, folder)));
            true
        });
        listed.map_err(|failed| self.unavailable(&failed))?;
        names.sort();
        Ok(names)
    }
}

impl Remote {
    /// Whether the marker exists; if it was seen recently, no request is made. `deadline` is that of the
    /// caller's work.
    pub(super) fn marker_is_there(&self, deadline: Deadline) -> Result<bool, Failed> {
        if self.marker_seen.lock().is_some_and(|seen| seen.elapsed() < MARKER_HOLDS) {
            return Ok(true);
        }
        let call = self.call(What::Small);
        let call = Call { deadline: deadline.within(MARKER_HOLDS / 2), ..call };
        let there = self.read_object(call, self.layout.marker())?.is_some();
        *self.marker_seen.lock() = there.then(base::time::monotonic);
        Ok(there)
    }

    /// Reads the marker. Returns the volume that the origin belongs to.
    pub(super) fn read_marker(&self) -> Result<String, OriginError> {
        let marker = self.read_object(self.opening(What::Small), self.layout.marker());
        let Some(marker) = marker.map_err(|failed| self.origin_error(&failed))? else {
            // A bucket that does not exist has no marker either. A listing distinguishes the two.
            let root = self.layout.root();
            let listed = self.list_with(self.opening(What::List), root.as_ref(), &mut |_| false);
            listed.map_err(|failed| self.origin_error(&failed))?;
            return Err(self.refuse(
                Mistake::NotAnOrigin,
                "there is no origin here (no object covey-origin)",
                "correct the URL; a new volume's origin is made by `covey format`",
            ));
        };
        let volume =
            volume_of(&marker).map_err(|(what, next)| self.refuse(Mistake::NotAnOrigin, what, next))?;
        *self.marker_seen.lock() = Some(base::time::monotonic());
        Ok(volume)
    }

    /// Reads the marker anew, and compares the volume.
    pub(super) fn look_at_marker(&self) -> Result<Option<String>, BlobError> {
        let wrong = |what: &str| Ok(Some(format!("{}: {what}", self.spec)));
        let call = self.call(What::Small);
        let found =
            self.read_object(Call { deadline: call.deadline.within(OPENING), ..call }, self.layout.marker());
        let Some(marker) = found.map_err(|failed| self.unavailable(&failed))? else {
            *self.marker_seen.lock() = None;
            return wrong(
                "the origin is gone (it holds no covey-origin any more): bring the bucket back under this name, or, if the object alone was lost, \
                 unmount and make it anew: covey origin mark VOLUME",
            );
        };
        match volume_of(&marker) {
            Ok(volume) if volume == self.volume => {
                *self.marker_seen.lock() = Some(base::time::monotonic());
                Ok(None)
            }
            Ok(volume) => wrong(&format!(
                "the origin belongs to another volume now, {volume}: check the bucket and the prefix"
            )),
            Err((what, next)) => wrong(&format!("{what}: {next}")),
        }
    }

    /// Writes the marker of an origin that has lost it; false if it exists. The caller must have checked the
    /// other objects there.
    ///
    /// # Errors
    /// [`OriginError::Remote`]: what is wrong, or that another volume's marker exists.
    pub fn mark(&self) -> Result<bool, OriginError> {
        let text = format!("{MARKER_LINE}\nvolume {}\n", self.volume);
        let made = self.create_object(self.opening(What::Store), self.layout.marker(), text.as_bytes());
        let made = made.map_err(|failed| self.origin_error(&failed))?;
        let found = self.read_marker()?;
        if found == self.volume {
            return Ok(made);
        }
        let what = format!("another volume's origin is here ({found})");
        Err(self.refuse(Mistake::Taken, &what, "check the bucket and the prefix"))
    }

    /// Writes the marker if the place is empty.
    pub(super) fn make_marker(&self, volume: &str) -> Result<(), OriginError> {
        let taken = || {
            let next = "choose another prefix (or, if a `covey format` was cut short and nothing uses it, remove the object covey-origin)";
            self.refuse(Mistake::Taken, "another volume's origin is here already", next)
        };
        let marker = self.layout.marker();
        let found = self.read_object(self.opening(What::Small), marker.clone());
        if found.map_err(|failed| self.origin_error(&failed))?.is_some() {
            return Err(taken());
        }
        let (root, mut others) = (self.layout.root(), false);
        let listed = self.list_with(self.opening(What::List), root.as_ref(), &mut |_| {
            others = true;
            false
        });
        listed.map_err(|failed| self.origin_error(&failed))?;
        if others {
            let next = "give the origin a prefix of its own, like s3://BUCKET/PREFIX";
            return Err(self.refuse(Mistake::Taken, "other objects are here", next));
        }
        let text = format!("{MARKER_LINE}\nvolume {volume}\n");
        let made = self.create_object(self.opening(What::Store), marker, text.as_bytes());
        if !made.map_err(|failed| self.origin_error(&failed))? {
            return Err(taken());
        }
        // Reading it shows that the keys may read, and that the store keeps what it is given.
        let found = self.read_marker()?;
        if found == volume { Ok(()) } else { Err(taken()) }
    }

    fn refuse(&self, mistake: Mistake, what: &str, next: &str) -> OriginError {
        let (what, next) = (what.to_owned(), Some(next.to_owned()));
        OriginError::Remote { origin: self.spec.to_string(), mistake, what, next }
    }

    /// Past any cache on the way: records decide which folder may write.
    fn read_object(&self, call: Call, key: Path) -> Result<Option<Vec<u8>>, Failed> {
        let engine = Arc::clone(&self.engine);
        let got = self.wait(async move {
            let (engine, key) = (&engine, &key);
            engine.run(call, Some(key), |_| engine.get(key, None, true, RECORD_MAX as u64)).await
        });
        match got {
            Ok(got) if got.bytes.len() as u64 == got.total => Ok(Some(got.bytes.to_vec())),
            Ok(got) => {
                let fault = Fault::Odd(format!("a record of {} bytes", got.total));
                Err(Failed { fault, tries: 1 })
            }
            Err(failed) if failed.fault.is_missing() => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    fn create_object(&self, call: Call, key: Path, bytes: &[u8]) -> Result<bool, Failed> {
        let (engine, bytes) = (Arc::clone(&self.engine), Bytes::copy_from_slice(bytes));
        let maker = format!("{:016x}", base::random::u64());
        self.wait(async move { create(&engine, call, &key, &bytes, &maker).await })
    }
}

/// The volume in a marker.
fn volume_of(marker: &[u8]) -> Result<String, (&'static str, &'static str)> {
    let text = String::from_utf8_lossy(marker);
    let mut lines = text.lines();
    let first = lines.next().unwrap_or("");
    if first == MARKER_LINE {
        return Ok(lines.find_map(|line| line.strip_prefix("volume ")).unwrap_or("").to_owned());
    }
    Err(match first.strip_prefix("covey origin ") {
        Some(_) if first == EARLIER => (
            "the origin was made by an earlier covey, which laid blobs out in another way",
            "read it with that version, and write what is in it to a new place",
        ),
        Some(_) => ("the origin was made by a newer covey", "use that version or a later one"),
        None => ("the object covey-origin is not covey's", "choose another prefix"),
    })
}

async fn put(
    engine: &Engine,
    key: &Path,
    bytes: &Bytes,
    mode: PutMode,
    maker: Option<&str>,
) -> Result<(), Fault> {
    engine.pay(bytes.len() as u64).await;
    let mark = maker.map(|maker| (Attribute::Metadata(MAKER.into()), maker.to_owned()));
    let attributes: Attributes = mark.into_iter().collect();
    let options = PutOptions { mode, attributes, ..PutOptions::default() };
    let put = engine.one().put_opts(key, PutPayload::from(bytes.clone()), options);
    put.await.map(drop).map_err(|error| Fault::of(&error))
}

async fn create(engine: &Engine, call: Call, key: &Path, bytes: &Bytes, maker: &str) -> Result<bool, Failed> {
    let made = engine.run(call, Some(key), |_| put(engine, key, bytes, PutMode::Create, Some(maker))).await;
    let failed = match made {
        Ok(()) => return Ok(true),
        Err(failed) => failed,
    };
    if failed.fault.is_taken() {
        // At the first try it existed before. Later it may be what an earlier try created.
        return if failed.tries > 1 { is_ours(engine, call, key, maker).await } else { Ok(false) };
    }
    if failed.fault.status() != Some(501) {
        return Err(failed);
    }
    match engine.run(call, Some(key), |_| engine.size(key)).await {
        Ok(_) => return Ok(false),
        Err(failed) if !failed.fault.is_missing() => return Err(failed),
        Err(_) => {}
    }
    engine.run(call, Some(key), |_| put(engine, key, bytes, PutMode::Overwrite, Some(maker))).await?;
    is_ours(engine, call, key, maker).await
}

async fn is_ours(engine: &Engine, call: Call, key: &Path, maker: &str) -> Result<bool, Failed> {
    let small = Call { what: What::Small, ..call };
    let got = engine.run(small, Some(key), |_| engine.get(key, None, true, RECORD_MAX as u64)).await?;
    Ok(got.maker.as_deref() == Some(maker))
}
