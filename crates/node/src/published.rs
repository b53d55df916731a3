//! What is published in an origin.

use api::answers::{Published, PublishedTree};
use api::error::Result;
use api::text::utc;
use blob::Origin;
use tree::TreeError;
use tree::history;
use tree::root::{self, Root, hex};

use crate::opened::Node;
use crate::publisher::failure;

/// Lists the trees of an origin. `all`: also the older publications that are kept.
pub fn list(origin: &dyn Origin, all: bool) -> Result<Vec<PublishedTree>> {
    let names = root::names(origin).map_err(|error| failure("cannot list what is published", error))?;
    let mut trees = Vec::new();
    for name in names {
        if all {
            let kept = history::sequences(origin, &name);
            for sequence in kept.map_err(|error| failure("cannot list what is kept", error))? {
                trees.push(tree(name.clone(), sequence, history::read(origin, &name, sequence, None)));
            }
        }
        let newest = Root::read(origin, &name, None);
        // A publication is kept before it is replaced. If that was interrupted, it is both.
        trees.pop_if(|last| {
            newest.as_ref().is_ok_and(|root| (&last.name, last.sequence) == (&name, root.sequence))
        });
        trees.push(tree(name, 0, newest));
    }
    Ok(trees)
}

/// `sequence`: the number of a tree that cannot be read.
fn tree(name: String, sequence: u64, root: std::result::Result<Root, TreeError>) -> PublishedTree {
    match root {
        Ok(root) => PublishedTree {
            name,
            error: None,
            sequence: root.sequence,
            published: utc(root.moment.seconds()),
            files: root.inodes,
            bytes: root.bytes,
            nodes: root.nodes,
            root: hex(&root.top.hash),
            key: hex(&root.key),
            source: root.source.map(|source| source.url),
        },
        Err(error) => {
            PublishedTree { name, error: Some(error.to_string()), sequence, ..PublishedTree::default() }
        }
    }
}

impl Node {
    /// What is published in the volume's origin.
    pub fn published(&self, all: bool) -> Result<Published> {
        let dir = self.dir().ok_or_else(|| crate::publish::no_volume(self))?;
        let trees = list(&*self.volume().parts().origin, all)?;
        Ok(Published { origin: dir.home().origin, trees })
    }
}
