//! How the source of a mount is written: a folder, or a word and a colon, or an origin and a name.
//!
//! The kernel's mount table holds the source. From it a command learns what is mounted and where the daemon
//! listens.

/// The source of a volume in memory starts with this. Its id follows.
pub const MEMORY: &str = "mem:";
/// The source of a corpus starts with this. Its numbers follow.
pub const CORPUS: &str = "corpus:";
/// In the source of a tree, the part after this character tells one mount of the tree from another.
pub const MARK: char = '#';

/// Whether a text names an origin, not a folder.
pub fn is_origin(text: &str) -> bool {
    text.starts_with("file:") || text.contains("://")
}

/// The tree in the source of a mount, as a user types it to mount it again. None if the source is no
/// published tree.
pub fn tree(text: &str) -> Option<&str> {
    let (tree, _) = text.rsplit_once(MARK)?;
    (is_origin(tree) && tree.contains('@')).then_some(tree)
}
