//! The CSI driver, as an orchestrator uses it: calls over its unix socket, real mounts, a real database. Calls
//! are repeated, come in the wrong order, or are cut off by kill -9 of the driver.
//!
//! `make test-csi` also runs csi-sanity, the suite of the specification, and checks the manifests with helm
//! and kubeconform, for which the environment says where they are (`CSI_SANITY`, `HELM`, `KUBECONFORM`).

mod kills;
mod kinds;
mod refusals;
mod rig;
mod sanity;
mod secrets;
