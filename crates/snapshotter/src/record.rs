//! What is kept of each snapshot: one file, which is replaced as a whole.

use std::collections::BTreeMap;

use base::{Timestamp, time};
use oci::digest::Digest;
use serde::{Deserialize, Serialize};

use crate::proto::{Info, Time, Usage};

/// The version of the file.
pub const VERSION: u32 = 1;
/// The label by which containerd names the layer that a snapshot is for: its chain id.
pub const REFERENCE: &str = "containerd.io/snapshot.ref";

/// What a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One that is only read.
    View,
    /// One that is written.
    Active,
    /// One that does not change.
    Committed,
}

impl Kind {
    /// The word of containerd's filters.
    pub fn word(self) -> &'static str {
        match self {
            Kind::View => "view",
            Kind::Active => "active",
            Kind::Committed => "committed",
        }
    }
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// The snapshot's number, by which its file and its folder are named.
    pub id: u64,
    /// The snapshot's name in containerd.
    pub name: String,
    /// The number of the one below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u64>,
    /// What it is.
    pub kind: Kind,
    /// The chain id of the layers up to it, if it is a layer of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Digest>,
    /// The diff id of its layer, if it is one of the folder of images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<Digest>,
    /// When it was made or committed, in nanoseconds since 1970.
    pub created_ns: i64,
    /// When its labels were changed, in nanoseconds since 1970.
    pub updated_ns: i64,
    /// What containerd keeps with it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Of a committed one: bytes and inodes that it takes here.
    #[serde(default)]
    pub used: Used,
}

/// What a snapshot takes of this machine's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Bytes.
    pub bytes: u64,
    /// Files and folders.
    pub inodes: u64,
}

impl Used {
    /// The message.
    pub fn told(self) -> Usage {
        Usage {
            size: self.bytes.min(i64::MAX as u64) as i64,
            inodes: self.inodes.min(i64::MAX as u64) as i64,
        }
    }
}

/// Now, in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    time::now().as_nanos()
}

impl Record {
    /// The message. `parent` is the name of the one below.
    pub fn told(&self, parent: &str) -> Info {
        let kind = match self.kind {
            Kind::View => crate::proto::Kind::View,
            Kind::Active => crate::proto::Kind::Active,
            Kind::Committed => crate::proto::Kind::Committed,
        };
        let time = |nanos: i64| {
            let at = Timestamp::from_nanos(nanos);
            Some(Time { seconds: at.seconds(), nanos: at.nanos() as i32 })
        };
        Info {
            name: self.name.clone(),
            parent: parent.to_owned(),
            kind: kind.into(),
            created_at: time(self.created_ns),
            updated_at: time(self.updated_ns),
            labels: self.labels.clone(),
        }
    }
}
