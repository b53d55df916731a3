//! What the operations of a snapshotter do.
//!
//! The rules are containerd's: a snapshot is active or a view until it is committed or removed, and only a
//! committed one may be below others. A snapshot that is a layer of the folder of images is committed as soon
//! as it is asked for.

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use oci::digest::Digest;
use parking_lot::Mutex;

use crate::asking::Asking;
use crate::filter::Filter;
use crate::layers::Layers;
use crate::mounts::{self, Folders};
use crate::proto::{self, Info, Mount, NewSnapshot};
use crate::record::{Kind, REFERENCE, Record, Used, VERSION, now_ns};
use crate::store::Store;

/// Why an operation was refused, in containerd's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// There is no such snapshot.
    NotFound,
    /// There is one already. After Prepare with a reference: the layer is there.
    AlreadyExists,
    /// The snapshot is not in the state that the operation needs.
    FailedPrecondition,
    /// The request makes no sense.
    InvalidArgument,
    /// The folder of images does not answer.
    Unavailable,
    /// The disk of this machine fails.
    Internal,
}

/// A refused operation.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Why, in containerd's terms.
    pub code: Code,
    /// Why, for people.
    pub message: String,
}

/// The result of an operation.
pub type Outcome<T> = std::result::Result<T, Refusal>;

fn refuse<T>(code: Code, message: String) -> Outcome<T> {
    Err(Refusal { code, message })
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Refusal {
        Refusal { code: Code::Internal, message: failure.in_one_line() }
    }
}

/// All snapshots.
pub struct Snapshots {
    store: Store,
    asking: Asking,
    log: Box<dyn Fn(&str) + Send + Sync>,
    /// What the records say. It is held while records and folders change, so no two operations meet. Walks
    /// over files run without it, and questions to the folder of images.
    index: Mutex<Index>,
}

/// What is below a snapshot.
struct Lower {
    /// The folders, the highest first.
    folders: Vec<PathBuf>,
    /// Owner and mode of the highest.
    top: Option<Metadata>,
}

#[derive(Default)]
struct Index {
    records: BTreeMap<u64, Record>,
    ids: HashMap<String, u64>,
    next: u64,
}

impl Index {
    fn insert(&mut self, record: Record) {
        self.ids.insert(record.name.clone(), record.id);
        self.records.insert(record.id, record);
    }

    fn get(&self, name: &str) -> Outcome<&Record> {
        match self.ids.get(name).and_then(|id| self.records.get(id)) {
            Some(record) => Ok(record),
            None => refuse(Code::NotFound, format!("there is no snapshot {name}")),
        }
    }

    /// The name of the snapshot below one, or nothing.
    fn parent_of(&self, record: &Record) -> &str {
        record.parent.and_then(|id| self.records.get(&id)).map_or("", |parent| &parent.name)
    }

    /// The snapshots from this one downwards.
    fn chain(&self, from: Option<u64>) -> impl Iterator<Item = &Record> {
        std::iter::successors(from.and_then(|id| self.records.get(&id)), |record| {
            record.parent.and_then(|id| self.records.get(&id))
        })
    }

    /// The snapshot that a new one is above, if it may be.
    fn parent(&self, name: &str) -> Outcome<Option<&Record>> {
        if name.is_empty() {
            return Ok(None);
        }
        let parent = self.get(name)?;
        match parent.kind {
            Kind::Committed => Ok(Some(parent)),
            _ => refuse(Code::InvalidArgument, format!("the parent {name} is not committed")),
        }
    }

    /// The snapshot of a layer of the folder of images.
    fn layer(&self, chain: Digest, parent: Option<u64>) -> Option<&Record> {
        self.records
            .values()
            .find(|record| record.layer.is_some() && record.chain == Some(chain) && record.parent == parent)
    }

    /// The number of the snapshot that a new one is above, if there may be a new one.
    fn free(&self, new: &NewSnapshot) -> Outcome<Option<u64>> {
        if new.key.is_empty() {
            return refuse(Code::InvalidArgument, "a snapshot needs a name".to_owned());
        }
        let parent = self.parent(&new.parent)?.map(|parent| parent.id);
        match self.ids.contains_key(&new.key) {
            true => refuse(Code::AlreadyExists, format!("there is a snapshot {} already", new.key)),
            false => Ok(parent),
        }
    }

    /// Whether a parent is the one that it was before the folder of images was asked.
    fn check_same(&self, parent: &str, was: Option<u64>) -> Outcome<()> {
        match self.parent(parent)?.map(|parent| parent.id) == was {
            true => Ok(()),
            false => refuse(Code::FailedPrecondition, format!("{parent} was made anew meanwhile")),
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Snapshots {
    /// Takes over what is in the store, and removes what was not finished there.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn new(
        store: Store,
        layers: Box<dyn Layers>,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Snapshots> {
        let mut index = Index::default();
        for record in store.load()? {
            index.next = index.next.max(record.id);
            index.insert(record);
        }
        let asking = Asking::new(layers.into(), store.source());
        let snapshots = Snapshots { store, asking, log: Box::new(log), index: Mutex::new(index) };
        for (id, failure) in snapshots.remove_leftovers()? {
            let why = failure.in_one_line();
            (snapshots.log)(&format!("what is left of snapshot {id} stays for now: {why}"));
            // No new snapshot gets the number of a folder that is there.
            let mut index = snapshots.index.lock();
            index.next = index.next.max(id);
        }
        Ok(snapshots)
    }

    /// Removes the folders that belong to no snapshot. Returns those that could not be removed.
    fn remove_leftovers(&self) -> Result<Vec<(u64, Failure)>> {
        let left = {
            let index = self.index.lock();
            self.store.leftovers(|id| index.records.contains_key(&id))?
        };
        if !left.is_empty() {
            self.store.sync_records()?;
        }
        let failed = |id| Some((id, self.store.remove_folder(id).err()?));
        Ok(left.into_iter().filter_map(failed).collect())
    }

    /// How many snapshots are layers of the folder of images.
    pub fn layers_in_use(&self) -> usize {
        self.index.lock().records.values().filter(|record| record.layer.is_some()).count()
    }

    /// Prepare: a new snapshot to be written. If the request names a layer that the folder of images has, the
    /// answer is that it exists, and then it does.
    pub fn prepare(&self, new: &NewSnapshot) -> Outcome<Vec<Mount>> {
        if let Some(chain) = new.labels.get(REFERENCE).and_then(|text| Digest::parse(text))
            && self.is_layer(new, chain)?
        {
            return refuse(Code::AlreadyExists, format!("the layer {chain} is there"));
        }
        self.create(Kind::Active, new)
    }

    /// View: a new snapshot that is only read.
    pub fn view(&self, new: &NewSnapshot) -> Outcome<Vec<Mount>> {
        self.create(Kind::View, new)
    }

    /// Notes which layers the folder of images has. While it does not answer later, other layers do not wait
    /// for it.
    ///
    /// # Errors
    /// It cannot be listed.
    pub fn remember(&self) -> io::Result<()> {
        self.asking.remember()
    }

    /// Makes the snapshot of a layer of the folder of images, if it has that layer.
    fn is_layer(&self, new: &NewSnapshot, chain: Digest) -> Outcome<bool> {
        let (records, before) = {
            let index = self.index.lock();
            let parent = index.parent(&new.parent)?.map(|parent| parent.id);
            let before = index.layer(chain, parent).and_then(|record| record.layer);
            (index.chain(parent).cloned().collect::<Vec<_>>(), before)
        };
        let parent = match records.first() {
            None => None,
            Some(record) if record.chain.is_some() => Some(record.id),
            // What is below was not made from an image, so no chain id says what it holds.
            Some(_) => return Ok(false),
        };
        let found = match before {
            // The tree may have moved on without it.
            Some(layer) => self.look(vec![layer])?.pop().filter(Metadata::is_dir).map(|_| layer),
            None => self.asking.has(chain).map_err(|error| self.away(&error))?.then_some(chain),
        };
        let Some(layer) = found else { return Ok(false) };
        // Nor is it there above something that is not.
        self.lower(&records)?;
        let mut index = self.index.lock();
        index.check_same(&new.parent, parent)?;
        if index.layer(chain, parent).is_some() {
            return Ok(true);
        }
        let id = index.take_id();
        let now = now_ns();
        let record = Record {
            version: VERSION,
            id,
            // Not the key: containerd removes what has that name.
            name: format!("covey/{id}/{chain}"),
            parent,
            kind: Kind::Committed,
            chain: Some(chain),
            layer: Some(layer),
            created_ns: now,
            updated_ns: now,
            labels: new.labels.clone(),
            used: Used::default(),
        };
        self.keep(&record, || self.store.make_link(id, &layer))?;
        index.insert(record);
        Ok(true)
    }

    /// Makes the folder of a new snapshot, and its record. After a failure, as on a full disk, neither stays.
    fn keep(&self, record: &Record, make: impl FnOnce() -> Result<()>) -> Result<()> {
        make().and_then(|()| self.store.put(record)).inspect_err(|_| self.store.discard(record.id))
    }

    fn away(&self, error: &io::Error) -> Refusal {
        let message = format!("the folder of images does not answer: {error}; is it mounted?");
        (self.log)(&message);
        Refusal { code: Code::Unavailable, message }
    }

    fn create(&self, kind: Kind, new: &NewSnapshot) -> Outcome<Vec<Mount>> {
        let records: Vec<Record> = {
            let index = self.index.lock();
            let parent = index.free(new)?;
            index.chain(parent).cloned().collect()
        };
        let parent = records.first().map(|parent| parent.id);
        // Before anything is made: a layer that is gone makes no snapshot.
        let lower = self.lower(&records)?;
        let mut index = self.index.lock();
        index.free(new)?;
        index.check_same(&new.parent, parent)?;
        let id = index.take_id();
        let now = now_ns();
        let record = Record {
            version: VERSION,
            id,
            name: new.key.clone(),
            parent,
            kind,
            chain: None,
            layer: None,
            created_ns: now,
            updated_ns: now,
            labels: new.labels.clone(),
            used: Used::default(),
        };
        self.keep(&record, || self.store.make_folder(id, lower.top.as_ref()))?;
        let mounts = self.mounts_of(&record, &lower.folders);
        index.insert(record);
        Ok(mounts)
    }

    /// What these layers have in the folder of images: nothing for one that is not there.
    fn look(&self, layers: Vec<Digest>) -> Outcome<Vec<Metadata>> {
        let mut found = Vec::new();
        for looked in self.asking.look(layers).map_err(|error| self.away(&error))? {
            match looked {
                Ok(about) => found.push(about),
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(self.away(&error)),
                // It is not taken for missing if the whole folder is.
                Err(_) => self.asking.check().map_err(|error| self.away(&error))?,
            }
        }
        Ok(found)
    }

    /// The folders below a snapshot, the highest first. A layer that is there twice counts once, as the
    /// higher one: it hides and brings again whatever the lower one did.
    fn lower(&self, records: &[Record]) -> Outcome<Lower> {
        let mut seen = Vec::new();
        let mut wanted: Vec<&Record> = Vec::new();
        for record in records {
            match record.layer {
                Some(layer) if seen.contains(&layer) => continue,
                layer => seen.extend(layer),
            }
            wanted.push(record);
        }
        let mut looked = self.asking.look(seen).map_err(|error| self.away(&error))?.into_iter();
        let mut lower = Lower { folders: Vec::new(), top: None };
        for record in wanted {
            let files = self.store.files(record.id);
            let about = match record.layer {
                Some(_) => looked.next().unwrap_or_else(|| Err(ErrorKind::NotFound.into())),
                None => files.symlink_metadata(),
            };
            let about = self.check_there(record, &files, about)?;
            lower.top.get_or_insert(about);
            lower.folders.push(files);
        }
        Ok(lower)
    }

    /// The folder of a layer may be gone: an image was removed, or the tree moved on without it.
    fn check_there(&self, record: &Record, files: &Path, about: io::Result<Metadata>) -> Outcome<Metadata> {
        let what = match (about, record.layer) {
            (Ok(about), _) if about.is_dir() => return Ok(about),
            (Err(error), Some(_)) if error.kind() != ErrorKind::NotFound => return Err(self.away(&error)),
            (_, Some(layer)) => {
                self.asking.check().map_err(|error| self.away(&error))?;
                format!("the folder of images has no layer {layer} any more")
            }
            (_, None) => format!("{} is not there", files.display()),
        };
        let message = format!("{what}; remove the image from containerd, and pull it again");
        (self.log)(&message);
        refuse(Code::FailedPrecondition, message)
    }

    fn mounts_of(&self, record: &Record, lower: &[PathBuf]) -> Vec<Mount> {
        let (files, work) = (self.store.files(record.id), self.store.work(record.id));
        mounts::of(record.kind, &Folders { files: &files, work: &work, lower, empty: &self.store.empty() })
    }

    /// The mounts of an active snapshot or of a view.
    pub fn mounts(&self, key: &str) -> Outcome<Vec<Mount>> {
        let (record, records) = {
            let index = self.index.lock();
            let record = index.get(key)?.clone();
            let records: Vec<Record> = index.chain(record.parent).cloned().collect();
            (record, records)
        };
        if record.kind == Kind::Committed {
            return refuse(
                Code::FailedPrecondition,
                format!("{key} is committed, and is not mounted by itself"),
            );
        }
        let lower = self.lower(&records)?;
        Ok(self.mounts_of(&record, &lower.folders))
    }

    /// Commit: an active snapshot does not change any more, and gets the name by which others refer to it.
    pub fn commit(&self, commit: &proto::Commit) -> Outcome<()> {
        let proto::Commit { name, key, labels } = commit;
        let active = |index: &Index| -> Outcome<Record> {
            if name.is_empty() {
                return refuse(Code::InvalidArgument, "a snapshot needs a name".to_owned());
            }
            if index.ids.contains_key(name) {
                return refuse(Code::AlreadyExists, format!("there is a snapshot {name} already"));
            }
            match index.get(key)? {
                record if record.kind == Kind::Active => Ok(record.clone()),
                _ => refuse(Code::FailedPrecondition, format!("{key} is not active")),
            }
        };
        let id = active(&self.index.lock())?.id;
        let used = self.store.used(id)?;
        // The files first, then the record that says that they are complete.
        self.store.sync_files()?;
        let mut index = self.index.lock();
        let mut record = active(&index)?;
        if record.id != id {
            return refuse(Code::FailedPrecondition, format!("{key} was made anew meanwhile"));
        }
        record.kind = Kind::Committed;
        record.name = name.clone();
        // containerd commits the layer of an image under its chain id, behind a name space and a number.
        record.chain = name.rsplit('/').next().and_then(Digest::parse);
        record.labels = labels.clone();
        record.used = used;
        record.created_ns = now_ns();
        record.updated_ns = record.created_ns;
        self.store.put(&record)?;
        index.ids.remove(key);
        index.insert(record);
        Ok(())
    }

    /// Remove: a snapshot that is below no other.
    pub fn remove(&self, key: &str) -> Outcome<()> {
        let id = {
            let mut index = self.index.lock();
            let id = index.get(key)?.id;
            if let Some(child) = index.records.values().find(|other| other.parent == Some(id)) {
                return refuse(Code::FailedPrecondition, format!("{key} is below {}", child.name));
            }
            self.store.erase(id)?;
            // Whatever fails from here on, nothing may be put above a snapshot without a record.
            index.ids.remove(key);
            index.records.remove(&id);
            id
        };
        if let Err(failure) = self.store.sync_records() {
            // The snapshot is gone for containerd, which would find nothing to remove again. After a power
            // cut it may be back, and then it needs its folder. Cleanup and a start try again.
            let why = failure.in_one_line();
            (self.log)(&format!("{key} is removed, but its folder {id} stays for now: {why}"));
            return Ok(());
        }
        Ok(self.store.remove_folder(id)?)
    }

    /// Stat.
    pub fn stat(&self, key: &str) -> Outcome<Info> {
        let index = self.index.lock();
        let record = index.get(key)?;
        Ok(record.told(index.parent_of(record)))
    }

    /// Update: new labels. `paths` says which; all of them if it is empty.
    pub fn update(&self, wanted: &Info, paths: &[String]) -> Outcome<Info> {
        let mut index = self.index.lock();
        let mut record = index.get(&wanted.name)?.clone();
        if paths.is_empty() {
            record.labels = wanted.labels.clone();
        }
        for path in paths {
            match path.strip_prefix("labels.") {
                Some(label) => match wanted.labels.get(label).filter(|value| !value.is_empty()) {
                    Some(value) => drop(record.labels.insert(label.to_owned(), value.clone())),
                    None => drop(record.labels.remove(label)),
                },
                None if path == "labels" => record.labels = wanted.labels.clone(),
                None => {
                    let message = format!("{path} of a snapshot cannot be changed, only its labels");
                    return refuse(Code::InvalidArgument, message);
                }
            }
        }
        record.updated_ns = now_ns();
        self.store.put(&record)?;
        let told = record.told(index.parent_of(&record));
        index.insert(record);
        Ok(told)
    }

    /// List: the snapshots that match a filter, or all without filters.
    pub fn list(&self, filters: &[String]) -> Outcome<Vec<Info>> {
        let parse = |text: &String| {
            Filter::parse(text).map_err(|why| Refusal {
                code: Code::InvalidArgument,
                message: format!("the filter {text:?} cannot be understood: {why}"),
            })
        };
        let filters = filters.iter().map(parse).collect::<Outcome<Vec<Filter>>>()?;
        let index = self.index.lock();
        let told = index.records.values().filter_map(|record| {
            let parent = index.parent_of(record);
            let wanted = filters.is_empty() || filters.iter().any(|filter| filter.matches(record, parent));
            wanted.then(|| record.told(parent))
        });
        Ok(told.collect())
    }

    /// Usage: what a snapshot takes of this machine's disk. A layer of the folder of images takes nothing.
    pub fn usage(&self, key: &str) -> Outcome<Used> {
        let record = self.index.lock().get(key)?.clone();
        match record.kind {
            Kind::Committed => Ok(record.used),
            _ => Ok(self.store.used(record.id)?),
        }
    }

    /// Cleanup: removes the folders that belong to no snapshot. One that cannot be removed keeps no
    /// other one.
    pub fn cleanup(&self) -> Outcome<()> {
        match self.remove_leftovers()?.pop() {
            Some((_, failure)) => Err(failure.into()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
