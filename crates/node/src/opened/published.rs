//! Opens a published tree as a volume: its root, its cache, and its first tree nodes.
//!
//! The data on this node is enough. If a tree was mounted here before, it opens even while the store is away
//! or refuses. It then uses the newest root that was seen here ([`Named::far_root`]), and the metadata and
//! blobs on this disk. Meanwhile the node tries to reach the store in the background.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use api::status::Mode;
use api::text::{count, utc};
use base::Deadline;
use blob::Origin;
use fs::OpenError;
use fs::volume::{Options, Volume};
use origin::{Access, Remote};
use parking_lot::Mutex;
use tree::Root;

use super::{Node, volume_options};
use crate::follow::Follow;
use crate::foreign;
use crate::frozen::{self, Interval, Named, ReadFrom, RemoteRoot};
use crate::log;
use crate::options::NodeOptions;
use crate::refused::open_failure;
use crate::remote_side::tree::{TreeCache, Which};

/// The time limit for opening the metadata while the origin is away. Data on this disk is available at once.
const OPENING: Duration = Duration::from_secs(2);

/// The sources of a tree.
struct Side {
    root: Root,
    from: ReadFrom,
    cache: Option<TreeCache>,
    /// Why the origin cannot be used now.
    away: Option<String>,
}

impl Node {
    /// Opens a published tree: reads its root and its first tree nodes.
    pub(super) fn open_published(named: &Named, options: &NodeOptions) -> Result<Node> {
        let options = NodeOptions { read_only: true, frozen: true, ..options.clone() };
        let (side, (volume, follow)) = if named.is_local() {
            let (root, origin) = named.root(Access::ReadOnly)?;
            match root.source {
                None => local(named, root, origin, &options)?,
                Some(_) => cached(named, Found { root, origin, remote: None, away: None }, &options)?,
            }
        } else {
            let limits = crate::remote_side::limits(&options.remote_side, options.deadline);
            let RemoteRoot { root, remote, away } = named.remote_root(limits)?;
            cached(named, Found { root, origin: remote.clone(), remote: Some(remote), away }, &options)?
        };
        let Side { root, mut cache, away, .. } = side;
        if let (Some(cache), Some(why)) = (&mut cache, away) {
            log::warn(&said(&named.to_string(), &root, &why));
            let (named, root) = (named.clone(), root.clone());
            cache.look_for(why, move |remote| back(&named, &root, remote));
        }
        Ok(Node {
            name: format!("{named}{}{:016x}", api::source::MARK, base::random::u64()),
            dir: None,
            volume,
            journal: None,
            rows: None,
            remote_side: None,
            tree_cache: cache,
            tree: Some((root, named.home.origin.clone())),
            follow,
            mode: Mode::Frozen,
            opened: base::time::monotonic(),
            lock: Mutex::new(None),
            writer: None,
            shared: None,
            watch: Mutex::default(),
        })
    }

    /// The remarks for the user about a tree: it is shown without its origin, or its bucket gets no keys.
    pub fn remarks(&self) -> Vec<String> {
        let away = || {
            let away = self.tree_cache()?.away()?;
            Some(said(api::source::tree(&self.name)?, &self.root()?, &away.why))
        };
        let unsigned = self.tree_cache().and_then(TreeCache::endpoint_without_keys);
        away().into_iter().chain(unsigned.map(foreign::kept)).collect()
    }
}

/// A root, and its origin.
struct Found {
    root: Root,
    origin: Arc<dyn Origin>,
    /// The origin, if it is remote.
    remote: Option<Arc<Remote>>,
    away: Option<String>,
}

fn local(named: &Named, root: Root, origin: Arc<dyn Origin>, options: &NodeOptions) -> Result<(Side, Shown)> {
    let side = Side {
        root,
        from: ReadFrom { names: origin.clone(), bytes: origin.clone(), origin, places: None },
        cache: None,
        away: None,
    };
    let shown = shown(named, &side, options)?;
    Ok((side, shown))
}

/// Opens the tree with the first cache that no other mount uses. While the origin is away, takes one that has
/// the metadata, if there is one.
fn cached(named: &Named, found: Found, options: &NodeOptions) -> Result<(Side, Shown)> {
    let Found { root, origin, remote, away } = found;
    let (origin, places, unsigned) = match &root.source {
        None => (origin, None, None),
        Some(source) => {
            let own = named.home.endpoint.as_deref();
            let keys = foreign::gets_keys(source, own, &options.remote_side.bucket_endpoints)?;
            let (origin, places) = foreign::around(origin, source, &root, keys)?;
            let unsigned = source.endpoint.clone().filter(|_| keys == foreign::Keys::Kept);
            (origin, Some(places), unsigned)
        }
    };
    unsigned.iter().for_each(|endpoint| log::line(&foreign::kept(endpoint)));
    let patience = away.as_ref().map_or(Duration::ZERO, |_| OPENING);
    let mut which = Which { after: 0, patience, beside: options.beside };
    loop {
        let volume = root.volume;
        let store = (origin.clone(), remote.clone());
        let cache = TreeCache::before(store, volume, named, &options.remote_side, options.deadline, which)?;
        let cache = cache.unsigned(unsigned.clone());
        let places = places.clone();
        let from = ReadFrom { origin: cache.origin(), bytes: cache.bytes(), names: cache.names(), places };
        let side = Side { root: root.clone(), from, cache: Some(cache), away: away.clone() };
        let Some(why) = &away else {
            let shown = shown(named, &side, options)?;
            return Ok((side, shown));
        };
        let failure = match Deadline::after(OPENING).scope(|| shown(named, &side, options)) {
            Ok(shown) => return Ok((side, shown)),
            Err(failure) => failure,
        };
        let next = side.cache.as_ref().and_then(TreeCache::next);
        side.cache.iter().for_each(TreeCache::close);
        let Some(next) = next else { return Err(not_here(named, why, &failure)) };
        which = Which { after: next, patience: Duration::ZERO, ..which };
    }
}

type Shown = (Arc<Volume>, Option<(Arc<Follow>, Duration)>);

fn shown(named: &Named, side: &Side, options: &NodeOptions) -> Result<Shown> {
    let is_local = side.cache.is_none();
    let open = Options { local: is_local, names_local: is_local, ..volume_options(options) };
    let groups = side.cache.as_ref().and_then(TreeCache::fleet).map(|joined| joined.groups.clone());
    if let Some(Interval(every)) = named.follow {
        let follow = Follow::new(named, side.root.clone(), side.from.clone(), open, groups)?;
        let follow = follow.away(side.away.is_some());
        return Ok((follow.volume(), Some((Arc::new(follow), every))));
    }
    let volume = Volume::open(frozen::parts(&side.root, &side.from, groups.as_ref()), open);
    let failed = |error: OpenError| open_failure(Path::new(&named.to_string()), error);
    Ok((Arc::new(volume.map_err(failed)?), None))
}

fn said(tree: &str, root: &Root, why: &str) -> String {
    format!(
        "the origin cannot be used now: {why}; this mount shows publication {} of {tree}, of {}, \
         the newest that this node has seen; \
         what is not on this node cannot be read until the origin answers again; Covey keeps trying",
        count(root.sequence),
        utc(root.moment.seconds())
    )
}

fn not_here(named: &Named, why: &str, failure: &Failure) -> Failure {
    Failure::new("origin-away", format!("cannot mount {named} while its origin cannot be used"))
        .why(why)
        .why(format!("its names are not on this node: {}", failure.in_one_line()))
        .next("mount it when the origin answers again")
}

/// Called when the origin is reached again. A mount that does not follow the name keeps its tree, and logs
/// whether there is a newer one.
fn back(named: &Named, shown: &Root, remote: &Remote) {
    if named.follow.is_some() || named.sequence.is_some() {
        return;
    }
    if let Ok(root) = Root::read(remote, &named.name, named.key.as_ref())
        && root.top != shown.top
    {
        log::line(&format!(
            "{named} was published again, at {}, and this mount shows what was published at {}: \
             mount it again for the newest, or with --follow",
            utc(root.moment.seconds()),
            utc(shown.moment.seconds())
        ));
    }
}
