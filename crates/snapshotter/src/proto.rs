//! The messages of containerd's snapshot service, version 1, as this program uses them.
//!
//! Requests that have the same fields share a type. A field that this program does not use is left out:
//! decoders skip what they do not know. The first field of every request is the snapshotter's name in
//! containerd, and there is one snapshotter behind a socket.

use std::collections::BTreeMap;

/// Prepare and View.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NewSnapshot {
    /// The snapshot's name until it is committed.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The snapshot below it, or nothing.
    #[prost(string, tag = "3")]
    pub parent: String,
    /// What containerd wants to be kept with it.
    #[prost(btree_map = "string, string", tag = "4")]
    pub labels: BTreeMap<String, String>,
}

/// Mounts, Remove, Stat and Usage.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OfKey {
    /// The snapshot's name.
    #[prost(string, tag = "2")]
    pub key: String,
}

/// Commit.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Commit {
    /// The name from now on.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The name until now.
    #[prost(string, tag = "3")]
    pub key: String,
    /// Labels that replace those of the active snapshot.
    #[prost(btree_map = "string, string", tag = "4")]
    pub labels: BTreeMap<String, String>,
}

/// Update.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Update {
    /// Names the snapshot, and has its new labels.
    #[prost(message, optional, tag = "2")]
    pub info: Option<Info>,
    /// What of it is taken. Without it: the labels.
    #[prost(message, optional, tag = "3")]
    pub mask: Option<Mask>,
}

/// `google.protobuf.FieldMask`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mask {
    /// Names of fields.
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}

/// List.
#[derive(Clone, PartialEq, prost::Message)]
pub struct List {
    /// A snapshot is listed if it matches one of them, or if there are none.
    #[prost(string, repeated, tag = "2")]
    pub filters: Vec<String>,
}

/// Cleanup, and the answers that say nothing.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// The answer to Prepare, View and Mounts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mounts {
    /// One after the other.
    #[prost(message, repeated, tag = "1")]
    pub mounts: Vec<Mount>,
}

/// A mount that containerd makes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// The type of filesystem.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// What is mounted.
    #[prost(string, tag = "2")]
    pub source: String,
    /// Options as in fstab.
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// The answer to Stat and Update.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OneInfo {
    /// The snapshot.
    #[prost(message, optional, tag = "1")]
    pub info: Option<Info>,
}

/// One message of the answer to List.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Infos {
    /// Some snapshots.
    #[prost(message, repeated, tag = "1")]
    pub info: Vec<Info>,
}

/// A snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Info {
    /// The snapshot's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The name of the one below it.
    #[prost(string, tag = "2")]
    pub parent: String,
    /// A number of [`Kind`].
    #[prost(enumeration = "Kind", tag = "3")]
    pub kind: i32,
    /// When it was made.
    #[prost(message, optional, tag = "4")]
    pub created_at: Option<Time>,
    /// When it was changed.
    #[prost(message, optional, tag = "5")]
    pub updated_at: Option<Time>,
    /// What containerd keeps with it.
    #[prost(btree_map = "string, string", tag = "6")]
    pub labels: BTreeMap<String, String>,
}

/// What a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// Nothing.
    Unknown = 0,
    /// One that is only read.
    View = 1,
    /// One that is written.
    Active = 2,
    /// One that does not change, and that others may be above.
    Committed = 3,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Time {
    /// Since 1970-01-01 UTC.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// 0 to 999,999,999.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// The answer to Usage.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Usage {
    /// Bytes on this machine's disk.
    #[prost(int64, tag = "1")]
    pub size: i64,
    /// Files and folders there.
    #[prost(int64, tag = "2")]
    pub inodes: i64,
}
