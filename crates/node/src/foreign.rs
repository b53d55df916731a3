//! A published tree whose files are the objects of a bucket: where its bytes come from.

use std::sync::Arc;

use api::error::{Failure, Result};
use base::{Deadline, ForeignObject};
use blob::{BlobError, BlobSource, Origin};
use meta::record::ForeignRow;
use meta::store::StoreError;
use meta::{Key, MetaStore};
use origin::{Bucket, Environment, ForeignOrigin, Locate, Location, Mistake, OriginError};
use parking_lot::Mutex;
use tree::{Root, Source, Tree};

use crate::log;
use crate::origins::{origin_failure, remote_code};
use crate::remote_side::ORIGIN_ASKED;

/// How many trees of a followed name are asked for an object. A file that is open since an older tree can
/// still read what is in a cache.
const TREES: usize = 3;

/// The trees of a mount, asked for the places of objects.
///
/// They read their nodes from the origin itself, not through the node's cache. This is asked in the middle of
/// a fetch, which holds a place in the cache's budget: a fetch of a node there could wait for it forever.
pub struct Places {
    nodes: Arc<dyn BlobSource>,
    /// The newest first.
    trees: Mutex<Vec<Arc<Tree>>>,
}

impl Places {
    /// Asks the tree of this root first from now on.
    pub fn add(&self, root: &Root) {
        let mut trees = self.trees.lock();
        trees.insert(0, Arc::new(Tree::new(self.nodes.clone(), root)));
        trees.truncate(TREES);
    }
}

impl Locate for Places {
    fn locate(&self, object: ForeignObject) -> std::result::Result<Option<Location>, BlobError> {
        let trees = self.trees.lock().clone();
        for tree in trees {
            let row = tree.get(&Key::foreign(object)).map_err(unread)?;
            if let Some(row) = row {
                let row =
                    ForeignRow::decode(&row).map_err(|bad| unread(StoreError::Damaged(bad.to_string())))?;
                let ForeignRow { key, etag, size, .. } = row;
                return Ok(Some(Location { key, etag, size }));
            }
        }
        // A file was open while the name moved on, more than once.
        Err(BlobError::Stale(format!("object {object} is not in the newest trees of the bucket any more")))
    }
}

fn unread(error: StoreError) -> BlobError {
    BlobError::Unavailable(format!("the place of an object cannot be read: {error}"))
}

/// An origin that also reads the bucket of a tree, and the places that it asks. Checks that the bucket can be
/// used. A store that does not answer is only reported: what is cached can be read.
///
/// # Errors
/// There are no keys, or the store refuses them, or there is no such bucket.
pub fn around(
    inner: Arc<dyn Origin>,
    source: &Source,
    root: &Root,
    keys: Keys,
) -> Result<(Arc<dyn Origin>, Arc<Places>)> {
    let bucket = match keys {
        Keys::Sent => bucket(source)?,
        Keys::Kept => open(source, &Environment::unsigned())?,
    };
    check(&bucket, source, keys)?;
    let nodes: Arc<dyn BlobSource> = inner.clone();
    let places = Arc::new(Places { nodes, trees: Mutex::default() });
    places.add(root);
    Ok((Arc::new(ForeignOrigin::new(inner, bucket, places.clone())), places))
}

/// The variable that names endpoints as `-o bucket_endpoint` does, separated by commas.
const ENDPOINTS: &str = "COVEY_BUCKET_ENDPOINTS";

/// Whether requests to a tree's bucket are signed with this machine's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Requests are signed with the keys.
    Sent,
    /// Requests are not signed with the keys. What everybody may read can be read.
    Kept,
}

/// Whether the endpoint that a tree names gets this machine's keys: it is the origin's `own`, or the user has
/// listed it. Where a tree names no endpoint, requests go to the cloud itself. Everybody who can publish
/// the tree chooses its endpoint, and would get what a request shows: a token, or a signature for that
/// endpoint. So other endpoints get requests without keys, and only over https: on the way, somebody else
/// could answer in the store's place, and the bytes of objects have no sum of the publisher's.
///
/// # Errors
/// It is not listed, and not https.
pub fn gets_keys(source: &Source, own: Option<&str>, listed: &[String]) -> Result<Keys> {
    let Some(endpoint) = source.endpoint.as_deref() else { return Ok(Keys::Sent) };
    let variable = std::env::var(ENDPOINTS).unwrap_or_default();
    let plain = |url: &str| url.trim().trim_end_matches('/').to_ascii_lowercase();
    let is_it = |url: &str| plain(url) == plain(endpoint);
    if own.is_some_and(is_it) || listed.iter().any(|url| is_it(url)) || variable.split(',').any(is_it) {
        return Ok(Keys::Sent);
    }
    if endpoint.starts_with("https://") {
        return Ok(Keys::Kept);
    }
    let named = format!("the tree names the endpoint {endpoint} for the bucket {}", source.url);
    let failure = Failure::new("not-trusted", named)
        .why("only the tree names it, so it does not get this machine's keys; and it is not https");
    Err(trusting(failure, endpoint))
}

/// The failure with what a user does who trusts an endpoint.
fn trusting(failure: Failure, endpoint: &str) -> Failure {
    failure
        .next(format!("if you trust it, mount with -o bucket_endpoint={endpoint}"))
        .next(format!("or, for all commands, {ENDPOINTS}={endpoint} in the environment"))
}

/// The remark for the user about a bucket that gets no keys.
pub fn kept(endpoint: &str) -> String {
    format!(
        "requests to {endpoint} are not signed, because only the tree names it: they read what everybody \
         may read; -o bucket_endpoint={endpoint} gives it this machine's keys"
    )
}

fn check(bucket: &Bucket, source: &Source, keys: Keys) -> Result<()> {
    let listed = Deadline::after(ORIGIN_ASKED).scope(|| bucket.list(&mut |_| false));
    match listed {
        Ok(()) => Ok(()),
        // The keys may read objects and not list them.
        Err(OriginError::Remote { mistake: Mistake::Denied, .. }) => Ok(()),
        Err(error @ OriginError::Remote { mistake, .. }) if crate::remote_side::passes(mistake) => {
            let may_pass =
                !matches!(mistake, Mistake::AccessKey | Mistake::Secret | Mistake::NoKeys | Mistake::Expired);
            let mut failure = bucket_failure(&source.url, error);
            if let (Keys::Kept, Some(endpoint)) = (keys, &source.endpoint) {
                failure = trusting(failure, endpoint);
            }
            match may_pass {
                true => log::warn(&format!("{}; what is on this node can be read", failure.in_one_line())),
                false => return Err(failure),
            }
            Ok(())
        }
        Err(error) => Err(bucket_failure(&source.url, error)),
    }
}

/// Opens the bucket of a tree, with keys from the environment. Sends no request.
///
/// # Errors
/// The place is badly named, or there are no keys.
pub fn bucket(source: &Source) -> Result<origin::Bucket> {
    // The keys are loaded into this process's memory.
    crate::secrets::keep_from_dumps();
    open(source, &Environment::process())
}

fn open(source: &Source, environment: &Environment) -> Result<origin::Bucket> {
    let (endpoint, region) = (source.endpoint.as_deref(), source.region.as_deref());
    let opened = origin::Bucket::open(&source.url, endpoint, region, environment);
    opened.map_err(|error| match error {
        OriginError::Remote { .. } => bucket_failure(&source.url, error),
        other => Failure { status: 2, ..origin_failure(other) },
    })
}

/// The failure for a bucket that cannot be used.
pub(crate) fn bucket_failure(url: &str, error: OriginError) -> Failure {
    match error {
        OriginError::Remote { mistake, what, next, .. } => {
            let next = next.as_deref().unwrap_or("try again; what was published before is as it was");
            Failure::new(remote_code(mistake), format!("cannot use the bucket {url}")).why(what).next(next)
        }
        other => origin_failure(other),
    }
}

/// The failure for a command that would need the bytes in the origin.
pub fn not_in_origin(what: &str, source: &Source) -> Failure {
    Failure::usage(what)
        .why(format!("the bytes of its files are in {}, not in the origin", source.url))
        .next(format!("copy them into a volume instead: covey import {} VOLUME:/PATH", source.url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_keys_go_only_where_the_user_pointed() {
        let source = |endpoint: Option<&str>| Source {
            url: "s3://theirs/set".to_owned(),
            endpoint: endpoint.map(str::to_owned),
            region: None,
        };
        let asked = |endpoint: Option<&str>, own: Option<&str>, listed: &[&str]| {
            let listed: Vec<String> = listed.iter().map(|url| (*url).to_owned()).collect();
            gets_keys(&source(endpoint), own, &listed).ok()
        };
        assert_eq!(asked(None, None, &[]), Some(Keys::Sent));
        let theirs = Some("https://theirs.example:9000");
        let mine = "https://mine.example";
        assert_eq!(asked(theirs, None, &[]), Some(Keys::Kept));
        assert_eq!(asked(theirs, Some(mine), &["https://theirs.example"]), Some(Keys::Kept));
        assert_eq!(asked(theirs, None, &["http://theirs.example:9000"]), Some(Keys::Kept));
        assert_eq!(asked(theirs, Some("https://Theirs.example:9000/"), &[]), Some(Keys::Sent));
        assert_eq!(asked(theirs, None, &[mine, "https://theirs.example:9000"]), Some(Keys::Sent));
        let clear = Some("http://theirs.example:9000");
        assert_eq!(asked(clear, None, &["https://theirs.example:9000"]), None);
        assert_eq!(asked(clear, None, &["http://theirs.example:9000"]), Some(Keys::Sent));
        let refused = gets_keys(&source(clear), None, &[]).unwrap_err();
        assert!(refused.next[0].contains("-o bucket_endpoint=http://theirs.example:9000"), "{refused}");
    }
}
