//! A fleet on one machine: real `covey` processes, each in a network namespace of its own, on an object store
//! in another.
//!
//! ```text
//!   covey-PID-N-hub      br0 ─┬─ store  10.77.0.2   S3 server behind the faulty proxy (in this process)
//!   (a bridge, no node)       ├─ n1     10.77.0.11  covey mount ... FOLDER/n1/mnt, cache in FOLDER/n1/cache
//!                             ├─ n2     10.77.0.12  covey mount ... FOLDER/n2/mnt
//!                             └─ ...
//! ```
//!
//! Only networks are separate. Mounts are visible to the test's process, so a test reads a node's files like
//! any others. No interface, route or address outside the created namespaces is changed. If the process dies
//! in any way, a shell that outlives it ends the programs, removes the mounts, the namespaces and the folder
//! ([`sweep`]).
//!
//! - [`net`]: namespaces, links, their bandwidth, and which of them reach one another. [`wire`]: links with
//!   delay and loss, without help of the kernel.
//! - [`store`]: the object store, its faults, and its request counts.
//! - [`tree`]: files with known bytes, published once per process.
//! - [`node`]: one node: started, killed, frozen, filled. [`fleet`]: all of it together.
//! - [`clock`]: a node's own wall clock, which jumps.
//! - [`evil`]: a member of the fleet that lies about the blobs it has.
//! - [`readers`]: readers on many nodes at once, which compare every byte and have a deadline.

// Only tests and benches use this crate. It may unwrap, read the clock and start threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

pub mod clock;
pub mod evil;
pub mod fleet;
pub mod net;
pub mod node;
pub mod readers;
pub mod store;
pub mod sweep;
pub mod tree;
pub mod wire;

pub use fleet::Fleet;
pub use net::{Net, Port};
pub use node::{How, Node};
pub use readers::{Readers, Report};
pub use store::Store;
pub use tree::Tree;

pub use covey_tests::program::{covey, run, use_program};
pub use covey_tests::say;

use std::path::Path;
use std::process::Command;

/// What this machine lacks for namespaces, if anything.
pub fn lacking() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("root".into());
    }
    let programs = ["ip", "tc", "nsenter"];
    if let Some(name) = programs.iter().find(|name| covey_tests::need::which(name).is_none()) {
        return Some(format!("the program {name}"));
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("/dev/fuse".into());
    }
    net::lacking_bridge()
}

/// Unless namespaces can be created here, ends the test early and says what is missing.
#[macro_export]
macro_rules! requires_nets {
    () => {
        if let Some(lacking) = $crate::lacking() {
            $crate::say(format_args!("skipped: lacks {lacking}"));
            return;
        }
    };
}

/// An administrator's program, found even if PATH lacks its folder.
pub(crate) fn tool(name: &str) -> Command {
    Command::new(covey_tests::need::which(name).unwrap_or_else(|| name.into()))
}
