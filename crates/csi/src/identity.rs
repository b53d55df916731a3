//! The service Identity: what this driver is, and which services it has.

use crate::proto::identity::{
    BoolValue, Empty, PluginCapabilities, PluginCapability, PluginInfo, ProbeResponse, plugin,
};
use crate::proto::{CapabilityType, Texts};
use crate::refuse::Answer;
use crate::{Driver, Services};

impl Driver {
    pub(crate) fn plugin_info(&self, _: Empty) -> Answer<PluginInfo> {
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(PluginInfo { name: self.options.name.clone(), vendor_version, manifest: Texts::new() })
    }

    pub(crate) fn plugin_capabilities(&self, _: Empty) -> Answer<PluginCapabilities> {
        let of = |kind: i32| Some(CapabilityType { kind });
        let service = |kind: i32| PluginCapability { service: of(kind), volume_expansion: None };
        let mut capabilities =
            vec![PluginCapability { service: None, volume_expansion: of(plugin::EXPANSION_ONLINE) }];
        if self.options.services != Services::Node {
            capabilities.push(service(plugin::CONTROLLER_SERVICE));
        }
        if self.options.folder.is_some() {
            capabilities.push(service(plugin::VOLUME_ACCESSIBILITY_CONSTRAINTS));
        }
        Ok(PluginCapabilities { capabilities })
    }

    pub(crate) fn probe(&self, _: Empty) -> Answer<ProbeResponse> {
        Ok(ProbeResponse { ready: Some(BoolValue { value: true }) })
    }
}
