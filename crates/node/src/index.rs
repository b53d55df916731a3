//! Indexing: the listing of a bucket that others fill becomes a published tree. No byte of an object is
//! copied.
//!
//! [`rows`] makes the tree's rows, and [`tree::publish_content`] publishes them, as it publishes a volume's.

pub mod rows;
mod sort;

use std::path::Path;

use api::answers::{IndexSummary, Left};
use api::control::Tick;
use api::error::{Context, Failure, Result};
use api::text::count;
use blob::BlobError;
use meta::{Key, Value};
use tree::{Root, Source, Tree, TreeError};

use crate::foreign::{bucket, bucket_failure};
use crate::log;
use crate::opened::Node;
use crate::origins::Reach;
use crate::publish::{Wanted, no_volume};
use crate::publisher::failure;
use rows::{Listed, Listing, Owner, Plan, Rows};

/// So many keys that are not in the tree are named in an answer.
pub const NAMED: usize = 100;

/// A bucket to index.
pub struct Indexed {
    source: Source,
    bucket: origin::Bucket,
}

/// What to index, and how.
pub struct Order<'a> {
    /// The bucket.
    pub from: &'a Indexed,
    /// The name of the tree, and how it is published. Its path is empty.
    pub wanted: Wanted,
    /// The owner of files and folders.
    pub owner: Owner,
    /// Called with the key of each object that is not in the tree, and why.
    pub skip: &'a mut dyn FnMut(&str, &str),
}

impl Indexed {
    /// Prepares to list `s3://BUCKET[/PREFIX]`, `gs://..` or `az://..`. Keys come from the environment. Sends
    /// no request yet.
    ///
    /// # Errors
    /// The place is badly named, or there are no keys.
    pub fn open(text: &str, reach: &Reach) -> Result<Indexed> {
        if !origin::RemoteSpec::claims(text) {
            return Err(Failure::usage(format!("{text} is no bucket"))
                .next("write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"));
        }
        if text.len() > Source::TEXT_MAX {
            return Err(Failure::usage("the prefix is longer than any key").next("write a shorter one"));
        }
        let (endpoint, region) = (reach.endpoint.clone(), reach.region.clone());
        let mut source = Source { url: text.trim_end_matches('/').to_owned(), endpoint, region };
        let bucket = bucket(&source)?;
        // The tree names the store as it is reached, so that a mount elsewhere finds it.
        source.url = bucket.url().trim_end_matches('/').to_owned();
        Ok(Indexed { source, bucket })
    }

    /// Returns the bucket's name: `s3://BUCKET/PREFIX`.
    pub fn url(&self) -> &str {
        &self.source.url
    }

    fn failed(&self, error: TreeError) -> Failure {
        failure(format!("cannot index {}", self.url()), error)
    }

    /// Lists all objects. `folder` gets the files of the sorts.
    fn list(&self, folder: &Path, left: &mut LeftOut<'_>, tick: &mut Ticks<'_>) -> Result<Listed> {
        let mut listing = Listing::new(folder).at("use", folder)?;
        let (mut broken, mut stopped) = (None, false);
        let listed = self.bucket.list(&mut |object| {
            broken = listing.add(&object, &mut |key, why| left.add(key, why)).err();
            let done = listing.objects();
            stopped = done % 1000 == 0 && !say(tick, done, "objects listed");
            broken.is_none() && !stopped
        });
        listed.map_err(|error| bucket_failure(self.url(), error))?;
        broken.map_or(Ok(()), Err).at("use", folder)?;
        if stopped {
            return Err(self.failed(TreeError::Stopped));
        }
        let listed = listing.finish().at("use", folder)?;
        if listed.objects == 0 { Err(nothing(self.url(), left.count)) } else { Ok(listed) }
    }

    /// The rows of a tree of these objects. If the last tree is damaged, all numbers are new.
    fn rows(
        &self,
        mut plan: Plan<'_>,
        listed: &Listed,
        left: &mut LeftOut<'_>,
        tick: &mut Ticks<'_>,
    ) -> Result<Rows> {
        let mut skip = |key: &str, why: &str| left.add(key, why);
        let mut ticks = |done: u64| !done.is_multiple_of(4096) || say(tick, done, "objects sorted");
        let made = match rows::rows(&plan, listed, &mut skip, &mut ticks) {
            // The last tree is read before anything is left out.
            Err(error @ (TreeError::Damaged(_) | TreeError::Blob(BlobError::Damaged { .. })))
                if plan.before.is_some() =>
            {
                log::warn(&format!("the last tree cannot be read, so all numbers are new: {error}"));
                plan.before = None;
                rows::rows(&plan, listed, &mut skip, &mut ticks)
            }
            made => made,
        };
        made.map_err(|error| self.failed(error))
    }
}

/// The objects that are not in a tree.
struct LeftOut<'a> {
    count: u64,
    first: Vec<Left>,
    skip: &'a mut dyn FnMut(&str, &str),
}

impl LeftOut<'_> {
    fn add(&mut self, key: &str, why: &str) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(Left { key: key.to_owned(), why: why.to_owned() });
        }
        (self.skip)(key, why);
    }
}

type Ticks<'a> = dyn FnMut(Tick) -> bool + 'a;

impl Node {
    /// Lists a bucket, and publishes a tree of its objects.
    pub fn index(&self, order: Order<'_>, tick: &mut Ticks<'_>) -> Result<IndexSummary> {
        let started = base::time::monotonic();
        let Order { from, wanted, owner, skip } = order;
        let dir = self.dir().ok_or_else(|| no_volume(self))?;
        let origin = self.volume().parts().origin.clone();
        let before = last(&*origin, &wanted.name, &from.source, self.name())?;
        let before = before.filter(|_| !wanted.afresh).map(|root| Tree::new(origin, &root));
        let mut left = LeftOut { count: 0, first: Vec::new(), skip };
        let listed = from.list(dir.path(), &mut left, tick)?;
        let listing_seconds = (base::time::monotonic() - started).as_secs_f64();
        let plan = Plan {
            folder: dir.path(),
            bucket: &from.bucket,
            source: from.source.clone(),
            owner,
            volume: self.own_rows(from)?,
            before: before.as_ref(),
        };
        let rows = from.rows(plan, &listed, &mut left, tick)?;
        drop(listed);
        let published = self.publish_rows(&wanted, &rows, tick)?;
        Ok(IndexSummary {
            source: from.url().to_owned(),
            published,
            objects: rows.files,
            left_out: left.count,
            first_left_out: left.first,
            listing_seconds,
            seconds: (base::time::monotonic() - started).as_secs_f64(),
        })
    }

    /// The rows that every store of a volume's names has.
    fn own_rows(&self, from: &Indexed) -> Result<Vec<(Key, Value)>> {
        let mut rows = Vec::new();
        for name in ["format", "id"] {
            let key = Key::volume(name);
            let row = self.volume().parts().store.get(&key);
            rows.extend(row.map_err(|error| from.failed(error.into()))?.map(|row| (key, row)));
        }
        Ok(rows)
    }
}

/// The root that is published under the name, if there is one. It must be a tree of the same bucket.
fn last(origin: &dyn blob::Origin, name: &str, source: &Source, volume: String) -> Result<Option<Root>> {
    let root = match Root::read(origin, name, None) {
        Ok(root) => root,
        // A root that cannot be read is replaced.
        Err(TreeError::NotPublished(_) | TreeError::Damaged(_) | TreeError::Untrusted(_)) => return Ok(None),
        Err(error) => return Err(failure(format!("cannot index {}", source.url), error)),
    };
    match &root.source {
        Some(found) if found.url == source.url => Ok(Some(root)),
        found => {
            let what = found.as_ref().map_or("a folder of the volume", |found| &*found.url);
            Err(Failure::usage(format!("{name} is {what} until now, and not {}", source.url))
                .next(format!("write another name, or withdraw it first: covey unpublish {volume} {name}")))
        }
    }
}

fn nothing(url: &str, left_out: u64) -> Failure {
    let what = match left_out {
        0 => format!("there is no object below {url}"),
        _ => format!("none of the {} objects below {url} can be a file", count(left_out)),
    };
    Failure::new("not-found", what)
        .next("check the bucket and the prefix: only keys that begin with PREFIX/ are found")
        .next("what was published before is as it was")
}

fn say(tick: &mut Ticks<'_>, done: u64, what: &str) -> bool {
    tick(Tick { done, of: 0, what: format!("{} {what}", count(done)) })
}
