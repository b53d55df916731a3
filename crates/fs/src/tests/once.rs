//! What is done is done once, also if the row that is looked at afterwards must be waited for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Ino;
use meta::engine::Memory;
use meta::key::KeyRange;
use meta::store::{CommitError, Linked, Looked, Rows, StoreError};
use meta::{Commit, Key, MetaStore, Value};

use super::{Easy, ROOT, World};
use crate::api::{Caller, Filesystem, SetAttr};
use crate::ops::write::How;
use crate::volume::{FormatRequest, Volume};

/// Rows of which the first read after a commit must be waited for, as if the lease was just recalled.
#[derive(Default)]
struct Recalled {
    rows: Memory,
    armed: AtomicBool,
    waits: AtomicBool,
}

impl Recalled {
    fn read(&self) -> Result<&Memory, StoreError> {
        if self.waits.swap(false, Ordering::SeqCst) { Err(StoreError::Waits) } else { Ok(&self.rows) }
    }
}

impl MetaStore for Recalled {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.read()?.get(key)
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        self.rows.is_at_hand(key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.read()?.get_many(keys)
    }

    fn get_linked(&self, from: &Key, also: &[Key], tags: &[u8]) -> Result<Linked, StoreError> {
        self.read()?.get_linked(from, also, tags)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.read()?.scan(range, limit)
    }

    fn look(&self, keys: &[Key], ranges: &[KeyRange], limit: usize) -> Result<Looked, StoreError> {
        self.read()?.look(keys, ranges, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.rows.commit(commit)?;
        if self.armed.swap(false, Ordering::SeqCst) {
            self.waits.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The request was done again when the look at the file's mode after it had to wait: an appended record was
/// there twice.
#[test]
fn regression_an_append_that_clears_set_id_bits_is_done_once() {
    let store = Arc::new(Recalled::default());
    let mut world = World::new();
    world.parts.store = store.clone();
    Volume::format(&world.parts, &FormatRequest::default()).unwrap();
    let v = Volume::open(world.parts.clone(), world.options()).unwrap();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &[1; 2000]);
    let set = SetAttr { perm: Some(0o6777), ..SetAttr::default() };
    v.setattr(&ROOT, f, &set).unwrap();
    let how = How { unprivileged: Some(Caller { uid: 7, gid: 7, pid: 0 }), cached: false };
    store.armed.store(true, Ordering::SeqCst);
    assert_eq!(v.core.append(f, &[2; 1000], how).map_err(|error| error.to_string()), Ok(true));
    assert_eq!(v.get(f), [vec![1; 2000], vec![2; 1000]].concat());
    v.setattr(&ROOT, f, &set).unwrap();
    store.armed.store(true, Ordering::SeqCst);
    assert_eq!(v.core.write(f, 0, &[3; 1000], how).map_err(|error| error.to_string()), Ok(true));
    assert_eq!(v.get(f), [vec![3; 1000], vec![1; 1000], vec![2; 1000]].concat());
    v.close().unwrap();
}
