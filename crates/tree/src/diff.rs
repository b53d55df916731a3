//! The differences between two trees of one volume: names and inodes, found without reading what the trees
//! share.
//!
//! Both trees are walked side by side in the order of keys. A node that both have (by its hash) is skipped
//! unread, and so is a node that holds only rows of kinds that do not matter here. If a publication changed
//! ten files, the comparison reads their leaves and the path above them.
//!
//! Only names, inodes and the rows that complete a folder's attributes are compared. An inode's row changes
//! whenever its extents, its inline bytes or its extended attributes do, and a new location of a file's bytes
//! is no change of the file.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use base::Ino;
use hashbrown::{HashMap, HashSet};
use meta::key::tags;
use meta::record::Dentry;
use meta::{Key, Names};

use crate::TreeError;
use crate::node::{Node, Pointer};
use crate::read::Tree;

/// The differences between two trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Names that are in only one of the two trees, or stand for another inode: folder, name.
    pub names: Vec<(Ino, Vec<u8>)>,
    /// Inodes that differ, in order. The value is true if the newer tree does not have the inode.
    pub inodes: BTreeMap<Ino, bool>,
}

/// The kinds of rows that are compared, as ranges of a key's first byte.
const WANTED: [(u8, u8); 2] = [(tags::INODE, tags::DENTRY + 1), (tags::DIR_CHANGED, tags::SUBDIRS + 1)];

type Row = (Box<[u8]>, Box<[u8]>);

/// The position of a walk.
enum Head {
    Node {
        to: Pointer,
        level: u8,
        /// The node's first key. `None` for the top node, of which nothing is known before it is read.
        first: Option<Box<[u8]>>,
        /// The first key after it. `None`: the tree's end.
        end: Option<Box<[u8]>>,
    },
    Row(Row),
}

impl Head {
    fn first(&self) -> &[u8] {
        match self {
            Head::Node { first, .. } => first.as_deref().unwrap_or(&[]),
            Head::Row((key, _)) => key,
        }
    }

    /// Whether it may contain a row that is compared.
    fn matters(&self) -> bool {
        let tag = |key: &[u8]| key.first().copied().unwrap_or(0);
        let from = tag(self.first());
        WANTED.iter().any(|(start, end)| match self {
            Head::Row(_) => (*start..*end).contains(&from),
            Head::Node { end: None, .. } => from < *end,
            Head::Node { end: Some(last), .. } => from < *end && **last > [*start][..],
        })
    }
}

/// A walk through one tree from left to right. The next head is the last element.
struct Walk<'a> {
    tree: &'a Tree,
    heads: Vec<Head>,
}

impl<'a> Walk<'a> {
    fn new(tree: &'a Tree) -> Walk<'a> {
        let (to, level) = tree.top();
        Walk { tree, heads: vec![Head::Node { to, level, first: None, end: None }] }
    }

    /// Drops heads that do not matter.
    fn drop_irrelevant(&mut self) {
        while self.heads.last().is_some_and(|head| !head.matters()) {
            self.heads.pop();
        }
    }

    /// Replaces a node by its children or rows.
    fn expand(&mut self) -> Result<(), TreeError> {
        let Some(Head::Node { to, level, first, end }) = self.heads.pop() else { return Ok(()) };
        match &*self.tree.node(&to, level, first.as_deref())? {
            Node::Leaf(leaf) => {
                let rows = (0..leaf.len()).rev().filter_map(|place| leaf.row(place));
                self.heads.extend(rows.map(|(key, value)| Head::Row((key.into(), value.into()))));
            }
            Node::Inner(inner) => {
                let mut end = end;
                for child in inner.children.iter().rev() {
                    let first = Some(child.first.clone());
                    self.heads.push(Head::Node { to: child.to, level: level - 1, first, end });
                    end = Some(child.first.clone());
                }
            }
        }
        Ok(())
    }
}

/// What to do with two heads.
enum Step {
    Same,
    Expand(bool, bool),
    /// Compare the rows at the heads: of the old tree, of the new tree.
    Rows(bool, bool),
}

fn step(old: Option<&Head>, new: Option<&Head>) -> Option<Step> {
    Some(match (old, new) {
        (None, None) => return None,
        (Some(Head::Node { .. }), None) => Step::Expand(true, false),
        (None, Some(Head::Node { .. })) => Step::Expand(false, true),
        (Some(Head::Row(_)), None) => Step::Rows(true, false),
        (None, Some(Head::Row(_))) => Step::Rows(false, true),
        (Some(old), Some(new)) => both(old, new),
    })
}

fn both(old: &Head, new: &Head) -> Step {
    let order = old.first().cmp(new.first());
    match (old, new) {
        (Head::Node { to: a, level: high, .. }, Head::Node { to: b, level: low, .. }) => match order {
            _ if a.hash == b.hash => Step::Same,
            Ordering::Less => Step::Expand(true, false),
            Ordering::Greater => Step::Expand(false, true),
            Ordering::Equal => Step::Expand(high >= low, low >= high),
        },
        (Head::Row(_), Head::Node { .. }) if order == Ordering::Less => Step::Rows(true, false),
        (Head::Row(_), Head::Node { .. }) => Step::Expand(false, true),
        (Head::Node { .. }, Head::Row(_)) if order == Ordering::Greater => Step::Rows(false, true),
        (Head::Node { .. }, Head::Row(_)) => Step::Expand(true, false),
        (Head::Row((_, a)), Head::Row((_, b))) => match order {
            Ordering::Equal if a == b => Step::Same,
            order => Step::Rows(order != Ordering::Greater, order != Ordering::Less),
        },
    }
}

/// Compares two trees.
///
/// # Errors
/// A node could not be read.
pub fn changes(old: &Tree, new: &Tree) -> Result<Changes, TreeError> {
    let mut changes = Changes::default();
    let (mut old, mut new) = (Walk::new(old), Walk::new(new));
    loop {
        old.drop_irrelevant();
        new.drop_irrelevant();
        match step(old.heads.last(), new.heads.last()) {
            None => return Ok(changes),
            Some(Step::Same) => {
                old.heads.pop();
                new.heads.pop();
            }
            Some(Step::Expand(left, right)) => {
                if left {
                    old.expand()?;
                }
                if right {
                    new.expand()?;
                }
            }
            Some(Step::Rows(left, right)) => {
                let was = if left { old.heads.pop() } else { None };
                let is = if right { new.heads.pop() } else { None };
                changes.note(is.as_ref().or(was.as_ref()), is.is_some());
            }
        }
    }
}

impl Changes {
    fn note(&mut self, row: Option<&Head>, is_there: bool) {
        let Some(key) = row.map(|row| Key::from_bytes(row.first())) else { return };
        if let Some(name) = key.as_dentry() {
            self.names.push((name.parent, name.name.to_vec()));
            return;
        }
        let Some(ino) = key.number().map(Ino) else { return };
        match key.tag() {
            tags::INODE => drop(self.inodes.insert(ino, !is_there)),
            // Inodes come first in key order, so an inode that is known to be gone keeps this mark.
            _ => {
                self.inodes.entry(ino).or_insert(false);
            }
        }
    }

    /// Folders whose attributes or listing differ. The set may also contain files.
    pub fn folders(&self) -> HashSet<Ino> {
        self.inodes.keys().copied().chain(self.names.iter().map(|(parent, _)| *parent)).collect()
    }

    /// Whether a mount shows no difference.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.inodes.is_empty()
    }
}

/// Every name that these files have in a tree.
///
/// # Errors
/// A node could not be read.
pub fn names_of(tree: &Arc<Tree>, files: &[Ino]) -> Result<Vec<(Ino, Vec<u8>)>, TreeError> {
    let rows = Names::new(tree.clone());
    let mut by_folder: HashMap<Ino, HashSet<Ino>> = HashMap::new();
    let mut anywhere = HashSet::new();
    for &file in files {
        match rows.inode(file)?.map(|record| record.parent) {
            Some(Ino(0)) => drop(anywhere.insert(file)),
            Some(parent) => drop(by_folder.entry(parent).or_default().insert(file)),
            None => {}
        }
    }
    let mut names = Vec::new();
    let mut gather = |range, wanted: &HashSet<Ino>| {
        tree.rows(&range, &mut |key, row| {
            if Dentry::decode(row).is_ok_and(|dentry| wanted.contains(&dentry.ino))
                && let Some(name) = Key::from_bytes(key).as_dentry()
            {
                names.push((name.parent, name.name.to_vec()));
            }
            true
        })
    };
    for (parent, wanted) in &by_folder {
        gather(Key::dentries(*parent, 0), wanted)?;
    }
    // For a file with several names no row says which folders it is in, so all names are scanned.
    if !anywhere.is_empty() {
        gather(Key::kind(tags::DENTRY), &anywhere)?;
    }
    Ok(names)
}
