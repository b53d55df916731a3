//! The messages of CSI version 1, written by hand: the fields that this driver reads or sends, with the
//! numbers of the specification. Fields that are not listed are skipped when they arrive. Enumerations are
//! their numbers; the modules of constants name them.

#![allow(missing_docs, reason = "names and meanings are those of the CSI specification")]

pub mod controller;
pub mod identity;
pub mod node;

use std::collections::BTreeMap;

/// Texts by name: parameters, contexts, secrets, segments of a topology.
pub type Texts = BTreeMap<String, String>;

/// Modes of access.
pub mod mode {
    pub const SINGLE_NODE_WRITER: i32 = 1;
    pub const SINGLE_NODE_READER_ONLY: i32 = 2;
    pub const MULTI_NODE_READER_ONLY: i32 = 3;
    pub const MULTI_NODE_SINGLE_WRITER: i32 = 4;
    pub const MULTI_NODE_MULTI_WRITER: i32 = 5;
    pub const SINGLE_NODE_SINGLE_WRITER: i32 = 6;
    pub const SINGLE_NODE_MULTI_WRITER: i32 = 7;
}

/// What a volume is to be used for.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeCapability {
    #[prost(message, optional, tag = "1")]
    pub block: Option<BlockVolume>,
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BlockVolume {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

/// Bytes; 0 is not set.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: Texts,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TopologyRequirement {
    #[prost(message, repeated, tag = "1")]
    pub requisite: Vec<Topology>,
    #[prost(message, repeated, tag = "2")]
    pub preferred: Vec<Topology>,
}

/// What a new volume begins with. One of the two.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeContentSource {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<SnapshotSource>,
    #[prost(message, optional, tag = "2")]
    pub volume: Option<VolumeSource>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SnapshotSource {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeSource {
    #[prost(string, tag = "1")]
    pub volume_id: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Volume {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(string, tag = "2")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_context: Texts,
    #[prost(message, optional, tag = "4")]
    pub content_source: Option<VolumeContentSource>,
    #[prost(message, repeated, tag = "5")]
    pub accessible_topology: Vec<Topology>,
}

/// A capability that is one number: of the controller, or of a node.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Capability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<CapabilityType>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CapabilityType {
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

impl Capability {
    /// The capability with this number.
    pub fn of(kind: i32) -> Capability {
        Capability { rpc: Some(CapabilityType { kind }) }
    }
}
