//! Turns nodes into rows: a published tree as a store that cannot change.
//!
//! A node is read when one of its rows is needed. It is compared with the hash that its parent (or the signed
//! root) names, and is kept in memory while there is space. A long sequential read tells the source which
//! blob comes next.

use std::sync::Arc;

use base::BlobId;
use blob::{BlobError, BlobSource};
use hashbrown::{HashMap, HashSet};
use meta::key::{KeyRange, tags};
use meta::store::{Commit, CommitError, Rows, StoreError, Value};
use meta::{Key, MetaStore, PackRow};
use parking_lot::Mutex;

use crate::TreeError;
use crate::build::Known;
use crate::node::{Node, Pointer};
use crate::root::Root;

/// The most bytes of nodes that are kept in memory.
const KEPT: usize = 24 << 20;
/// Nodes of a blob are reused only if at least one byte in so many of the blob is in use. Otherwise old blobs
/// would be kept for a node or two.
const USED_ONE_IN: u64 = 4;

/// A tree that is read on demand. See the [module](self).
pub struct Tree {
    source: Arc<dyn BlobSource>,
    top: Pointer,
    level: u8,
    kept: Mutex<Kept>,
}

/// Nodes in memory, in two generations. A node that is used moves to the young one. When that is full, the
/// old one is dropped.
#[derive(Default)]
struct Kept {
    young: HashMap<(BlobId, u32), Arc<Node>>,
    young_bytes: usize,
    old: HashMap<(BlobId, u32), Arc<Node>>,
}

impl Kept {
    fn get(&mut self, to: &Pointer) -> Option<Arc<Node>> {
        let place = (to.blob, to.offset);
        if let Some(node) = self.young.get(&place) {
            return Some(node.clone());
        }
        let node = self.old.remove(&place)?;
        self.put(to, node.clone());
        Some(node)
    }

    fn put(&mut self, to: &Pointer, node: Arc<Node>) {
        if self.young_bytes > KEPT / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += node.weight();
        self.young.insert((to.blob, to.offset), node);
    }
}

/// Called with rows in order, until it returns false.
pub type Each<'a> = dyn FnMut(&[u8], &[u8]) -> bool + 'a;

impl Tree {
    /// The tree below a root. Its nodes come from `source`. This reads nothing yet.
    pub fn new(source: Arc<dyn BlobSource>, root: &Root) -> Tree {
        Tree { source, top: root.top, level: root.level, kept: Mutex::default() }
    }

    /// The top node, and its level.
    pub(crate) fn top(&self) -> (Pointer, u8) {
        (self.top, self.level)
    }

    /// Frees the memory that nodes take. They are read again on demand.
    pub fn trim(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }

    /// A node of this level whose first key is this one.
    pub(crate) fn node(&self, to: &Pointer, level: u8, first: Option<&[u8]>) -> Result<Arc<Node>, TreeError> {
        if let Some(node) = self.kept.lock().get(to) {
            return Ok(node);
        }
        let mut stored = vec![0; to.len as usize];
        self.source.read_at(&to.blob, to.offset, &mut stored).map_err(|error| match error {
            // There is no such range: the root or a node refers to a blob that is smaller.
            BlobError::Io(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                damaged(to, &error.to_string())
            }
            other => other.into(),
        })?;
        let (node, hash) = Node::decode(&stored, to.blob).map_err(|bad| damaged(to, bad.0))?;
        if hash != to.hash {
            return Err(damaged(to, "its hash differs"));
        }
        // A node with the right hash was published as it is. All the same, its content must fit its place.
        if node.level() != level || first.is_some_and(|first| node.first() != Some(first)) {
            return Err(damaged(to, "it does not fit its place"));
        }
        let node = Arc::new(node);
        self.kept.lock().put(to, node.clone());
        Ok(node)
    }

    /// The leaf that would contain this key. `find` returns nodes, or ends the search.
    fn leaf_of<E>(
        &self,
        key: &[u8],
        find: impl Fn(&Pointer, u8, Option<&[u8]>) -> Result<Arc<Node>, E>,
    ) -> Result<Option<Arc<Node>>, E> {
        let (mut to, mut level, mut first) = (self.top, self.level, None);
        loop {
            let node = find(&to, level, first.as_deref())?;
            let Node::Inner(inner) = &*node else { return Ok(Some(node)) };
            let Some(child) = inner.place_of(key).and_then(|place| inner.children.get(place)) else {
                return Ok(None);
            };
            (to, level, first) = (child.to, level - 1, Some(child.first.clone()));
        }
    }

    fn row(&self, key: &[u8]) -> Result<Option<Value>, TreeError> {
        let leaf = self.leaf_of(key, |to, level, first| self.node(to, level, first))?;
        let Some(Node::Leaf(leaf)) = leaf.as_deref() else { return Ok(None) };
        let row = leaf.row(leaf.place_of(key)).filter(|(found, _)| *found == key);
        Ok(row.map(|(_, value)| value.into()))
    }

    /// Calls `each` with the rows of a range, in key order, until it returns false.
    ///
    /// # Errors
    /// A node could not be read.
    pub fn rows(&self, range: &KeyRange, each: &mut Each<'_>) -> Result<(), TreeError> {
        if range.start.as_bytes() < range.end.as_bytes() {
            self.below(&self.top, self.level, None, range, each)?;
        }
        Ok(())
    }

    /// Calls `each` with every row.
    ///
    /// # Errors
    /// A node could not be read.
    pub fn all(&self, each: &mut Each<'_>) -> Result<(), TreeError> {
        self.rows(&KeyRange { start: Key::from_bytes(&[]), end: Key::from_bytes(&[0xFF; 8]) }, each)
    }

    /// Calls `each` with the rows of a range below a node. Returns false if `each` has ended the walk.
    fn below(
        &self,
        to: &Pointer,
        level: u8,
        first: Option<&[u8]>,
        range: &KeyRange,
        each: &mut Each<'_>,
    ) -> Result<bool, TreeError> {
        let (start, end) = (range.start.as_bytes(), range.end.as_bytes());
        match &*self.node(to, level, first)? {
            Node::Leaf(leaf) => {
                for (key, value) in (leaf.place_of(start)..leaf.len()).filter_map(|place| leaf.row(place)) {
                    if key >= end || !each(key, value) {
                        return Ok(false);
                    }
                }
            }
            Node::Inner(inner) => {
                let from = inner.place_of(start).unwrap_or(0);
                for (place, child) in inner.children.iter().enumerate().skip(from) {
                    if *child.first >= *end {
                        return Ok(false);
                    }
                    let next = inner.children.get(place + 1).filter(|next| *next.first < *end);
                    if let Some(next) = next.filter(|next| next.to.blob != child.to.blob) {
                        self.source.will_need(&next.to.blob);
                    }
                    if !self.below(&child.to, level - 1, Some(&child.first), range, each)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Calls `each` with every node's pointer. This does not read leaves.
    ///
    /// # Errors
    /// A node could not be read.
    pub fn nodes(&self, each: &mut dyn FnMut(&Pointer)) -> Result<(), TreeError> {
        each(&self.top);
        let mut todo = vec![(self.top, self.level, None)];
        while let Some((to, level, first)) = todo.pop() {
            if level == 0 {
                continue;
            }
            let node = self.node(&to, level, first.as_deref())?;
            let Node::Inner(inner) = &*node else { continue };
            for child in &inner.children {
                each(&child.to);
                if level > 1 {
                    todo.push((child.to, level - 1, Some(child.first.clone())));
                }
            }
        }
        Ok(())
    }

    /// The nodes that a later tree can reuse. The top is read even if it is a leaf, so that a tree of one
    /// node is reused only if that node is there.
    ///
    /// # Errors
    /// A node could not be read.
    pub fn known(&self) -> Result<Known, TreeError> {
        self.node(&self.top, self.level, None)?;
        let mut known = HashMap::new();
        // The bytes in use, and where the last of them ends.
        let mut blobs: HashMap<BlobId, (u64, u64)> = HashMap::new();
        self.nodes(&mut |to| {
            known.insert(to.hash, *to);
            let (used, end) = blobs.entry(to.blob).or_default();
            *used += u64::from(to.len);
            *end = (*end).max(u64::from(to.offset) + u64::from(to.len));
        })?;
        known.retain(|_, to: &mut Pointer| {
            blobs.get(&to.blob).is_some_and(|(used, end)| used * USED_ONE_IN >= *end)
        });
        Ok(Known(known))
    }

    /// Every blob of the origin that the tree needs: those of its nodes, and those of its files that are not
    /// parts of foreign objects.
    ///
    /// # Errors
    /// A node could not be read.
    pub fn blobs(&self) -> Result<HashSet<BlobId>, TreeError> {
        let mut blobs = HashSet::new();
        self.nodes(&mut |to| {
            blobs.insert(to.blob);
        })?;
        let mut bad = None;
        self.rows(&Key::kind(tags::PACK), &mut |key, row| match PackRow::decode(row) {
            Ok(PackRow::Sealed { blob, .. }) => {
                if !blob.is_foreign() {
                    blobs.insert(blob);
                }
                true
            }
            _ => {
                bad = Some(Key::from_bytes(key));
                false
            }
        })?;
        match bad {
            None => Ok(blobs),
            Some(key) => Err(TreeError::Damaged(format!("the tree's row {key:?} is not a sealed pack"))),
        }
    }
}

fn damaged(to: &Pointer, what: &str) -> TreeError {
    TreeError::Blob(BlobError::Damaged { id: to.blob, what: format!("the node at {}: {what}", to.offset) })
}

impl MetaStore for Tree {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        Ok(self.row(key.as_bytes())?)
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        self.leaf_of(key.as_bytes(), |to, _, _| self.kept.lock().get(to).ok_or(())).is_ok()
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        let mut rows = Rows::new();
        if limit > 0 {
            self.rows(range, &mut |key, value| {
                rows.push((Key::from_bytes(key), value.into()));
                rows.len() < limit
            })?;
        }
        Ok(rows)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        if commit.is_empty() {
            return Ok(());
        }
        Err(StoreError::Unavailable("a published tree cannot be changed".to_owned()).into())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
