//! How the source of a mount is written: a folder, or a word and a colon, or an origin and a name.
//!
//! The kernel's table of mounts holds it, so a command finds by it what is mounted, and where its daemon listens.

/// A volume in memory; an id follows.
pub const MEMORY: &str = "mem:";
/// A corpus; its numbers follow.
pub const CORPUS: &str = "corpus:";
/// What tells one mount of a tree from another stands after this in its source.
pub const MARK: char = '#';

/// Whether a text is an origin's, not a folder's name.
pub fn is_origin(text: &str) -> bool {
    text.starts_with("file:") || text.contains("://")
}

/// Whether a mount's source is a published tree's, and what is typed to mount it again.
pub fn tree(text: &str) -> Option<&str> {
    let (tree, _) = text.rsplit_once(MARK)?;
    (is_origin(tree) && tree.contains('@')).then_some(tree)
}
