//! What a file consists of, as a daemon reports it.

use serde::{Deserialize, Serialize};

/// Everything that is known about one file.
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
    /// The number of its names.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes that its extents or its inline row take.
    pub stored_bytes: u64,
    /// Whether its data is stored inline, with the metadata.
    pub inline: bool,
    /// When its contents last changed, UTC.
    pub modified: String,
    /// Pages of 4 MiB that hold data.
    pub pages: u64,
    /// Extents.
    pub extents: u64,
    /// Where its data lies, by pack.
    pub packs: Vec<PackInfo>,
    /// The file's extents one by one, if the request asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extent_list: Vec<ExtentInfo>,
}

/// One extent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExtentInfo {
    /// The offset in the file.
    pub at: u64,
    /// Bytes.
    pub len: u32,
    /// The pack that holds them.
    pub pack: u64,
    /// The offset in the pack.
    pub offset: u32,
}

/// A pack, and the part of a file in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PackInfo {
    /// The pack's number.
    pub pack: u64,
    /// `open`, `sealed`, `condemned`, or `missing`, which is damage.
    pub state: String,
    /// The blob that the sealed pack became.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    /// The blob's size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Where its data is: `open here`, `here`, `here, not uploaded`, `origin`, `another node`, `absent node`,
    /// `lost`, or `unknown` if the origin does not answer.
    #[serde(default)]
    pub place: String,
    /// Extents of the file in it.
    pub extents: u64,
    /// Bytes of the file in it.
    pub bytes: u64,
}
