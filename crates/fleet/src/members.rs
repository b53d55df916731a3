//! Membership: SWIM over UDP, encrypted and authenticated with the fleet's secret.
//!
//! ```text
//!   Members ──► driver: a socket, a thread, the clock ──► machine: decides, no I/O ──► foca: SWIM
//!                  │                                        │
//!                  seal: only this fleet reads              vitals: free space and load, sent along
//! ```
//!
//! [`Members::start`] joins and keeps joining. [`Members::roster`] is the list of members, as a value. A
//! watcher is told of changes. Membership says which nodes exist and how busy they are, never which node has
//! which blob. All nodes know of a death within about ten seconds. So a request for data needs its own
//! deadline, and [`Members::suspect`] keeps a node from being asked again at once.
//!
//! - [`machine`]: all of it as a pure state machine. Its tests run fleets of hundreds of nodes in virtual
//!   time.
//! - [`who`], [`codec`], [`vitals`], [`seal`]: a node, the messages, and their encryption.
//! - [`home`]: the identity of a node across restarts. [`contacts`]: the addresses through which a node
//!   joins.

pub mod codec;
pub mod contacts;
pub mod dice;
mod driver;
pub mod home;
pub mod machine;
pub mod roster;
pub mod seal;
pub mod vitals;
pub mod who;

pub use contacts::Contact;
pub use driver::{Members, Setup, StartError, Stats};
pub use home::{HomeError, NodeHome};
pub use machine::Event;
pub use roster::{Change, Roster};
