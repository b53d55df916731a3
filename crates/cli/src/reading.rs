//! What `ls`, `cat` and `cp` read without a mount: a published tree, or a volume that is not mounted.
//!
//! `ORIGIN@NAME`, `ORIGIN@NAME#NUMBER` or a volume's folder, and behind a `:` a path within it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::{Failure, Result};
use fs::api::Attr;
use node::errno::errno_failure;
use node::fleet::options::FleetOptions;
use node::frozen::{self, Named};
use node::opened::{Node, Source};
use node::options::NodeOptions;

use crate::args::{Accept, Reach};
use crate::target::{Target, resolve};

/// How what is read is reached.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Way {
    #[command(flatten)]
    pub reach: Reach,
    #[command(flatten)]
    pub accept: Accept,
    /// Of a tree in an object store: the folder for its cache [default: covey/trees in the cache folder]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// A published tree or a volume, open for reading. Close it with [`Opened::close`].
pub struct Opened {
    pub node: Arc<Node>,
    /// The path within it. Empty for all of it.
    pub inner: PathBuf,
}

impl Opened {
    /// Opens what a text names. `does`: the command's name.
    pub fn open(text: &Path, way: &Way, does: &'static str) -> Result<Opened> {
        Opened::joined(text, way, &FleetOptions::default(), does)
    }

    /// Opens what a text names, for a command that reads a tree as a node of a fleet.
    pub fn joined(text: &Path, way: &Way, fleet: &FleetOptions, does: &'static str) -> Result<Opened> {
        let options = NodeOptions::reading(does);
        if let Some((tree, inner)) = split(text) {
            let named = Named::parse(tree)?.ok_or_else(|| not_a_source(text))?;
            let named = named.accepting(&way.accept.accept())?;
            let named = named.reached(&way.reach.reach(), way.cache.as_deref())?.in_fleet(fleet)?;
            let node = Node::open_source(&Source::Published(named), &options)?;
            return Ok(Opened { node: Arc::new(node), inner: relative(Path::new(inner)) });
        }
        match resolve(text)? {
            Target::Closed { dir, inner } => {
                Ok(Opened { node: Arc::new(Node::open(&dir, &options)?), inner: relative(&inner) })
            }
            Target::Mounted(place) => Err(Failure::usage(format!("{} is mounted", text.display()))
                .next(format!("name the place on the mount instead: {}", place.path.display()))),
        }
    }

    /// What the path leads to. The last link of it is followed.
    pub fn find(&self) -> Result<Attr> {
        let found = self.node.shown().resolve(self.inner.as_os_str().as_bytes(), true);
        found.map_err(|errno| errno_failure(format!("cannot read {}", self.shown()), errno))
    }

    /// The text that names it.
    pub fn shown(&self) -> String {
        let name = self.node.name();
        let tree = api::source::tree(&name).unwrap_or(&name);
        format!("{tree}:/{}", self.inner.display())
    }

    /// Runs `work` and closes what was opened, whatever the outcome.
    pub fn close<T>(self, work: impl FnOnce(&Opened) -> Result<T>) -> Result<T> {
        let done = work(&self);
        let closed = self.node.close();
        let done = done?;
        closed?;
        Ok(done)
    }
}

/// `ORIGIN@NAME:/PATH` as tree and path. `None` for other texts.
pub fn split(text: &Path) -> Option<(&str, &str)> {
    let whole = text.to_str().filter(|whole| api::source::is_origin(whole) && !frozen::is_folder(text))?;
    for (at, _) in whole.match_indices('@') {
        let rest = &whole[at + 1..];
        let end = rest.find(":/").unwrap_or(rest.len());
        if end > 0 && !rest[..end].contains('/') {
            let (tree, inner) = whole.split_at(at + 1 + end);
            return Some((tree, inner.strip_prefix(':').unwrap_or(inner)));
        }
    }
    Some((whole, ""))
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

fn not_a_source(text: &Path) -> Failure {
    Failure::usage(format!("{} names no published tree", text.display()))
        .next("write ORIGIN@NAME:/PATH, such as s3://bucket/prefix@latest:/data")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_within_a_tree_is_split_off() {
        let cases = [
            ("s3://b/p@latest:/a/b", "s3://b/p@latest", "/a/b"),
            ("s3://b/p@latest", "s3://b/p@latest", ""),
            ("file:/srv/o@x/blobs@daily#42:/a@b:/c", "file:/srv/o@x/blobs@daily#42", "/a@b:/c"),
            ("s3://b/p", "s3://b/p", ""),
        ];
        for (text, tree, inner) in cases {
            assert_eq!(split(Path::new(text)), Some((tree, inner)), "{text}");
        }
        assert_eq!(split(Path::new("/srv/volume:/a")), None);
    }
}
