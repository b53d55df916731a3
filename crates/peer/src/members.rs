//! Who is there: SWIM over UDP, sealed with the fleet's secret.
//!
//! ```text
//!   Members ──► driver: a socket, a thread, the clock ──► machine: decides, no I/O ──► foca: SWIM
//!                  │                                        │
//!                  seal: only this fleet reads              vitals: free space and load, by the way
//! ```
//!
//! [`Members::start`] joins and keeps joining; [`Members::roster`] is who is there, as a value; a watcher is told what changes. It carries
//! who is there and how busy, never who has what. A death is known to all within some ten seconds: who asks somebody for bytes has
//! to have a deadline of its own, and can say [`Members::suspect`] to keep from asking again at once.
//!
//! - [`machine`] is the whole of it as a pure state machine; its tests run fleets of hundreds in virtual time.
//! - [`who`], [`codec`], [`vitals`], [`seal`]: a node, what is said, what it is sealed in.
//! - [`home`]: what makes a node itself again after a restart. [`contacts`]: whom to join by.

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
