//! A fleet on one machine: real `covey` processes, each in a network namespace of its own, on an object store in another.
//!
//! ```text
//!   covey-PID-N-hub      br0 ──┬── store  10.77.0.2   S3 server behind the proxy of faults (threads of this process)
//!   (a bridge, no node)        ├── n1     10.77.0.11  covey mount ... FOLDER/n1/mnt, cache in FOLDER/n1/cache
//!                              ├── n2     10.77.0.12  covey mount ... FOLDER/n2/mnt
//!                              └── ...
//! ```
//!
//! Only networks are apart: mounts are seen by whoever started this, so that a test reads a node's files as it reads any others.
//! Nothing here touches an interface, a route or an address outside the namespaces that it made. Whatever happens to the
//! process, a shell that outlives it ends what it started, takes the mounts and the namespaces away and removes the folder
//! ([`sweep`]).
//!
//! - [`net`]: namespaces, links, their shape, and who hears whom. [`wire`]: links with delay and loss, without the kernel's help.
//! - [`store`]: the object store, what goes wrong with it, and what was asked of it.
//! - [`tree`]: files that are known byte for byte, published once in a process.
//! - [`node`]: one node: started, killed, frozen, filled. [`fleet`]: all of it together.
//! - [`clock`]: a clock of the day of a node's own, which jumps.
//! - [`evil`]: a member of the fleet that lies about what it has.
//! - [`readers`]: who reads on many nodes at once, compares every byte, and has a deadline.

// Only tests and benches use this crate: it may unwrap, read the clock and start threads.
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

pub use covey_tests::program::use_program;
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

/// Ends the test early, saying what is missing, unless namespaces can be made here.
#[macro_export]
macro_rules! requires_nets {
    () => {
        if let Some(lacking) = $crate::lacking() {
            $crate::say(format_args!("skipped: lacks {lacking}"));
            return;
        }
    };
}

/// A program of the administrator's, also where PATH has none of them.
pub(crate) fn tool(name: &str) -> Command {
    Command::new(covey_tests::need::which(name).unwrap_or_else(|| name.into()))
}
