//! Messages of the service Identity.

use super::Texts;

/// Numbers of the capabilities of a plugin.
pub mod plugin {
    pub const CONTROLLER_SERVICE: i32 = 1;
    pub const VOLUME_ACCESSIBILITY_CONSTRAINTS: i32 = 2;
    /// Volumes grow while they are in use.
    pub const EXPANSION_ONLINE: i32 = 1;
}

/// A message without fields that this driver reads or sends.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub vendor_version: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub manifest: Texts,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PluginCapabilities {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<PluginCapability>,
}

/// One of the two.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PluginCapability {
    #[prost(message, optional, tag = "1")]
    pub service: Option<super::CapabilityType>,
    #[prost(message, optional, tag = "2")]
    pub volume_expansion: Option<super::CapabilityType>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ProbeResponse {
    #[prost(message, optional, tag = "1")]
    pub ready: Option<BoolValue>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BoolValue {
    #[prost(bool, tag = "1")]
    pub value: bool,
}
