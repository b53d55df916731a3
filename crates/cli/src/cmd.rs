//! The commands. Each file holds one command: its arguments, its work and its output.

#[cfg(feature = "guests")]
pub mod attach;
pub mod bench;
pub mod bundle;
pub mod cache;
pub mod cat;
pub mod clone;
pub mod config;
pub mod cp;
#[cfg(feature = "csi")]
pub mod csi;
pub mod depot;
pub mod detach;
pub mod df;
pub mod doctor;
pub mod export;
pub mod fleet;
pub mod flush;
pub mod format;
pub mod fsck;
pub mod gc;
pub mod generate;
pub mod heat;
pub mod hint;
#[cfg(feature = "containers")]
pub mod image;
pub mod import;
pub mod index;
pub mod info;
pub mod lend;
pub mod locks;
pub mod ls;
#[cfg(feature = "memory")]
pub mod memory_server;
pub mod mount;
pub mod origin;
pub mod peers;
pub mod promote;
pub mod publish;
pub mod published;
pub mod quota;
pub mod restore;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(feature = "guests")]
pub mod serve;
pub mod sessions;
#[cfg(feature = "containers")]
pub mod snapshotter;
pub mod stats;
pub mod status;
pub mod top;
pub mod trace;
pub mod trash;
#[cfg(feature = "dashboard")]
pub mod ui;
pub mod umount;
pub mod unpublish;
pub mod up;
pub mod upgrade;
pub mod warm;
#[cfg(feature = "ebpf")]
pub mod watch;

#[allow(unused_imports, reason = "a program that has all parts needs none of these")]
use crate::parts::absent;

#[cfg(not(feature = "guests"))]
absent!(attach, "guests");
#[cfg(not(feature = "csi"))]
absent!(csi, "the driver for Kubernetes");
#[cfg(not(feature = "containers"))]
absent!(image, "container images");
#[cfg(not(feature = "memory"))]
absent!(memory_server, "the server of memory images");
#[cfg(not(feature = "s3"))]
absent!(s3, "the S3 endpoint");
#[cfg(not(feature = "guests"))]
absent!(serve, "guests");
#[cfg(not(feature = "containers"))]
absent!(snapshotter, "container images");
#[cfg(not(feature = "dashboard"))]
absent!(ui, "the dashboard");
#[cfg(not(feature = "ebpf"))]
absent!(watch, "eBPF");
