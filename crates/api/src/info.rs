//! What a file is made of, as a daemon answers it.

use serde::{Deserialize, Serialize};

/// Everything known of one file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Info {
    /// Inode number.
    pub inode: u64,
    /// `file`, `folder`, `symlink`, `fifo`, `socket`, `device`.
    pub kind: String,
    /// `S_IFMT` and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes that its extents or its inline row take.
    pub stored_bytes: u64,
    /// Whether its bytes are kept among the names.
    pub inline: bool,
    /// When its contents last changed, UTC.
    pub modified: String,
    /// Pages of 4 MiB that hold data.
    pub pages: u64,
    /// Extents.
    pub extents: u64,
    /// Where its bytes lie, by pack.
    pub packs: Vec<PackInfo>,
    /// Its extents one by one, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extent_list: Vec<ExtentInfo>,
}

/// One extent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExtentInfo {
    /// Where in the file it begins.
    pub at: u64,
    /// Bytes.
    pub len: u32,
    /// The pack that holds them.
    pub pack: u64,
    /// Where in the pack they begin.
    pub offset: u32,
}

/// A pack, and what a file has in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PackInfo {
    /// Its number.
    pub pack: u64,
    /// `open`, `sealed`, `condemned`, or `missing`, which is damage.
    pub state: String,
    /// The blob it became.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    /// The blob's size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Where its bytes are: `open here`, `here`, `here, not uploaded`, `origin`, `lost`, or `unknown` when the origin does not answer.
    #[serde(default)]
    pub place: String,
    /// Extents of the file in it.
    pub extents: u64,
    /// Bytes of the file in it.
    pub bytes: u64,
}
