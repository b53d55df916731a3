//! The CSI driver, as an orchestrator uses it: calls over its unix socket, real mounts, a real database.
//! Calls are repeated, come in the wrong order, or are cut off by kill -9 of the driver.
//!
//! `make test-csi` also runs csi-sanity, the suite of the specification, and checks the manifests with helm
//! and the types of the Kubernetes API (`CSI_SANITY`, `HELM`, `KUBE_STRICT` are the paths of programs).

mod kills;
mod kinds;
mod manifests;
mod refusals;
mod rig;
mod sanity;
mod secrets;
mod stores;
